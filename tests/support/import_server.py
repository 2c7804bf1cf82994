"""A small honest DatasetsService that keeps one import's log in memory, and can be told to misbehave."""

# ruff: noqa: N802  # methods are named by gRPC
from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
from google.protobuf.duration_pb2 import Duration

from sfumato.datasets.v1 import datasets_pb2_grpc, imports_pb2
from sfumato.job.v1 import job_pb2
from statuses import status

Response = imports_pb2.WatchImportResponse
WatchScript = Callable[[imports_pb2.WatchImportRequest], AsyncIterator[Response]]
IMPORT = "import-1"


class ImportServer(datasets_pb2_grpc.DatasetsServiceServicer):
    """Holds one import. `append` and `finish` move it on; watchers see it at once.

    Attributes:
        scripts: each next Watch plays one of these in place of the honest answer.
        create_refusals, wait_refusals: each next call is refused with one of these.
        on_created: awaited after a create was recorded and before it is answered.
        requests: requests of all Watch calls so far.
        peers: who called, by method.
    """

    def __init__(self, *, heartbeat_seconds: float = 10.0) -> None:
        self.heartbeat_seconds = heartbeat_seconds
        self.log_id = "log-1"
        self.first_sequence = 1
        self.events: list[imports_pb2.ImportEvent] = []
        self.state = job_pb2.JOB_STATE_RUNNING
        self.scripts: deque[WatchScript] = deque()
        self.on_created: Callable[[], Awaitable[None]] | None = None
        self.create_refusals: deque[grpc.Status] = deque()
        self.wait_refusals: deque[grpc.Status] = deque()
        self.created: dict[str, imports_pb2.CreateImportRequest] = {}
        self.num_create_calls = 0
        self.requests: list[imports_pb2.WatchImportRequest] = []
        self.peers: dict[str, set[str]] = {"watch": set(), "unary": set()}
        self.metadata: list[tuple[str, str]] = []
        self._changed = asyncio.Condition()

    async def append(self, count: int = 1) -> None:
        """Appends progress events."""
        async with self._changed:
            for _ in range(count):
                sequence = len(self.events) + 1
                self.events.append(progress_event(sequence))
            self._changed.notify_all()

    async def finish(self, state: job_pb2.JobState.ValueType = job_pb2.JOB_STATE_SUCCEEDED) -> None:
        """Appends the terminal event."""
        async with self._changed:
            event = imports_pb2.ImportEvent(
                header=job_pb2.EventHeader(sequence=len(self.events) + 1)
            )
            event.succeeded.number = 1
            self.events.append(event)
            self.state = state
            self._changed.notify_all()

    def resource(self) -> imports_pb2.Import:
        """The import as it stands."""
        return imports_pb2.Import(
            name=IMPORT,
            dataset="cats",
            status=job_pb2.JobStatus(
                state=self.state,
                log_id=self.log_id,
                first_sequence=self.first_sequence,
                last_sequence=len(self.events),
            ),
        )

    def attached(self) -> Response:
        """The first message of a watch."""
        interval = Duration(
            seconds=int(self.heartbeat_seconds), nanos=int(self.heartbeat_seconds % 1 * 1e9)
        )
        return Response(
            attached=job_pb2.Attached(status=self.resource().status, heartbeat_interval=interval)
        )

    def event(self, sequence: int) -> Response:
        """One event of the log as a message."""
        return Response(event=self.events[sequence - 1])

    async def WatchImport(
        self,
        request: imports_pb2.WatchImportRequest,
        context: grpc.aio.ServicerContext[imports_pb2.WatchImportRequest, Response],
    ) -> AsyncIterator[Response]:
        self.requests.append(request)
        self.peers["watch"].add(context.peer())
        if self.scripts:
            async for message in self.scripts.popleft()(request):
                yield message
            return
        cursor = request.after_sequence
        if cursor > len(self.events) or (cursor and request.log_id != self.log_id):
            await context.abort_with_status(
                status(grpc.StatusCode.OUT_OF_RANGE, reason="EVENT_LOG_CHANGED")
            )
        async for message in self.watch(cursor, replay=request.replay):
            yield message

    async def watch(self, cursor: int, *, replay: bool) -> AsyncIterator[Response]:
        """The honest messages of a watch."""
        yield self.attached()
        if cursor + 1 < self.first_sequence or (cursor == 0 and not replay):
            snapshot = self.resource()
            yield Response(snapshot=snapshot)
            cursor = snapshot.status.last_sequence
        while True:
            while cursor < len(self.events):
                cursor += 1
                yield self.event(cursor)
            if self.state != job_pb2.JOB_STATE_RUNNING:
                yield Response(finished=self.resource())
                return
            try:
                async with asyncio.timeout(self.heartbeat_seconds), self._changed:
                    await self._changed.wait()
            except TimeoutError:
                yield Response(heartbeat=job_pb2.Heartbeat(delivered_sequence=cursor))

    async def CreateImport(
        self,
        request: imports_pb2.CreateImportRequest,
        context: grpc.aio.ServicerContext[
            imports_pb2.CreateImportRequest, imports_pb2.CreateImportResponse
        ],
    ) -> imports_pb2.CreateImportResponse:
        self.num_create_calls += 1
        self.peers["unary"].add(context.peer())
        if self.create_refusals:
            await context.abort_with_status(self.create_refusals.popleft())
        if request.validate_only:
            return imports_pb2.CreateImportResponse(import_job=self.resource())
        deduplicated = request.request_id in self.created
        self.created[request.request_id] = request
        if self.on_created is not None:
            await self.on_created()
        return imports_pb2.CreateImportResponse(
            deduplicated=deduplicated, import_job=self.resource()
        )

    async def GetImport(
        self,
        request: imports_pb2.GetImportRequest,
        context: grpc.aio.ServicerContext[
            imports_pb2.GetImportRequest, imports_pb2.GetImportResponse
        ],
    ) -> imports_pb2.GetImportResponse:
        self.peers["unary"].add(context.peer())
        self.metadata = list(context.invocation_metadata() or ())
        if request.name != IMPORT:
            await context.abort_with_status(
                status(
                    grpc.StatusCode.NOT_FOUND,
                    reason="RESOURCE_NOT_FOUND",
                    message=f"no import {request.name}",
                )
            )
        return imports_pb2.GetImportResponse(import_job=self.resource())

    async def WaitImport(
        self,
        request: imports_pb2.WaitImportRequest,
        context: grpc.aio.ServicerContext[
            imports_pb2.WaitImportRequest, imports_pb2.WaitImportResponse
        ],
    ) -> imports_pb2.WaitImportResponse:
        if self.wait_refusals:
            await context.abort_with_status(self.wait_refusals.popleft())
        async with self._changed:
            if self.state == job_pb2.JOB_STATE_RUNNING and request.timeout.ToNanoseconds():
                await self._changed.wait()
        return imports_pb2.WaitImportResponse(import_job=self.resource())

    async def ListImports(
        self,
        request: imports_pb2.ListImportsRequest,
        context: grpc.aio.ServicerContext[
            imports_pb2.ListImportsRequest, imports_pb2.ListImportsResponse
        ],
    ) -> imports_pb2.ListImportsResponse:
        """Three pages of two."""
        page = int(request.page_token or 0)
        imports = [imports_pb2.Import(name=f"import-{page * 2 + index}") for index in (0, 1)]
        return imports_pb2.ListImportsResponse(
            imports=imports, next_page_token=str(page + 1) if page < 2 else ""
        )


def progress_event(sequence: int) -> imports_pb2.ImportEvent:
    """An event with its number as its content."""
    event = imports_pb2.ImportEvent(header=job_pb2.EventHeader(sequence=sequence))
    event.progress.num_files_done = sequence
    event.progress.num_files = 1_000_000
    return event
