"""Holds the protos to protos/baseline.binpb, the contract as it was last agreed on.

Usage: python tools/proto_baseline.py [--update] [PROTOS]. A change that breaks callers is refused, and so
is a baseline that lacks what was added since: what it does not know, it cannot keep. `--update`, which
`make protos` runs, adds it. A file and not a branch of git, since a fresh clone of main has only itself.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUF = Path(sys.executable).parent / "buf"


def buf(*arguments: str | Path) -> None:
    """Runs buf, which tells what it finds. Raises SystemExit when it finds something."""
    ended = subprocess.run([BUF, *arguments], check=False)
    if ended.returncode != 0:
        raise SystemExit(ended.returncode)


def image_of(protos: Path) -> bytes:
    """The descriptors of all files, without comments: those may change at will."""
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "image.binpb"
        buf("build", protos, "--exclude-source-info", "--output", image)
        return image.read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("protos", type=Path, nargs="?", default=ROOT / "protos")
    parser.add_argument("--update", action="store_true", help="add what is new to the baseline")
    arguments = parser.parse_args()
    baseline = arguments.protos / "baseline.binpb"
    if baseline.exists():
        buf("breaking", arguments.protos, "--against", baseline)
    elif not arguments.update:
        raise SystemExit(f"{baseline} is missing")
    image = image_of(arguments.protos)
    if arguments.update:
        baseline.write_bytes(image)
    elif image != baseline.read_bytes():
        raise SystemExit(f"{baseline} lacks what is new in the protos, run `make protos`")


if __name__ == "__main__":
    main()
