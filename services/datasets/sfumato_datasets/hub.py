"""Datasets of the Hugging Face Hub as sources of an import: images in folders, or Parquet.

What the Hub's cache on this machine holds of the commit is read there; the rest is fetched into a folder
of the import's own. Where the Hub does not answer, or nothing is to be downloaded, the cache alone is
read, and the report says so.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Protocol

from sfumato_datasets.archive_files import ArchiveFiles, safe_parts, shared_folder
from sfumato_datasets.archives import Member
from sfumato_datasets.captions import DEFAULT_COLUMN
from sfumato_datasets.folder_metadata import joined_metadata
from sfumato_datasets.hub_cache import CachedFile, CachedRepository
from sfumato_datasets.hub_connection import HubConnection
from sfumato_datasets.hub_download import HubDownloads
from sfumato_datasets.hub_listing import HubFile, file_url, find_commit, list_files
from sfumato_datasets.hub_request import (
    HubBusyError,
    HubError,
    HubNotFoundError,
    HubRequest,
    HubTooLargeError,
    HubUnreachableError,
    check_names,
)
from sfumato_datasets.hub_selection import Selection, select_files
from sfumato_datasets.hub_settings import HubSettings
from sfumato_datasets.notes import remark
from sfumato_datasets.parquet_members import parquet_members
from sfumato_datasets.report import Report
from sfumato_datasets.sources import FileKind, FileUnreadableError, SourceFiles


@dataclass(frozen=True, kw_only=True, slots=True)
class _Opening:
    """What one import asks, with what, and whom it tells."""

    source: HubRequest
    settings: HubSettings
    staging: Path
    report: Report
    connection: HubConnection


class _CommitFiles(Protocol):
    """The files of one commit, wherever they lie."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Bytes of each, by path."""

    def locate(self, paths: Sequence[str]) -> Mapping[str, Path | None]:
        """Where each lies on this machine, those that had to be fetched too; None for what cannot be read.

        Raises:
            HubError, HubCancelledError
            OSError: There is no space.
        """


@contextmanager
def open_hub_dataset(
    source: HubRequest, *, settings: HubSettings, staging: Path, report: Report
) -> Iterator[SourceFiles]:
    """The images of a dataset with what describes them, at one commit.

    Args:
        staging: Folder of this import, made here and left to the caller to remove; what an earlier
            attempt fetched is taken from it.
        report: Told the commit before anything else, and what is fetched.

    Raises:
        HubError: The Hub does not give what was asked for.
        HubCancelledError: The import was cancelled meanwhile.
        ParquetStartError: The reader of Parquet does not start.
        OSError: There is no space.
    """
    staging.mkdir(parents=True, exist_ok=True)
    with _naming(source):
        check_names(source)
        with closing(HubConnection(settings, cancelled=report.cancelled)) as connection:
            members = _members(
                _Opening(
                    source=source,
                    settings=settings,
                    staging=staging,
                    report=report,
                    connection=connection,
                )
            )
    yield ArchiveFiles(members, json_sidecars=False)


@contextmanager
def _naming(source: HubRequest) -> Iterator[None]:
    """Puts the dataset in front of what an error says."""
    try:
        yield
    except HubError as error:
        raise type(error)(f"{source.id}: {error}") from error


def _members(opening: _Opening) -> list[Member]:
    """Everything that the import reads, on this machine."""
    files = _commit_files(opening)
    selection = select_files(files.sizes, opening.source)
    if selection.num_left_out:
        message = f"{selection.num_left_out} files are not part of the dataset"
        opening.report.note(remark("", "FILES_LEFT_OUT", message))
    if selection.parquet:
        members = parquet_members(
            selection.parquet,
            opening.source,
            staging=opening.staging,
            locate=files.locate,
            max_bytes=opening.settings.max_bytes,
            cancelled=opening.report.cancelled.is_set,
        )
    else:
        members = _image_members(files, selection, opening.source)
    return [*members, *(_member(path, None) for path in selection.unsafe)]


def _commit_files(opening: _Opening) -> _CommitFiles:
    source, settings = opening.source, opening.settings
    cached = CachedRepository(settings.cache, source)
    if settings.offline:
        if not cached.is_there:
            raise HubUnreachableError(
                "not in the server's Hub cache, and this server downloads nothing"
            )
        return _CachedFiles(cached, opening)
    try:
        commit = find_commit(opening.connection, settings.endpoint, source)
    except HubBusyError:
        raise
    except HubUnreachableError as error:
        try:
            return _CachedFiles(cached, opening)
        except HubNotFoundError:
            raise error from None
    opening.report.pinned(commit)
    files = list_files(opening.connection, settings.endpoint, source, commit)
    return _HubFiles(files, commit, opening, cached)


class _CachedFiles:
    """A commit as the cache has it, which may be less than the Hub has."""

    def __init__(self, cached: CachedRepository, opening: _Opening) -> None:
        commit = cached.commit()
        opening.report.pinned(commit)
        opening.report.note(
            remark(
                opening.source.id,
                "HUB_CACHE_USED",
                f"read from the server's Hub cache at {commit}; what was never fetched is missing",
            )
        )
        self._files: Mapping[str, CachedFile] = {file.path: file for file in cached.files(commit)}

    @property
    def sizes(self) -> Mapping[str, int]:
        return {path: file.size_bytes for path, file in self._files.items()}

    def locate(self, paths: Sequence[str]) -> Mapping[str, Path | None]:
        return {path: self._files[path].location for path in paths}


class _HubFiles:
    """A commit as the Hub lists it."""

    def __init__(
        self,
        files: Sequence[HubFile],
        commit: str,
        opening: _Opening,
        cached: CachedRepository,
    ) -> None:
        self._files = {file.path: file for file in files}
        self._commit = commit
        self._opening = opening
        self._cached = cached
        self._lock = threading.Lock()
        self._num_bytes_by_key: dict[str, int] = {}
        self._num_bytes_fetched = 0
        self._num_bytes_to_fetch = 0
        self._downloads = HubDownloads(
            opening.connection,
            opening.staging,
            url=partial(file_url, opening.settings.endpoint, opening.source, commit),
            on_bytes=self._on_bytes,
        )

    @property
    def sizes(self) -> Mapping[str, int]:
        return {path: file.size_bytes for path, file in self._files.items()}

    def locate(self, paths: Sequence[str]) -> Mapping[str, Path | None]:
        wanted = [self._files[path] for path in paths]
        here = {file.path: self._cached.find(self._commit, file) for file in wanted}
        missing = {file.key: file for file in wanted if here[file.path] is None}
        self._num_bytes_to_fetch += sum(file.size_bytes for file in missing.values())
        max_bytes = self._opening.settings.max_bytes
        if self._num_bytes_to_fetch > max_bytes:
            raise HubTooLargeError(
                f"{self._num_bytes_to_fetch} bytes, of which this server fetches at most {max_bytes}"
            )
        fetched = self._downloads.fetch(list(missing.values()))
        return {file.path: here[file.path] or fetched[file.key] for file in wanted}

    def _on_bytes(self, key: str, num_bytes: int) -> None:
        """Called by the threads that fetch."""
        with self._lock:
            self._num_bytes_fetched += num_bytes - self._num_bytes_by_key.get(key, 0)
            self._num_bytes_by_key[key] = num_bytes
            self._opening.report.fetched(self._num_bytes_fetched, self._num_bytes_to_fetch)


def _image_members(files: _CommitFiles, selection: Selection, source: HubRequest) -> list[Member]:
    beside = (*selection.images, *selection.sidecars)
    paths = (*beside, *selection.metadata)
    locations = files.locate(paths)
    members = {path: _member(path, locations[path]) for path in paths}
    shared = PurePosixPath(*shared_folder([safe_parts(path) or () for path in paths]))
    metadata = joined_metadata(
        [members[path] for path in selection.metadata],
        shared,
        column=source.caption_column or DEFAULT_COLUMN,
    )
    return [*(members[path] for path in beside), *metadata]


def _member(path: str, location: Path | None) -> Member:
    return Member(path=path, kind=FileKind.FILE, read=partial(_read, location))


def _read(location: Path | None, max_bytes: int) -> bytes:
    if location is None:
        raise FileUnreadableError("leads to no file")
    try:
        with location.open("rb") as file:
            return file.read(max_bytes)
    except OSError as error:
        raise FileUnreadableError("cannot be read any more") from error
