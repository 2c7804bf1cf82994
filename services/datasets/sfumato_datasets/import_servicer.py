"""The methods of imports: convert, delegate, convert."""

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection

from sfumato.datasets.v1 import datasets_pb2_grpc, imports_pb2
from sfumato_chassis.errors import InvalidArgument
from sfumato_chassis.job_messages import interruption_policy
from sfumato_chassis.job_queries import select_events
from sfumato_chassis.job_surface import JobSurface
from sfumato_chassis.jobs import Event, InterruptionPolicy, Job
from sfumato_chassis.pipeline import current_principal
from sfumato_chassis.platform import Platform
from sfumato_chassis.request_messages import request_of
from sfumato_datasets import import_rows, messages, storage
from sfumato_datasets.engine import ImportEngine
from sfumato_datasets.names import DatasetNameError, check_dataset_name

MAX_NOTES = 500
"""So many stand in an import; the watch has all."""


class ImportMethods(datasets_pb2_grpc.DatasetsServiceServicer):
    """Imports, from request to report."""

    def __init__(self, platform: Platform, engine: ImportEngine) -> None:
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


def select_import(
    connection: Connection, job: Job, *, with_notes: bool = True
) -> imports_pb2.Import:
    """The whole import of a job."""
    record = import_rows.get_import(connection, job.name)
    # What it made may be gone by now.
    made = record.version_number is not None
    version = storage.find_version_by(connection, job.name) if made else None
    notes: Sequence[Event] = ()
    if with_notes and record.num_notes:
        # Each attempt says again what holds of a file.
        begun = select_events(connection, job.name, 0, kind="started")[-1].sequence
        notes = select_events(connection, job.name, begun, kind="note", limit=MAX_NOTES)
    return messages.import_message(job, record, version, notes)


def check_name(field: str, name: str) -> None:
    """Raises InvalidArgument for what cannot be the name of a dataset."""
    try:
        check_dataset_name(name)
    except DatasetNameError as error:
        raise InvalidArgument.field(field, str(error)) from error
