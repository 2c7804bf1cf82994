"""Opens what an import reads from: a folder, uploads, archives, the Hub."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from sfumato_chassis.blobs import digest_of
from sfumato_chassis.errors import NotFound, Reason
from sfumato_chassis.platform import Platform
from sfumato_datasets.archive_files import open_archives
from sfumato_datasets.config import DatasetsConfig
from sfumato_datasets.hub import open_hub_dataset
from sfumato_datasets.hub_request import HubRequest
from sfumato_datasets.hub_settings import hub_settings
from sfumato_datasets.import_rows import ImportRecord
from sfumato_datasets.report import Report
from sfumato_datasets.sources import (
    FileUnreadableError,
    PathNotFoundError,
    SourceFiles,
    UploadedFiles,
    open_server_folder,
)
from sfumato_datasets.staging import Staging


class SourceOpener:
    """Opens the sources of imports, each in the thread that reads it."""

    def __init__(self, platform: Platform, config: DatasetsConfig) -> None:
        self._config = config
        self._draining = platform.draining
        self._blobs = platform.blobs.folder
        self._staging = Staging(platform.data_dir)

    def check(self, record: ImportRecord) -> None:
        """Raises NotFound where the folder is not there; other sources are met when they are read."""
        if record.folder is not None:
            with self._folder(record.folder):
                return

    @contextmanager
    def open(self, record: ImportRecord, report: Report) -> Iterator[SourceFiles]:
        """The files of an import.

        Raises:
            NotFound: The folder is not there any more.
            ArchiveError: An archive cannot be read.
            HubError: The Hub does not give what was asked for.
        """
        if record.folder is not None:
            with self._folder(record.folder) as folder:
                yield folder
        elif "archives" in record.source:
            archives = [(name, self._blobs.path(digest)) for name, digest in record.uploads]
            spool = self._staging.folder()
            cancelled = report.cancelled.is_set
            with open_archives(archives, spool_folder=spool, cancelled=cancelled) as files:
                yield files
        elif "hub" in record.source:
            with self._hub_dataset(record, report) as files:
                yield files
        else:
            yield UploadedFiles(record.uploads, self._read_blob)

    @contextmanager
    def _hub_dataset(self, record: ImportRecord, report: Report) -> Iterator[SourceFiles]:
        try:
            with open_hub_dataset(
                HubRequest(**{**record.source["hub"], "caption_column": record.caption_column}),
                settings=hub_settings(self._config, os.environ),
                staging=self._staging.of_import(record.job),
                report=report,
            ) as files:
                yield files
        finally:
            # After a drain it goes on with what it fetched.
            if not self._draining.is_set():
                self._staging.remove([record.job])

    @contextmanager
    def _folder(self, path: str) -> Iterator[SourceFiles]:
        try:
            with open_server_folder(path, self._config.import_roots) as folder:
                yield folder
        except PathNotFoundError as error:
            raise NotFound(
                Reason.PATH_NOT_FOUND, str(error), resource_type="folder", resource_name=path
            ) from error

    def _read_blob(self, digest: str, max_bytes: int) -> bytes:
        try:
            with self._blobs.path(digest).open("rb") as file:
                data = file.read(max_bytes)
        except OSError as error:
            raise FileUnreadableError("the uploaded bytes are gone") from error
        if len(data) < max_bytes and digest_of(data) != digest:
            raise FileUnreadableError("the uploaded bytes are damaged")
        return data
