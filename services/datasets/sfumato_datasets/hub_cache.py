"""The Hugging Face Hub's cache on this machine, as its own library lays it out."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sfumato_datasets.hub_listing import COMMIT, HubFile, is_whole
from sfumato_datasets.hub_request import DEFAULT_REVISION, HubNotFoundError, HubRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedFile:
    """A file of a snapshot. `location` is None where its link leads to nothing inside the cache."""

    path: str
    location: Path | None
    size_bytes: int


class CachedRepository:
    """A dataset in the cache; it need not be there.

    Args:
        cache: Of all repositories.
        source: What is asked of it, with names that were checked.
    """

    def __init__(self, cache: Path, source: HubRequest) -> None:
        self._source = source
        self._folder = cache / f"datasets--{source.id.replace('/', '--')}"

    @property
    def is_there(self) -> bool:
        """Whether anything of it was ever fetched."""
        return self._folder.is_dir()

    def commit(self) -> str:
        """The commit that the cache has for the revision. Raises HubNotFoundError."""
        revision = self._source.revision or DEFAULT_REVISION
        commit = revision
        if COMMIT.fullmatch(revision) is None:
            try:
                commit = (self._folder / "refs" / revision).read_text(encoding="ascii").strip()
            except (OSError, ValueError):
                commit = ""
        if COMMIT.fullmatch(commit) is None or not self._snapshot(commit).is_dir():
            raise HubNotFoundError(f"the server's Hub cache has no revision {revision}")
        return commit

    def files(self, commit: str) -> Iterator[CachedFile]:
        """What lies in the folder that was asked for."""
        snapshot = self._snapshot(commit)
        for at, _, names in os.walk(snapshot / self._source.folder.strip("/")):
            for name in names:
                path = PurePosixPath(Path(at, name).relative_to(snapshot))
                location = self._location(commit, str(path))
                size_bytes = 0 if location is None else location.stat().st_size
                yield CachedFile(path=str(path), location=location, size_bytes=size_bytes)

    def find(self, commit: str, file: HubFile) -> Path | None:
        """Where the bytes of a file lie; None where they do not, or are not those of the commit."""
        location = self._location(commit, file.path)
        return location if location is not None and is_whole(location, file) else None

    def _location(self, commit: str, path: str) -> Path | None:
        """Where a path of a snapshot leads; None for nothing, and for whatever leads out of the cache."""
        try:
            location = (self._snapshot(commit) / path).resolve(strict=True)
        except (OSError, RuntimeError, ValueError):  # RuntimeError: a loop of links
            return None
        is_inside = location.is_relative_to(self._folder.resolve())
        return location if is_inside and location.is_file() else None

    def _snapshot(self, commit: str) -> Path:
        return self._folder / "snapshots" / commit
