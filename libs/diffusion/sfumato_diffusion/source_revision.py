"""A marker that changes when the weights behind a name change. No torch.

Trainer and generator both call this, so the two never disagree about what is the same source.
The layout read here is the Hub's cache: `models--org--name/{refs,snapshots}`.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

COMPANION_PREFIXES = ("text_encoder", "tokenizer", "vae", "connectors")
WHOLE_MODEL = ("",)
"""Every component counts, the denoiser too: this prefix begins every name."""
NO_SOURCE = "none"
UNRESOLVED = "unresolved"

_COMMIT = re.compile(r"[0-9a-f]{40}")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def hub_cache_roots(live: Path | None, environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Directories searched for Hub snapshots, first one first, without duplicates.

    `live` is the operator's current setting; a worker receives it rather than reading its own.
    """
    from huggingface_hub import constants

    names = [
        live,
        environment.get("HF_HUB_CACHE"),
        environment.get("HUGGINGFACE_HUB_CACHE"),
        constants.HF_HUB_CACHE,
    ]
    return tuple(dict.fromkeys(Path(name).expanduser() for name in names if name))


def source_revision(
    reference: str,
    cache_roots: Sequence[Path],
    *,
    revision: str = "main",
    components: Sequence[str] = COMPANION_PREFIXES,
) -> str:
    """Marker of a Hub id, directory or single file; never loads a model and never raises.

    `none` for an empty reference, `rev-`, `dir-` or `file-` and 16 hex digits, or `unresolved`,
    in which case nothing may be cached on disk. For a directory, `components` narrows which of
    its immediate subdirectories count, by prefix of their name; files in the root always do.
    Take the marker after the weights are local, so that a first and a second run agree.
    """
    if not reference:
        return NO_SOURCE
    try:
        path = Path(reference)
        if path.is_dir():
            return f"dir-{_digest(_directory_lines(path, tuple(components)))}"
        if path.is_file():
            return f"file-{_digest([_line(path, str(path))])}"
        snapshot = find_snapshot(reference, cache_roots, revision=revision)
    except (OSError, ValueError):
        return UNRESOLVED
    return UNRESOLVED if snapshot is None else f"rev-{snapshot.name[:16]}"


def find_snapshot(
    repository: str, cache_roots: Sequence[Path], *, revision: str = "main"
) -> Path | None:
    """Directory of a Hub snapshot that is already local; None when it is absent or ambiguous."""
    if not _REPOSITORY.fullmatch(repository):
        return None
    for root in cache_roots:
        folder = root / f"models--{repository.replace('/', '--')}"
        snapshot = _snapshot(folder, revision)
        if snapshot is not None:
            return snapshot
    return None


def _snapshot(folder: Path, revision: str) -> Path | None:
    snapshots = folder / "snapshots"
    if _COMMIT.fullmatch(revision):
        exact = snapshots / revision
        return exact if exact.is_dir() else None
    reference = folder / "refs" / revision
    if reference.is_file():
        named = snapshots / reference.read_text(encoding="utf-8").strip()
        return named if _COMMIT.fullmatch(named.name) and named.is_dir() else None
    present = sorted(path for path in snapshots.glob("*") if path.is_dir())
    return present[0] if len(present) == 1 else None


def _directory_lines(root: Path, prefixes: tuple[str, ...]) -> Iterator[str]:
    for entry in root.iterdir():
        if entry.is_file():
            yield _line(entry, entry.name)
        elif entry.is_dir() and entry.name.startswith(prefixes):
            for child in entry.iterdir():
                if child.is_file():
                    yield _line(child, f"{entry.name}/{child.name}")


def _line(path: Path, name: str) -> str:
    status = os.stat(path)
    return f"{name}:{status.st_size}:{status.st_mtime_ns}"


def _digest(lines: Iterator[str] | Sequence[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]
