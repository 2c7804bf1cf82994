"""One import: what it may begin with, what it does, how its version appears."""

import asyncio
from collections.abc import Mapping

from sqlalchemy import Connection

from sfumato_chassis.blobs import first_missing
from sfumato_chassis.errors import FailedPrecondition, JobFailure, NotFound, Reason
from sfumato_chassis.job_store import JobStore
from sfumato_chassis.jobs import Job, JobState, NewEvent
from sfumato_chassis.platform import Platform
from sfumato_chassis.threads import Threads
from sfumato_datasets import storage
from sfumato_datasets.archives import ArchiveError
from sfumato_datasets.config import DatasetsConfig
from sfumato_datasets.hub_request import HubCancelledError, HubError
from sfumato_datasets.image_rows import find_image, find_images
from sfumato_datasets.images import StoredImage
from sfumato_datasets.import_rows import ImportRecord, get_import, set_fence
from sfumato_datasets.ingest import (
    EMPTY,
    FilesRefusedError,
    IngestCancelledError,
    IngestResult,
    NothingImportedError,
    ingest,
)
from sfumato_datasets.intake import IngestOptions
from sfumato_datasets.library import DatasetNotEmptyError, ImportMode, check_mode
from sfumato_datasets.locks import check_held, check_unlocked, renew_lock, take_lock
from sfumato_datasets.manifest import Manifest
from sfumato_datasets.opening import SourceOpener
from sfumato_datasets.reading import Reading
from sfumato_datasets.report import Report
from sfumato_datasets.verifier_pool import VerifierPool
from sfumato_datasets.versions import NextVersion, PreparedVersion, prepare_version, publish_version


class Importer:
    """Does imports, one at a time for each caller."""

    def __init__(self, platform: Platform, config: DatasetsConfig, reading: Reading) -> None:
        self._platform = platform
        self._config = config
        self._reading = reading
        self._sources = SourceOpener(platform, config)
        # Apart, since folders and the network can hang and uploads cannot.
        self._source_threads = Threads("import-source", limit=config.max_concurrent_imports)
        self._upload_threads = Threads("import-upload", limit=config.max_concurrent_imports)

    def check_source(self, record: ImportRecord) -> None:
        """Raises NotFound where the folder is not there. Can take long."""
        self._sources.check(record)

    def check(self, connection: Connection, record: ImportRecord) -> None:
        """Refuses what cannot begin, inside a transaction.

        Raises:
            FailedPrecondition: DATASET_NOT_EMPTY or DELETION_PENDING.
            Aborted: DATASET_BUSY.
            NotFound: An upload is not there.
        """
        now = self._platform.clock.now()
        check_unlocked(connection, record.owner, record.dataset, now=now)
        self._check_dataset(connection, record)
        missing = first_missing(connection, [digest for _, digest in record.uploads])
        if missing is not None:
            raise NotFound.resource("blob", missing)

    def _check_dataset(self, connection: Connection, record: ImportRecord) -> int:
        """Checks that the dataset takes the import; answers the number of its latest version."""
        dataset = storage.find_dataset(connection, record.owner, record.dataset)
        storage.check_takes_new(dataset)
        try:
            check_mode(ImportMode(record.mode), dataset.latest.contents if dataset else None)
        except DatasetNotEmptyError as error:
            raise FailedPrecondition(Reason.DATASET_NOT_EMPTY, str(error)) from error
        return dataset.latest.number if dataset else 0

    async def run(self, jobs: JobStore, job: Job, report: Report) -> JobFailure | None:
        """Does an import.

        Returns:
            Why there is no new version; None when there is one, or when the import was cancelled.

        Raises:
            Fenced: It was cancelled at the last moment, or another attempt holds it.
            SfumatoError: What it needs is not there, or not in a state that allows it.
        """
        record = await self._platform.database.write(lambda connection: self._hold(connection, job))
        await asyncio.to_thread(self._platform.failpoint, "import.held")
        try:
            base, existing, result = await self._read(record, report)
        except FilesRefusedError as error:
            return JobFailure(reason=Reason.FILES_REFUSED, message=str(error))
        except NothingImportedError as error:
            return JobFailure(reason=Reason.DATASET_EMPTY, message=str(error))
        except (ArchiveError, HubError) as error:
            if report.cancelled.is_set():
                return None
            return JobFailure(reason=Reason(error.reason), message=str(error))
        except (IngestCancelledError, HubCancelledError):
            return None
        images = {**existing, **{image.digest: image for image in result.images}}
        prepared = await asyncio.to_thread(
            prepare_version,
            result.manifest,
            images,
            self._platform.blobs.folder,
            num_changed=result.num_accepted,
        )
        await self._publish(jobs, job, record, base, prepared, report)
        return None

    def _hold(self, connection: Connection, job: Job) -> ImportRecord:
        """The import, holding its dataset. Raises Aborted where another took it meanwhile."""
        record = get_import(connection, job.name)
        owner, dataset, now = record.owner, record.dataset, self._platform.clock.now()
        if renew_lock(connection, owner, dataset, holder=job.name, fence=record.fence, now=now):
            return record
        lease = take_lock(connection, owner, dataset, holder=job.name, now=now)
        return set_fence(connection, record, lease.fence)

    async def _read(
        self, record: ImportRecord, report: Report
    ) -> tuple[int, Mapping[str, StoredImage], IngestResult]:
        """Reads, verifies and stores every file; the version is not there yet.

        Returns:
            The number of the version that it is added to, what is known of that one's images, and what
            was read.
        """
        dataset = await self._platform.database.read(
            lambda connection: storage.find_dataset(connection, record.owner, record.dataset)
        )
        existing, base = EMPTY, 0
        if dataset is not None:
            existing, base = await self._reading.manifest(dataset.latest), dataset.latest.number
        digests = [sample.image_digest for sample in existing.samples]
        known = await self._platform.database.read(
            lambda connection: find_images(connection, digests)
        )
        threads = self._source_threads if not record.uploads else self._upload_threads
        loop = asyncio.get_running_loop()
        return base, known, await threads.run(self._ingest, record, existing, report, loop)

    async def _publish(
        self,
        jobs: JobStore,
        job: Job,
        record: ImportRecord,
        base: int,
        prepared: PreparedVersion,
        report: Report,
    ) -> None:
        """Makes the version appear and ends the import, in one step.

        Raises:
            Fenced: It was cancelled, or another attempt holds it.
            Aborted: DATASET_BUSY or ETAG_MISMATCH, another has taken the dataset or changed it.
        """
        place = NextVersion(
            owner=record.owner,
            dataset=record.dataset,
            number=base + 1,
            created_by=job.name,
            etag=self._platform.new_name("etag"),
            now=self._platform.clock.now(),
        )

        def publish(connection: Connection, _: Job) -> None:
            check_held(
                connection, record.owner, record.dataset, holder=job.name, fence=record.fence
            )
            self._check_dataset(connection, record)
            publish_version(connection, prepared, place, self._platform.blobs)
            self._platform.failpoint("import.before_commit")

        await asyncio.to_thread(self._platform.failpoint, "import.before_publish")
        succeeded = NewEvent(kind="succeeded", data={"number": place.number})
        async with report.taking() as events:
            await jobs.append(
                job.name,
                [*events, succeeded],
                fence=job.fence,
                states={JobState.RUNNING},  # after a cancel nothing is kept
                also=publish,
            )
        await asyncio.to_thread(self._platform.failpoint, "import.published")

    def _ingest(
        self,
        record: ImportRecord,
        existing: Manifest,
        report: Report,
        loop: asyncio.AbstractEventLoop,
    ) -> IngestResult:
        def known(digest: str) -> StoredImage | None:
            if not self._platform.blobs.folder.path(digest).exists():
                return None  # spares a new image the way to the database
            found = self._platform.database.read(lambda connection: find_image(connection, digest))
            return asyncio.run_coroutine_threadsafe(found, loop).result()

        with (
            self._sources.open(record, report) as source,
            VerifierPool(
                num_verifiers=self._config.num_verifiers,
                memory_limit_bytes=self._config.image_memory_limit_bytes,
            ) as verifiers,
        ):
            return ingest(
                source,
                verifiers=verifiers,
                blobs=self._platform.blobs.folder,
                existing=existing,
                options=IngestOptions(
                    on_refused="skip" if record.refused_files == "SKIP" else "stop",
                    caption_column=record.caption_column,
                    all_captions=record.all_captions,
                ),
                known=known,
                on_progress=report.progress,
                on_note=report.note,
                cancelled=report.cancelled.is_set,
            )
