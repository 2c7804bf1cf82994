"""``python -m sfumato_datasets``: the datasets service alone."""

import sys

from sfumato_chassis.serve import main

if __name__ == "__main__":
    sys.exit(main(["--only", "datasets", *sys.argv[1:]]))
