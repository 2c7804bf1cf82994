"""Datasets of the Hugging Face Hub as sources of an import: images in folders, or Parquet.

What the Hub's cache on this machine holds of the commit is read there; the rest is fetched into a folder
of the import's own. Where the Hub does not answer, or nothing is to be downloaded, the cache alone is
read, and the report says so.
"""

import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Protocol

from sfumato_datasets.archive_files import ArchiveFiles, safe_parts, shared_folder
from sfumato_datasets.archives import Member
from sfumato_datasets.folder_metadata import joined_metadata
from sfumato_datasets.hub_cache import CachedFile, CachedRepository
from sfumato_datasets.hub_connection import HubConnection
from sfumato_datasets.hub_download import HubDownloads
from sfumato_datasets.hub_listing import HubFile, file_url, find_commit, list_files
from sfumato_datasets.hub_request import (
    HubError,
    HubRequest,
    HubTooLargeError,
    HubUnreachableError,
)
from sfumato_datasets.hub_selection import Selection, select_files
from sfumato_datasets.hub_settings import HubSettings
from sfumato_datasets.notes import remark
from sfumato_datasets.parquet_members import parquet_members
from sfumato_datasets.report import Report
from sfumato_datasets.sources import FileKind, FileUnreadableError, SourceFiles


@dataclass(frozen=True, kw_only=True, slots=True)
class _Work:
    """What one import asks, with what, and whom it tells."""

    source: HubRequest
    settings: HubSettings
    staging: Path
    report: Report
    connection: HubConnection


class Commit(Protocol):
    """The files of one commit, wherever they lie."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Bytes of each, by path."""

    def bring(self, paths: Sequence[str]) -> Mapping[str, Path | None]:
        """Where each lies on this machine. Raises HubError."""


@contextmanager
def open_hub_dataset(
    source: HubRequest, *, settings: HubSettings, staging: Path, report: Report
) -> Iterator[SourceFiles]:
    """The images of a dataset with what describes them, at one commit.

    Args:
        staging: Folder of this import, made here; what an earlier attempt fetched is taken from it.
            It is removed afterwards, unless the import was stopped and may go on.
        report: Told the commit before anything else, and what is fetched.

    Raises:
        HubError: The Hub does not give what was asked for.
    """
    staging.mkdir(parents=True, exist_ok=True)
    try:
        with HubConnection(settings, cancelled=report.cancelled) as connection:
            work = _Work(
                source=source,
                settings=settings,
                staging=staging,
                report=report,
                connection=connection,
            )
            with _naming(source):
                commit = _commit(work)
            selection = select_files(commit.sizes, source)
            _note(selection, report)
            if selection.parquet:
                members = parquet_members(
                    selection.parquet,
                    source,
                    staging=staging,
                    bring=commit.bring,
                    max_bytes=settings.max_bytes,
                    cancelled=report.cancelled.is_set,
                )
            else:
                members = _image_members(commit, selection)
        yield ArchiveFiles([*members, *map(_unsafe, selection.unsafe)], json_sidecars=False)
    finally:
        if not report.cancelled.is_set():
            shutil.rmtree(staging, ignore_errors=True)


def _commit(work: _Work) -> Commit:
    source, endpoint = work.source, work.settings.endpoint
    cached = CachedRepository(work.settings.cache, source)
    if work.settings.offline:
        if not cached.is_there:
            raise HubUnreachableError(
                "not in the server's Hub cache, and this server downloads nothing"
            )
        return _CachedCommit(cached, work)
    try:
        sha = find_commit(work.connection, endpoint, source)
    except HubUnreachableError:
        if not cached.is_there:
            raise
        return _CachedCommit(cached, work)
    work.report.pinned(sha)
    files = list_files(work.connection, endpoint, source, sha)
    return _HubCommit(files, sha, work, cached)


@contextmanager
def _naming(source: HubRequest) -> Iterator[None]:
    """Puts the dataset in front of what an error says of a file or a host."""
    try:
        yield
    except HubError as error:
        told = str(error)
        named = told if told.startswith(source.id) else f"{source.id}: {told}"
        raise type(error)(named) from error


class _CachedCommit:
    """A commit as the cache has it, which may be less than the Hub has."""

    def __init__(self, cached: CachedRepository, work: _Work) -> None:
        sha = cached.commit()
        work.report.pinned(sha)
        work.report.note(
            remark(
                work.source.id,
                "HUB_CACHE_USED",
                f"read from the server's Hub cache at {sha}; what was never fetched is missing",
            )
        )
        self._files: Mapping[str, CachedFile] = {file.path: file for file in cached.files(sha)}

    @property
    def sizes(self) -> Mapping[str, int]:
        return {path: file.size_bytes for path, file in self._files.items()}

    def bring(self, paths: Sequence[str]) -> Mapping[str, Path | None]:
        return {path: self._files[path].location for path in paths}


class _HubCommit:
    """A commit as the Hub lists it."""

    def __init__(
        self,
        files: Sequence[HubFile],
        sha: str,
        work: _Work,
        cached: CachedRepository,
    ) -> None:
        self._files = {file.path: file for file in files}
        self._sha = sha
        self._work = work
        self._cached = cached
        self._lock = threading.Lock()
        self._num_fetched: dict[str, int] = {}
        self._num_bytes_fetched = 0
        self._num_bytes_to_fetch = 0
        self._downloads = HubDownloads(
            work.connection,
            work.staging,
            url=partial(file_url, work.settings.endpoint, work.source, sha),
            on_bytes=self._on_bytes,
        )

    @property
    def sizes(self) -> Mapping[str, int]:
        return {path: file.size_bytes for path, file in self._files.items()}

    def bring(self, paths: Sequence[str]) -> Mapping[str, Path | None]:
        wanted = [self._files[path] for path in paths]
        here = {file.path: self._cached.find(self._sha, file) for file in wanted}
        missing = {file.key: file for file in wanted if here[file.path] is None}
        self._num_bytes_to_fetch += sum(file.size_bytes for file in missing.values())
        with _naming(self._work.source):
            if self._num_bytes_to_fetch > self._work.settings.max_bytes:
                raise HubTooLargeError(
                    f"{self._num_bytes_to_fetch} bytes, of which this server fetches at most "
                    f"{self._work.settings.max_bytes}"
                )
            fetched = self._downloads.fetch(list(missing.values()))
        return {file.path: here[file.path] or fetched[file.key] for file in wanted}

    def _on_bytes(self, key: str, num_bytes: int) -> None:
        """Called by the threads that fetch."""
        with self._lock:
            self._num_bytes_fetched += num_bytes - self._num_fetched.get(key, 0)
            self._num_fetched[key] = num_bytes
            self._work.report.fetched(self._num_bytes_fetched, self._num_bytes_to_fetch)


def _note(selection: Selection, report: Report) -> None:
    if selection.num_left_out:
        message = f"{selection.num_left_out} files are neither images nor captions"
        report.note(remark("", "FILES_LEFT_OUT", message))


def _image_members(commit: Commit, selection: Selection) -> list[Member]:
    beside = (*selection.images, *selection.sidecars)
    paths = (*beside, *selection.metadata)
    locations = commit.bring(paths)
    members = {path: _member(path, locations[path]) for path in paths}
    shared = PurePosixPath(*shared_folder([safe_parts(path) or () for path in paths]))
    metadata = joined_metadata([members[path] for path in selection.metadata], shared)
    return [*(members[path] for path in beside), *metadata]


def _member(path: str, location: Path | None) -> Member:
    return Member(path=path, kind=FileKind.FILE, read=partial(_read, location))


def _unsafe(path: str) -> Member:
    return _member(path, None)


def _read(location: Path | None, max_bytes: int) -> bytes:
    if location is None:
        raise FileUnreadableError("leads to no file")
    try:
        with location.open("rb") as file:
            return file.read(max_bytes)
    except OSError as error:
        raise FileUnreadableError("cannot be read any more") from error
