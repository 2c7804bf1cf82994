"""``python -m sfumato_diffusion.tiny FAMILY DIRECTORY [--seed N]``: a tiny random model of a family."""

import argparse
import sys
from pathlib import Path

from sfumato_diffusion.families.registry import UnknownFamilyError, build_tiny


def main() -> int:
    """Builds the model; answers the exit code."""
    parser = argparse.ArgumentParser(prog="python -m sfumato_diffusion.tiny", description=__doc__)
    parser.add_argument("family")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    try:
        build_tiny(arguments.family, arguments.directory, arguments.seed)
    except UnknownFamilyError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
