"""Generates the committed Python stubs from protos/, or checks that they are up to date."""

import argparse
import filecmp
import shutil
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"


def generate(destination: Path) -> None:
    """Writes every stub below ``destination``/sfumato."""
    include = str(Path(protoc.__file__).parent / "_proto")
    files = sorted(path for path in (PROTOS / "sfumato").rglob("*.proto"))
    plugin = Path(sys.executable).parent
    code = protoc.main(
        [
            "protoc",
            f"--proto_path={PROTOS}",
            f"--proto_path={include}",
            f"--plugin=protoc-gen-mypy={plugin / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={plugin / 'protoc-gen-mypy_grpc'}",
            f"--python_out={destination}",
            f"--grpc_python_out={destination}",
            f"--mypy_out={destination}",
            f"--mypy_grpc_out=only_async:{destination}",
            *map(str, files),
        ]
    )
    if code != 0:
        raise SystemExit(f"protoc failed with {code}")
    for folder in {parent for file in files for parent in file.relative_to(PROTOS).parents}:
        if folder != Path():
            (destination / folder / "__init__.py").touch()
    (destination / "sfumato" / "py.typed").touch()


def differences(left: Path, right: Path) -> list[str]:
    """Names of files below either folder that are not the same in both."""
    names = {
        str(path.relative_to(folder))
        for folder in (left, right)
        for path in folder.rglob("*")
        if path.is_file() and path.suffix in {".py", ".pyi", ".typed"}
    }
    return sorted(
        name
        for name in names
        if not (left / name).is_file()
        or not (right / name).is_file()
        or not filecmp.cmp(left / name, right / name, shallow=False)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("destination", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        generate(fresh)
        if arguments.check:
            stale = differences(fresh, arguments.destination)
            if stale:
                raise SystemExit(
                    "stubs are not up to date, run `make protos`:\n" + "\n".join(stale)
                )
            return
        shutil.rmtree(arguments.destination, ignore_errors=True)
        shutil.copytree(fresh, arguments.destination)


if __name__ == "__main__":
    main()
