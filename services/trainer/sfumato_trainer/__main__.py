"""``python -m sfumato_trainer``: the trainer service alone."""

import sys

from sfumato_chassis.serve import main

if __name__ == "__main__":
    sys.exit(main(["--only", "trainer", *sys.argv[1:]]))
