"""The service's end of the worker channel: starts workers, hears them, orders them, misses them.

The channel listens on a loopback port of its own. Its address stands in ``<data_dir>/run``, where a
worker that outlives its service finds the next one. Each worker proves itself with a token that only
its configuration file and a hash in the database hold. The file lies in ``<data_dir>/run/<service>`` and
is removed once the worker is gone.

A worker goes on for as long as its lease lasts, and has some time after that to come to rest. One that
was told to end and does not is ended: what it had not saved is lost, and whoever waits for its device
gets it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
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

CANCEL_SECONDS = 8.0
"""How long a worker may take to obey a cancel; with its end, the device is free within 10 s."""

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
        exit_by: Monotonic time at which it is ended, whatever it does.
        orders: Newest command of each job, sent again at every attach.
        work: The item it is to do, sent again at every attach.
        changed: Set when orders or work changed, replaced at every attach.
        exit_by_changed: Set when ``exit_by`` came nearer.
    """

    worker_id: str
    token_sha256: bytes
    process: ProcessIdentity
    job: str | None
    fence: int
    deadline: float
    exit_by: float = math.inf
    orders: dict[str, str] = field(default_factory=dict)
    work: worker_pb2.WorkItem | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    exit_by_changed: asyncio.Event = field(default_factory=asyncio.Event)
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
    """Workers of one service.

    Args:
        lease_seconds: How long a worker goes on without an answer.
        rest_seconds: How long it may take to come to rest after that; then it ends itself.
    """

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
        rest_seconds: float,
        on_report: OnReport,
    ) -> None:
        self._service = service
        self._database = database
        self._executor = executor
        self._clock = clock
        self._new_name = new_name
        self._run_folder = run_folder
        self._lease_seconds = lease_seconds
        self._rest_seconds = rest_seconds
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
        for file in self._configuration_file("*").parent.glob("*.json"):
            if file.stem not in self._handles:
                file.unlink()
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
        log_folder: Path,
        job: str | None = None,
        fence: int = 0,
    ) -> WorkerHandle:
        """Starts a worker.

        Args:
            module: Run as ``python -m module FILE``.
            configuration: What it needs; the channel's part is added under ``link``.
            log_folder: For its log.
            job: The one job that it is for, if so; ``fence`` is that job's.

        Raises:
            OSError, DBAPIError: It could not be started, or not be noted and was ended.
        """
        worker_id, token = self._new_name("worker"), secrets.token_urlsafe(32)
        deadline = self._clock.monotonic() + self._lease_seconds
        link = {
            "endpoint_file": str(self.endpoint_file),
            "worker_id": worker_id,
            "token": token,
            "lease_seconds": self._lease_seconds,
            "rest_seconds": self._rest_seconds,
            "deadline": deadline,
        }
        spec = WorkerSpec(
            worker_id=worker_id,
            module=module,
            configuration={**configuration, "link": link},
            configuration_file=self._configuration_file(worker_id),
            log_folder=log_folder,
        )
        process: ProcessIdentity | None = None
        try:
            process = await self._executor.start(spec)
            handle = WorkerHandle(
                worker_id=worker_id,
                token_sha256=hashlib.sha256(token.encode()).digest(),
                process=process,
                job=job,
                fence=fence,
                deadline=deadline,
            )
            self._handles[worker_id] = handle
            await self._database.write(lambda connection: self._record(connection, handle))
        except BaseException:
            # Nobody would attend it.
            self._handles.pop(worker_id, None)
            if process is not None:
                self._executor.kill(process)
                await self._executor.wait(process)
            spec.configuration_file.unlink(missing_ok=True)
            raise
        log.info("worker started", worker=worker_id, pid=process.pid, job=job)
        return handle

    async def wait_gone(self, handle: WorkerHandle) -> None:
        """Returns when the worker is gone: it exited, or its time was up and it was ended.

        Its time is up when it has not come to rest after its lease lapsed, or does not leave when it
        is sent away.
        """
        exited = asyncio.ensure_future(self._executor.wait(handle.process))
        try:
            while not exited.done():
                handle.exit_by_changed.clear()
                at_rest_by = handle.deadline + self._rest_seconds
                left = min(at_rest_by, handle.exit_by) - self._clock.monotonic()
                if left > 0:
                    await first_of(exited, self._clock.sleep(left), handle.exit_by_changed.wait())
                else:
                    log.warning("worker hangs and is ended", worker=handle.worker_id)
                    self._executor.kill(handle.process)
                    await exited
            exited.result()
        finally:
            exited.cancel()
        await self.forget(handle)

    def send_away(
        self, handle: WorkerHandle, command: str, *, within_seconds: float, job: str = ""
    ) -> None:
        """Orders a worker to end; if it still runs after so long, it is ended. Safe to repeat."""
        handle.order(command, job)
        handle.exit_by = min(handle.exit_by, self._clock.monotonic() + within_seconds)
        handle.exit_by_changed.set()

    def kill(self, handle: WorkerHandle) -> None:
        """Ends a worker at once."""
        self._executor.kill(handle.process)

    async def end(self, handle: WorkerHandle) -> None:
        """Ends a worker at once; returns when its process is gone."""
        self._executor.kill(handle.process)
        await self._executor.wait(handle.process)

    async def forget(self, handle: WorkerHandle) -> None:
        """Ends what the channel knows of a worker; it is refused from then on."""
        self._handles.pop(handle.worker_id, None)
        handle.changed.set()
        self._configuration_file(handle.worker_id).unlink(missing_ok=True)
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
        handle.deadline = self._clock.monotonic() + self._lease_seconds
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

    def _configuration_file(self, worker_id: str) -> Path:
        return self._run_folder / self._service / f"{worker_id}.json"

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


async def first_of(work: asyncio.Future[Any], *others: Coroutine[Any, Any, Any]) -> None:
    """Returns when ``work`` or one of the others is done; the others are not continued after that."""
    tasks = [asyncio.ensure_future(other) for other in others]
    try:
        await asyncio.wait([work, *tasks], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


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
    try:
        staged.write_text(text, encoding="utf-8")
        flush(staged)
        staged.replace(path)
    except OSError:
        staged.unlink(missing_ok=True)
        raise
    flush(path.parent)
