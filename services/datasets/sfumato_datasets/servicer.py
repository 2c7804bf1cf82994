"""``sfumato.datasets.v1.DatasetsService``: converts, delegates, converts."""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy import Connection

from sfumato.datasets.v1 import datasets_pb2, datasets_pb2_grpc, imports_pb2, versions_pb2
from sfumato_chassis.errors import InvalidArgument
from sfumato_chassis.job_messages import interruption_policy, timestamp
from sfumato_chassis.job_queries import select_events
from sfumato_chassis.job_surface import JobSurface
from sfumato_chassis.jobs import Event, InterruptionPolicy, Job
from sfumato_chassis.paging import cut_page, decode_token, page_size, rows_that_fit
from sfumato_chassis.pipeline import current_principal
from sfumato_chassis.platform import Platform
from sfumato_chassis.request_messages import request_of
from sfumato_datasets import messages, storage
from sfumato_datasets.engine import ImportEngine
from sfumato_datasets.library import samples_after
from sfumato_datasets.manifest import Manifest
from sfumato_datasets.names import DatasetNameError, check_dataset_name

DEFAULT_PIN = timedelta(hours=1)
MAX_PIN = timedelta(hours=24)
MAX_NOTES = 500
"""So many stand in an import; the watch has all."""
MIN_PIN = timedelta(seconds=1)


class DatasetsServicer(datasets_pb2_grpc.DatasetsServiceServicer):
    """Datasets and their imports."""

    def __init__(self, platform: Platform, engine: ImportEngine) -> None:
        self._platform = platform
        self._engine = engine
        self._imports = JobSurface(
            platform,
            engine.jobs,
            imports_pb2.Import,
            resource=select_import,
            listed=partial(select_import, with_notes=False),
            event=messages.event_message,
            succeeded=messages.succeeded_message,
        )

    async def CreateImport(
        self, request: imports_pb2.CreateImportRequest, context: Any
    ) -> imports_pb2.CreateImportResponse:
        owner = current_principal().name
        check_name("dataset", request.dataset)
        record = messages.import_record(request, owner)
        if request.validate_only:
            await self._engine.validate(record)
            return imports_pb2.CreateImportResponse(
                import_job=messages.import_message(None, record, None, [])
            )
        policy = interruption_policy(request.interruption_policy, InterruptionPolicy.AUTO)
        job, deduplicated = await self._engine.create(request_of(request, owner), record, policy)
        return imports_pb2.CreateImportResponse(
            import_job=await self._imports.of(job), deduplicated=deduplicated
        )

    async def GetImport(
        self, request: imports_pb2.GetImportRequest, context: Any
    ) -> imports_pb2.GetImportResponse:
        return imports_pb2.GetImportResponse(import_job=await self._imports.get(request.name))

    async def ListImports(
        self, request: imports_pb2.ListImportsRequest, context: Any
    ) -> imports_pb2.ListImportsResponse:
        imports, token = await self._imports.list(request)
        return imports_pb2.ListImportsResponse(imports=imports, next_page_token=token)

    async def WaitImport(
        self, request: imports_pb2.WaitImportRequest, context: Any
    ) -> imports_pb2.WaitImportResponse:
        return imports_pb2.WaitImportResponse(import_job=await self._imports.wait(request))

    def WatchImport(
        self, request: imports_pb2.WatchImportRequest, context: Any
    ) -> AsyncIterator[imports_pb2.WatchImportResponse]:
        return self._imports.watch(request, imports_pb2.WatchImportResponse)

    async def CancelImport(
        self, request: imports_pb2.CancelImportRequest, context: Any
    ) -> imports_pb2.CancelImportResponse:
        job = await self._engine.cancel(request.name, current_principal().name)
        return imports_pb2.CancelImportResponse(import_job=await self._imports.of(job))

    async def DeleteImport(
        self, request: imports_pb2.DeleteImportRequest, context: Any
    ) -> imports_pb2.DeleteImportResponse:
        await self._engine.delete(request.name, current_principal().name)
        return imports_pb2.DeleteImportResponse()

    async def GetDataset(
        self, request: datasets_pb2.GetDatasetRequest, context: Any
    ) -> datasets_pb2.GetDatasetResponse:
        owner = current_principal().name
        dataset = await self._platform.database.read(
            lambda connection: storage.get_dataset(connection, owner, request.name)
        )
        return datasets_pb2.GetDatasetResponse(dataset=messages.dataset_message(dataset))

    async def GetDatasetVersion(
        self, request: datasets_pb2.GetDatasetVersionRequest, context: Any
    ) -> datasets_pb2.GetDatasetVersionResponse:
        owner, reference = current_principal().name, request.version
        version = await self._platform.database.read(
            lambda connection: storage.get_version(
                connection, owner, reference.dataset, version_number(reference)
            )
        )
        return datasets_pb2.GetDatasetVersionResponse(version=messages.version_message(version))

    async def ListDatasetVersions(
        self, request: datasets_pb2.ListDatasetVersionsRequest, context: Any
    ) -> datasets_pb2.ListDatasetVersionsResponse:
        page = await self._platform.database.read(
            partial(
                storage.select_versions,
                owner=current_principal().name,
                dataset=request.dataset,
                size=page_size(request.page_size),
                token=request.page_token,
            )
        )
        return datasets_pb2.ListDatasetVersionsResponse(
            versions=[messages.version_message(version) for version in page.rows],
            next_page_token=page.next_page_token,
        )

    async def ListDatasets(
        self, request: datasets_pb2.ListDatasetsRequest, context: Any
    ) -> datasets_pb2.ListDatasetsResponse:
        page = await self._platform.database.read(
            partial(
                storage.select_datasets,
                owner=current_principal().name,
                size=page_size(request.page_size),
                token=request.page_token,
            )
        )
        return datasets_pb2.ListDatasetsResponse(
            datasets=[messages.dataset_message(dataset) for dataset in page.rows],
            next_page_token=page.next_page_token,
        )

    async def ListSamples(
        self, request: datasets_pb2.ListSamplesRequest, context: Any
    ) -> datasets_pb2.ListSamplesResponse:
        version, manifest = await self._read_version(request.version)
        query = {"list": "sample", "version": version.digest}
        after = ""
        if request.page_token:
            after = str(decode_token(query, request.page_token, [str])[0])
        size = page_size(request.page_size)
        rows = samples_after(manifest, after, size + 1)
        fitting = rows_that_fit(rows[:size], lambda row: messages.sample_message(row).ByteSize())
        page = cut_page(rows, len(fitting), query, lambda sample: [sample.file_name])
        return datasets_pb2.ListSamplesResponse(
            version=messages.version_message(version),
            samples=[messages.sample_message(sample) for sample in page.rows],
            next_page_token=page.next_page_token,
        )

    async def StreamSamples(
        self, request: datasets_pb2.StreamSamplesRequest, context: Any
    ) -> AsyncIterator[datasets_pb2.StreamSamplesResponse]:
        version, manifest = await self._read_version(request.version)
        yield datasets_pb2.StreamSamplesResponse(version=messages.version_message(version))
        for sample in manifest.samples:
            yield datasets_pb2.StreamSamplesResponse(sample=messages.sample_message(sample))

    async def PinVersion(
        self, request: datasets_pb2.PinVersionRequest, context: Any
    ) -> datasets_pb2.PinVersionResponse:
        lease = request.lease.ToTimedelta() if request.HasField("lease") else DEFAULT_PIN
        if not MIN_PIN <= lease <= MAX_PIN:
            raise InvalidArgument.field("lease", "must be 1 s to 24 h")
        owner, now = current_principal().name, self._platform.clock.now()
        version, expire_time = await self._platform.database.write(
            lambda connection: storage.pin_version(
                connection,
                owner,
                request.version.dataset,
                version_number(request.version),
                holder=request.holder,
                now=now,
                lease=lease,
            )
        )
        return datasets_pb2.PinVersionResponse(
            version=messages.version_message(version), expire_time=timestamp(expire_time)
        )

    async def UnpinVersion(
        self, request: datasets_pb2.UnpinVersionRequest, context: Any
    ) -> datasets_pb2.UnpinVersionResponse:
        number = version_number(request.version)
        if number is None:
            raise InvalidArgument.field("version.number", "must be set")
        owner = current_principal().name
        await self._platform.database.write(
            lambda connection: storage.unpin_version(
                connection, owner, request.version.dataset, number, holder=request.holder
            )
        )
        return datasets_pb2.UnpinVersionResponse()

    async def _read_version(
        self, reference: versions_pb2.VersionRef
    ) -> tuple[storage.Version, Manifest]:
        owner = current_principal().name
        version = await self._platform.database.read(
            lambda connection: storage.get_version(
                connection, owner, reference.dataset, version_number(reference)
            )
        )
        return version, await self._engine.importer.manifest(version)


def select_import(
    connection: Connection, job: Job, *, with_notes: bool = True
) -> imports_pb2.Import:
    """The whole import of a job."""
    record = storage.get_import(connection, job.name)
    notes: Sequence[Event] = ()
    if with_notes and record.num_notes:
        notes = select_events(connection, job.name, 0, kind="note", limit=MAX_NOTES)
    return messages.import_message(job, record, made_version(connection, record), notes)


def made_version(connection: Connection, record: storage.ImportRecord) -> storage.Version | None:
    """The version that an import made, if it has."""
    if record.version_number is None:
        return None
    return storage.get_version(connection, record.owner, record.dataset, record.version_number)


def version_number(reference: versions_pb2.VersionRef) -> int | None:
    """The number in a reference; None for the latest."""
    return reference.number if reference.HasField("number") else None


def check_name(field: str, name: str) -> None:
    """Raises InvalidArgument for what cannot be the name of a dataset."""
    try:
        check_dataset_name(name)
    except DatasetNameError as error:
        raise InvalidArgument.field(field, str(error)) from error
