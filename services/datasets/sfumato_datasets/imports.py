"""One import: what it may begin with, what it does, how its version appears.

A version appears in one transaction: the event that ends the import, the version's row and the
references to its blobs. Before it there is the old version, after it the new one.
"""

import asyncio
from contextlib import ExitStack

from sqlalchemy import Connection

from sfumato_chassis.blobs import Blob, BlobFolder, digest_of, first_missing, set_references
from sfumato_chassis.errors import (
    Aborted,
    DataLoss,
    FailedPrecondition,
    JobFailure,
    NotFound,
    Reason,
)
from sfumato_chassis.job_store import JobStore
from sfumato_chassis.jobs import Job, JobState, NewEvent
from sfumato_chassis.platform import Platform
from sfumato_chassis.threads import Threads
from sfumato_datasets import storage
from sfumato_datasets.config import DatasetsConfig
from sfumato_datasets.ingest import (
    EMPTY,
    FilesRefusedError,
    IngestCancelledError,
    IngestOptions,
    IngestResult,
    NothingImportedError,
    ingest,
)
from sfumato_datasets.library import (
    DatasetNotEmptyError,
    ImportMode,
    VersionContents,
    check_mode,
    load_manifest,
    store_manifest,
)
from sfumato_datasets.manifest import Manifest, ManifestError
from sfumato_datasets.report import Report
from sfumato_datasets.sources import (
    FileUnreadableError,
    PathNotFoundError,
    SourceFiles,
    UploadedFiles,
    open_server_folder,
)
from sfumato_datasets.storage import ImportRecord
from sfumato_datasets.verifier import ImageVerifier

MANIFEST_MEDIA_TYPE = "application/vnd.sfumato.dataset+json"


class FolderManifests:
    """Manifests among the blobs."""

    def __init__(self, folder: BlobFolder) -> None:
        self._folder = folder

    def put(self, data: bytes) -> str:
        return self._folder.put(data)

    def get(self, digest: str) -> bytes:
        try:
            return self._folder.path(digest).read_bytes()
        except OSError as error:
            raise LookupError(digest) from error


class Importer:
    """Does imports, one at a time for each caller."""

    def __init__(self, platform: Platform, config: DatasetsConfig) -> None:
        self._platform = platform
        self._config = config
        self.manifests = FolderManifests(platform.blobs.folder)
        # Apart, since folders can hang and uploads cannot.
        self._folder_threads = Threads("import-folder", limit=config.max_concurrent_imports)
        self._upload_threads = Threads("import-upload", limit=config.max_concurrent_imports)

    def check_source(self, record: ImportRecord) -> None:
        with ExitStack() as stack:
            self._open_source(record, stack)

    def check(self, connection: Connection, record: ImportRecord) -> None:
        holder = storage.writer_of(connection, record.owner, record.dataset)
        if holder is not None:
            raise Aborted(
                Reason.DATASET_BUSY,
                f"{holder} writes to {record.dataset}",
                details={"holder": holder},
            )
        self._check_empty(connection, record)
        missing = first_missing(
            connection, [digest for _, digest in record.source.get("files", ())]
        )
        if missing is not None:
            raise NotFound.resource("blob", missing)

    def _check_empty(self, connection: Connection, record: ImportRecord) -> None:
        dataset = storage.find_dataset(connection, record.owner, record.dataset)
        try:
            check_mode(ImportMode(record.mode), dataset.latest.contents if dataset else None)
        except DatasetNotEmptyError as error:
            raise FailedPrecondition(Reason.DATASET_NOT_EMPTY, str(error)) from error

    def _open_source(self, record: ImportRecord, stack: ExitStack) -> SourceFiles:
        folder = record.folder
        if folder is None:
            return UploadedFiles(
                [(name, digest) for name, digest in record.source["files"]], self._read_blob
            )
        try:
            return stack.enter_context(open_server_folder(folder, self._config.import_roots))
        except PathNotFoundError as error:
            raise NotFound(
                Reason.PATH_NOT_FOUND,
                str(error),
                resource_type="folder",
                resource_name=folder,
            ) from error

    def _read_blob(self, digest: str, max_bytes: int) -> bytes:
        try:
            with self._platform.blobs.folder.path(digest).open("rb") as file:
                data = file.read(max_bytes)
        except OSError as error:
            raise FileUnreadableError("the uploaded bytes are gone") from error
        if len(data) < max_bytes and digest_of(data) != digest:
            raise FileUnreadableError("the uploaded bytes are damaged")
        return data

    async def run(self, jobs: JobStore, job: Job, report: Report) -> JobFailure | None:
        """Does an import.

        Returns:
            Why there is no new version; None when there is one, or when the import was cancelled.

        Raises:
            Fenced: It was cancelled at the last moment, or another attempt holds it.
        """
        try:
            record, result = await self._read(job, report)
        except FilesRefusedError as error:
            return JobFailure(reason=Reason.FILES_REFUSED, message=str(error))
        except NothingImportedError as error:
            return JobFailure(reason=Reason.DATASET_EMPTY, message=str(error))
        except IngestCancelledError:
            return None
        await self._publish(jobs, job, record, result, report)
        return None

    async def _read(self, job: Job, report: Report) -> tuple[ImportRecord, IngestResult]:
        """Reads, verifies and stores every file; the version is not there yet."""
        record = await self._platform.database.read(
            lambda connection: storage.get_import(connection, job.name)
        )
        dataset = await self._dataset(record)
        existing = EMPTY
        if dataset is not None:
            existing = await self.manifest(dataset.latest)
        threads = self._folder_threads if record.folder else self._upload_threads
        return record, await threads.run(self._ingest, record, existing, report)

    async def _publish(
        self, jobs: JobStore, job: Job, record: ImportRecord, result: IngestResult, report: Report
    ) -> None:
        """Makes the version appear and ends the import, in one step.

        Raises:
            Fenced: It was cancelled, or another attempt holds it.
        """
        contents = await asyncio.to_thread(store_manifest, result.manifest, self.manifests)
        dataset = await self._dataset(record)
        number = dataset.latest.number + 1 if dataset else 1

        def publish(connection: Connection, _: Job) -> None:
            self._check_empty(connection, record)
            version = storage.add_version(
                connection,
                record.owner,
                record.dataset,
                contents,
                now=self._platform.clock.now(),
                etag=self._platform.new_name("etag"),
            )
            # Only this import may write to the dataset, see datasets_imports_one_writer.
            assert version.number == number
            blobs = blobs_of(result.manifest, contents)
            for blob in blobs:
                self._platform.blobs.record(connection, blob)
            set_references(
                connection,
                storage.SERVICE,
                f"version:{record.owner}/{record.dataset}/{number}",
                [blob.digest for blob in blobs],
            )

        await asyncio.to_thread(self._platform.failpoint, "import.before_publish")
        succeeded = NewEvent(kind="succeeded", data={"number": number})
        async with report.taking() as events:
            await jobs.append(
                job.name,
                [*events, succeeded],
                fence=job.fence,
                states={JobState.RUNNING},  # after a cancel nothing is kept
                also=publish,
            )
        await asyncio.to_thread(self._platform.failpoint, "import.published")

    async def manifest(self, version: storage.Version) -> Manifest:
        """Reads a version's manifest.

        Raises:
            DataLoss: Its bytes are damaged or gone.
        """
        try:
            return await asyncio.to_thread(load_manifest, version.digest, self.manifests)
        except (ManifestError, LookupError) as error:
            message = f"the manifest of {version.dataset} version {version.number} is damaged"
            raise DataLoss(Reason.BLOB_CORRUPT, message) from error

    async def _dataset(self, record: ImportRecord) -> storage.Dataset | None:
        return await self._platform.database.read(
            lambda connection: storage.find_dataset(connection, record.owner, record.dataset)
        )

    def _ingest(self, record: ImportRecord, existing: Manifest, report: Report) -> IngestResult:
        with ExitStack() as stack:
            source = self._open_source(record, stack)
            verifier = stack.enter_context(
                ImageVerifier(memory_limit_bytes=self._config.image_memory_limit_bytes)
            )
            return ingest(
                source,
                verifier=verifier,
                blobs=self._platform.blobs.folder,
                existing=existing,
                options=IngestOptions(
                    on_refused="skip" if record.refused_files == "SKIP" else "stop",
                    caption_column=record.caption_column,
                ),
                on_progress=report.progress,
                on_note=report.note,
                cancelled=report.cancelled.is_set,
            )


def blobs_of(manifest: Manifest, contents: VersionContents) -> list[Blob]:
    """Every blob that a version consists of: its images and its manifest."""
    images = [
        Blob(
            digest=sample.image_digest,
            size_bytes=sample.size_bytes,
            media_type=sample.media_type,
        )
        for sample in manifest.samples
    ]
    size_bytes = len(manifest.to_bytes())
    return [
        *images,
        Blob(digest=contents.digest, size_bytes=size_bytes, media_type=MANIFEST_MEDIA_TYPE),
    ]
