"""Refuses files and functions that have grown too long to be read at a sitting.

A file has at most 420 lines (aim for 400), a function at most 60.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE_LINES = 420
MAX_FUNCTION_LINES = 60
FOLDERS = (
    "libs",
    "services",
    "clients/python",
    "tests",
    "tools",
    "benchmarks",
    "examples",
    "protos",
)
SUFFIXES = (".py", ".proto")
IGNORED_PARTS = {"gen", "migrations", "node_modules", "__pycache__"}
"""Generated code, and migrations, which are frozen history."""


def sources(root: Path) -> Iterator[Path]:
    """Every file that people write and read."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            parts = path.relative_to(root).parts
            if path.suffix in SUFFIXES and not IGNORED_PARTS.intersection(parts):
                yield path


def long_functions(path: Path) -> Iterator[tuple[str, int]]:
    """Name and length of each function over the limit, decorators not counted."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield node.name, length


def findings(root: Path) -> Iterator[tuple[str, str]]:
    """Place and complaint, for everything over a limit."""
    for path in sources(root):
        name = path.relative_to(root).as_posix()
        num_lines = len(path.read_text(encoding="utf-8").splitlines())
        if num_lines > MAX_FILE_LINES:
            yield name, f"{num_lines} lines, at most {MAX_FILE_LINES}"
        if path.suffix == ".py":
            for function, length in long_functions(path):
                yield f"{name}::{function}", f"{length} lines, at most {MAX_FUNCTION_LINES}"


def main(root: Path) -> int:
    failures = [f"{place}: {complaint}" for place, complaint in findings(root)]
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT))
