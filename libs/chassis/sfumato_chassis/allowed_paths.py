"""Paths that callers name: only under configured roots, and nothing is told of what lies outside."""

from collections.abc import Sequence
from pathlib import Path

from sfumato_chassis.errors import NotFound, Reason

MAX_PATH_CHARACTERS = 200
"""Of a caller's path that an error repeats."""


def resolve_under_roots(path: str, roots: Sequence[Path], *, resource_type: str) -> Path:
    """The real path that ``path`` names, absolute or relative to the first root that has it.

    Args:
        path: From a caller.
        roots: Folders under which callers may name things. Links are resolved on both sides.
        resource_type: What the error calls it.

    Raises:
        NotFound: PATH_NOT_FOUND, missing or outside the roots; both answer alike.
    """
    for root in roots:
        try:
            real_root = root.resolve(strict=True)
            real_path = (real_root / path).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):  # RuntimeError: a loop of links
            continue
        if real_path.is_relative_to(real_root) and real_path != real_root:
            return real_path
    raise NotFound(
        Reason.PATH_NOT_FOUND,
        absence_of(resource_type, path),
        resource_type=resource_type,
        resource_name=path,
    )


def absence_of(resource_type: str, path: str) -> str:
    """What a caller is told who named something that is missing or forbidden."""
    return f"no {resource_type} {path[:MAX_PATH_CHARACTERS]!r} under the allowed folders"
