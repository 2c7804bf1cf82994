"""The service's end of the worker channel: starts workers, hears them, orders them, misses them.

The channel listens on a loopback port of its own. Its address stands in ``<data_dir>/run``, where a
worker that outlives its service finds the next one. Each worker proves itself with a token that only
its configuration file and a hash in the database hold.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from typing import Any

import grpc
from sqlalchemy import Connection, delete, insert, select

from sfumato.job.v1 import worker_pb2, worker_pb2_grpc
from sfumato_chassis.blobs import flush
from sfumato_chassis.clock import Clock
from sfumato_chassis.database import Database
from sfumato_chassis.executor import Executor, WorkerSpec
from sfumato_chassis.identifiers import NewName
from sfumato_chassis.job_store import Fenced
from sfumato_chassis.jobs import NewEvent
from sfumato_chassis.logging import get_logger
from sfumato_chassis.process import ProcessIdentity
from sfumato_chassis.tables import workers

OnReport = Callable[[str, int, Sequence[tuple[int, NewEvent]]], Awaitable[int]]
"""Takes job, fence and numbered events; answers the number up to which they are in the log."""

log = get_logger(__name__)


@dataclass(eq=False, kw_only=True)
class WorkerHandle:
    """One worker, as its service sees it.

    Attributes:
        worker_id: Its name.
        token_sha256: What its token must hash to.
        process: The process.
        job: The job it was started for; None for one that takes several.
        fence: The fence of that job; 0 without one.
        deadline: Monotonic time until which its lease lasts.
        orders: Newest command of each job, sent again at every attach.
        work: The item it is to do, sent again at every attach.
        changed: Set when orders or work changed, replaced at every attach.
    """

    worker_id: str
    token_sha256: bytes
    process: ProcessIdentity
    job: str | None
    fence: int
    deadline: float
    orders: dict[str, str] = field(default_factory=dict)
    work: worker_pb2.WorkItem | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    attachment: int = 0

    def order(self, command: str, job: str = "") -> None:
        """Sends ``stop``, ``cancel``, ``pause`` or ``drain`` about a job, or to the worker itself."""
        self.orders[job] = command
        self.changed.set()

    def give(self, job: str, fence: int, configuration: Mapping[str, Any]) -> None:
        """Hands over the next job; orders about earlier ones are forgotten."""
        self.orders.clear()
        self.work = worker_pb2.WorkItem(
            job=job,
            fence=fence,
            configuration_json=json.dumps(configuration, allow_nan=False).encode(),
        )
        self.changed.set()


class WorkerChannel(worker_pb2_grpc.WorkerServiceServicer):
    """Workers of one service."""

    def __init__(
        self,
        service: str,
        database: Database,
        executor: Executor,
        *,
        clock: Clock,
        new_name: NewName,
        run_folder: Path,
        lease_seconds: float,
        on_report: OnReport,
    ) -> None:
        self._service = service
        self._database = database
        self._executor = executor
        self._clock = clock
        self._new_name = new_name
        self._run_folder = run_folder
        self._lease_seconds = lease_seconds
        self._on_report = on_report
        self._handles: dict[str, WorkerHandle] = {}
        self._server: grpc.aio.Server | None = None

    @property
    def endpoint_file(self) -> Path:
        """Where workers find the channel's address."""
        return self._run_folder / f"{self._service}.endpoint"

    async def start(self) -> Sequence[WorkerHandle]:
        """Opens the channel; answers the workers of an earlier life that still run."""
        survivors = await self._load_survivors()
        self._handles = {handle.worker_id: handle for handle in survivors}
        server = grpc.aio.server()
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        self._server = server
        await asyncio.to_thread(write_whole, self.endpoint_file, f"127.0.0.1:{port}")
        return survivors

    async def stop(self) -> None:
        """Closes the channel. Workers that run go on until their lease ends."""
        if self._server is not None:
            await self._server.stop(0.2)

    async def launch(
        self,
        module: str,
        configuration: Mapping[str, Any],
        *,
        directory: Path,
        job: str | None = None,
        fence: int = 0,
    ) -> WorkerHandle:
        """Starts a worker.

        Args:
            module: Run as ``python -m module FILE``.
            configuration: What the module needs; the channel's part is added under ``link``.
            directory: For its configuration and log.
            job: The one job that it is for, if so.
            fence: That job's fence.
        """
        worker_id, token = self._new_name("worker"), secrets.token_urlsafe(32)
        link = {
            "endpoint_file": str(self.endpoint_file),
            "worker_id": worker_id,
            "token": token,
            "lease_seconds": self._lease_seconds,
        }
        process = await self._executor.start(
            WorkerSpec(
                worker_id=worker_id,
                module=module,
                configuration={**configuration, "link": link},
                directory=directory,
            )
        )
        handle = WorkerHandle(
            worker_id=worker_id,
            token_sha256=hashlib.sha256(token.encode()).digest(),
            process=process,
            job=job,
            fence=fence,
            deadline=self._clock.monotonic() + self._lease_seconds,
        )
        self._handles[worker_id] = handle
        try:
            await self._database.write(lambda connection: self._record(connection, handle))
        except BaseException:
            self._executor.kill(process)
            del self._handles[worker_id]
            raise
        log.info("worker started", worker=worker_id, pid=process.pid, job=job)
        return handle

    async def wait_gone(self, handle: WorkerHandle) -> None:
        """Returns when the worker is gone: it exited, or it let its lease lapse and was ended."""
        exited = asyncio.ensure_future(self._executor.wait(handle.process))
        try:
            while not exited.done():
                left = handle.deadline - self._clock.monotonic()
                if left <= 0:
                    log.warning("worker lost its lease", worker=handle.worker_id)
                    self._executor.kill(handle.process)
                    await exited
                await asyncio.wait([exited], timeout=max(left, 0))
            exited.result()
        finally:
            exited.cancel()
        await self.forget(handle)

    def kill(self, handle: WorkerHandle) -> None:
        """Ends a worker at once."""
        self._executor.kill(handle.process)

    async def forget(self, handle: WorkerHandle) -> None:
        """Ends what the channel knows of a worker; it is refused from then on."""
        self._handles.pop(handle.worker_id, None)
        handle.changed.set()
        await self._database.write(
            lambda connection: connection.execute(
                delete(workers).where(workers.c.worker_id == handle.worker_id)
            )
        )

    async def Attach(
        self,
        request: worker_pb2.AttachRequest,
        context: grpc.aio.ServicerContext[
            worker_pb2.AttachRequest, AsyncIterator[worker_pb2.AttachResponse]
        ],
    ) -> AsyncIterator[worker_pb2.AttachResponse]:
        handle = await self._authenticate(request.worker_id, request.token, context)
        handle.attachment += 1
        attachment = handle.attachment
        handle.changed.set()
        yield worker_pb2.AttachResponse(opened=worker_pb2.SessionOpened())
        sent_work: worker_pb2.WorkItem | None = None
        sent_orders: dict[str, str] = {}
        while handle.worker_id in self._handles and handle.attachment == attachment:
            handle.changed = changed = asyncio.Event()
            if handle.work is not None and handle.work is not sent_work:
                sent_work, sent_orders = handle.work, {}
                yield worker_pb2.AttachResponse(work=handle.work)
            for job, command in list(handle.orders.items()):
                if sent_orders.get(job) != command:
                    sent_orders[job] = command
                    yield worker_pb2.AttachResponse(
                        command=worker_pb2.WorkCommand(job=job, command=command)
                    )
            await changed.wait()

    async def Report(
        self,
        request: worker_pb2.ReportRequest,
        context: grpc.aio.ServicerContext[
            worker_pb2.ReportRequest, Awaitable[worker_pb2.ReportResponse]
        ],
    ) -> worker_pb2.ReportResponse:
        handle = await self._authenticate(request.worker_id, request.token, context)
        acknowledged = 0
        if request.job:
            events = [(event.local_number, new_event(event)) for event in request.events]
            try:
                acknowledged = await self._on_report(request.job, request.fence, events)
            except Fenced:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "fenced")
            except Exception:
                log.exception("report not appended", job=request.job, worker=handle.worker_id)
                await context.abort(grpc.StatusCode.INTERNAL, "not appended")
        handle.deadline = self._clock.monotonic() + self._lease_seconds
        return worker_pb2.ReportResponse(acknowledged_local_number=acknowledged)

    async def _authenticate(
        self, worker_id: str, token: str, context: grpc.aio.ServicerContext[Any, Any]
    ) -> WorkerHandle:
        handle = self._handles.get(worker_id)
        digest = hashlib.sha256(token.encode()).digest()
        if handle is None or not hmac.compare_digest(handle.token_sha256, digest):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "not a worker of this service")
        assert handle is not None
        return handle

    def _record(self, connection: Connection, handle: WorkerHandle) -> None:
        connection.execute(
            insert(workers).values(
                worker_id=handle.worker_id,
                service=self._service,
                job=handle.job,
                fence=handle.fence,
                token_sha256=handle.token_sha256,
                pid=handle.process.pid,
                start_ticks=handle.process.start_ticks,
                create_time=self._clock.now(),
            )
        )

    async def _load_survivors(self) -> Sequence[WorkerHandle]:
        def work(connection: Connection) -> Sequence[WorkerHandle]:
            survivors = []
            rows = connection.execute(
                select(workers).where(workers.c.service == self._service)
            ).all()
            for row in rows:
                process = ProcessIdentity(pid=row.pid, start_ticks=row.start_ticks)
                if not self._executor.is_alive(process):
                    connection.execute(delete(workers).where(workers.c.worker_id == row.worker_id))
                    continue
                survivors.append(
                    WorkerHandle(
                        worker_id=row.worker_id,
                        token_sha256=row.token_sha256,
                        process=process,
                        job=row.job,
                        fence=row.fence,
                        deadline=self._clock.monotonic() + self._lease_seconds,
                    )
                )
            return survivors

        return await self._database.write(work)


def new_event(event: worker_pb2.WorkerEvent) -> NewEvent:
    """What a worker reports, at the time when it happened there."""
    return NewEvent(
        kind=event.kind,
        data=json.loads(event.data_json),
        time=event.time.ToDatetime(UTC) if event.HasField("time") else None,
    )


def write_whole(path: Path, text: str) -> None:
    """Replaces a small file in one step; its readers see the old text or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    staged.write_text(text, encoding="utf-8")
    flush(staged)
    staged.replace(path)
    flush(path.parent)
