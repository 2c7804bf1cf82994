"""Every failpoint of the chassis and the datasets service, as their source says."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("libs/chassis/sfumato_chassis", "services/datasets/sfumato_datasets")


def is_failpoint(node: ast.expr) -> bool:
    """Whether an expression is what a program calls at a named place."""
    return isinstance(node, ast.Attribute) and node.attr in {"failpoint", "_failpoint"}


def places_in(source: str) -> list[str]:
    """Names that are passed to failpoints, called there or by a thread."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        for function, argument in zip([node.func, *node.args], node.args, strict=False):
            if is_failpoint(function):
                assert isinstance(argument, ast.Constant), ast.unparse(node)
                found.append(argument.value)
    return found


def all_places() -> list[str]:
    """Names of all places, each once."""
    files = [path for folder in SOURCES for path in (ROOT / folder).rglob("*.py")]
    return sorted({name for path in files for name in places_in(path.read_text())})
