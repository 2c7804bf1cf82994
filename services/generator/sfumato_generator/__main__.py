"""``python -m sfumato_generator``: the generator service alone."""

import sys

from sfumato_chassis.serve import main

if __name__ == "__main__":
    sys.exit(main(["--only", "generator", *sys.argv[1:]]))
