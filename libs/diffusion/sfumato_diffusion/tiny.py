"""``python -m sfumato_diffusion.tiny FAMILY DIRECTORY [--seed N]``: a tiny random model of a family."""

import argparse
import sys
from pathlib import Path

import diffusers
import transformers
from safetensors import SafetensorError

from sfumato_diffusion.families.registry import UnknownFamilyError, build_tiny
from sfumato_diffusion.seeds import LARGEST_SEED


def main() -> int:
    """Builds the model in a folder that is not there yet, or is empty; answers the exit code."""
    parser = argparse.ArgumentParser(prog="python -m sfumato_diffusion.tiny", description=__doc__)
    parser.add_argument("family")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if not 0 <= arguments.seed <= LARGEST_SEED:
        return _refuse(f"--seed must be at least 0, at most {LARGEST_SEED}")
    for library in (diffusers, transformers):
        library.utils.logging.set_verbosity_error()
        library.utils.logging.disable_progress_bar()
    try:
        if arguments.directory.is_dir() and any(arguments.directory.iterdir()):
            return _refuse(f"{arguments.directory}: is not empty")
        build_tiny(arguments.family, arguments.directory, arguments.seed)
    except UnknownFamilyError as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"{error.filename or arguments.directory}: {error.strerror or error}")
    except SafetensorError as error:
        return _refuse(f"{arguments.directory}: {error}")
    sys.stdout.write(f"a tiny {arguments.family} is in {arguments.directory}\n")
    return 0


def _refuse(problem: str) -> int:
    sys.stderr.write(f"{problem}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
