"""The worker's end of the worker channel.

A background thread keeps the session: it sends events in order until each is acknowledged, renews the
lease, takes orders, and finds the service again after it was restarted. The worker's own thread only
puts events in and looks at flags.
"""

import asyncio
import json
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from sfumato.job.v1 import worker_pb2, worker_pb2_grpc
from sfumato_chassis.logging import get_logger

RETRY_SECONDS = 0.2
RENEWALS_PER_LEASE = 6
MAX_RENEWAL_SECONDS = 2.0
MAX_EVENTS_A_REPORT = 200
EXIT_LAPSED = 5
EXIT_BROKEN = 6
REPORT_TIMEOUT_SECONDS = 10.0
FLUSH_POLL_SECONDS = 0.1
STILL_THERE = frozenset({grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.INTERNAL})
"""What a service answers that is slow or has met a fault, but is not gone."""
REFUSED = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.FAILED_PRECONDITION})

log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLink:
    """How a worker reaches its service; ``link`` in its configuration.

    Attributes:
        lease_seconds: How long it goes on after each answer.
        rest_seconds: How long it may take to come to rest when its lease has lapsed.
        deadline: Monotonic time of this machine until which its first lease lasts.
    """

    endpoint_file: Path
    worker_id: str
    token: str
    lease_seconds: float
    rest_seconds: float
    deadline: float

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "WorkerLink":
        """From the JSON of the configuration."""
        return cls(
            endpoint_file=Path(values["endpoint_file"]),
            worker_id=values["worker_id"],
            token=values["token"],
            lease_seconds=values["lease_seconds"],
            rest_seconds=values["rest_seconds"],
            deadline=values["deadline"],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One job to do."""

    job: str
    fence: int
    configuration: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pending:
    job: str
    fence: int
    event: worker_pb2.WorkerEvent


class WorkerSession:
    """A worker's connection to its service.

    Args:
        link: From the worker's configuration.
        outlives_service: Whether to go on without the service for as long as the lease lasts. If
            not, the process ends as soon as the service is gone.
    """

    def __init__(self, link: WorkerLink, *, outlives_service: bool) -> None:
        self._link = link
        self._outlives_service = outlives_service
        self._lock = threading.Lock()
        self._pending: deque[_Pending] = deque()
        self._numbers: dict[tuple[str, int], int] = {}
        self._orders: dict[str, str] = {}
        self._work: queue.Queue[Work] = queue.Queue()
        self._taken: set[tuple[str, int]] = set()
        self._deadline = link.deadline
        self._refused = False
        self._idle = threading.Event()
        self._idle.set()
        self._loop = asyncio.new_event_loop()
        self._wake = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="worker-session", daemon=True)

    def start(self) -> None:
        """Opens the session."""
        self._thread.start()

    def emit(self, job: str, fence: int, kind: str, data: Mapping[str, Any]) -> None:
        """Queues an event. It is sent in order and again until it is in the log.

        Raises:
            ValueError: A number in ``data`` is not finite.
        """
        encoded = json.dumps(dict(data), allow_nan=False).encode()
        with self._lock:
            number = self._numbers.get((job, fence), 0) + 1
            self._numbers[job, fence] = number
            event = worker_pb2.WorkerEvent(local_number=number, kind=kind, data_json=encoded)
            event.time.GetCurrentTime()
            self._pending.append(_Pending(job=job, fence=fence, event=event))
            self._idle.clear()
        self._loop.call_soon_threadsafe(self._wake.set)

    def command(self, job: str) -> str:
        """The newest order about ``job`` or to this worker; ``none`` without one.

        A lapsed lease reads as ``drain``.
        """
        with self._lock:
            order = self._orders.get(job) or self._orders.get("")
        return order or ("drain" if self.lease_lapsed else "none")

    @property
    def fenced(self) -> bool:
        """Whether the service has given the work to another: nothing may be written any more."""
        return self._refused

    @property
    def lease_lapsed(self) -> bool:
        """Whether the service did not answer for as long as the lease lasts."""
        return time.monotonic() > self._deadline

    def next_work(self, timeout_seconds: float) -> Work | None:
        """The next job, or None when none came in time."""
        try:
            return self._work.get(timeout=timeout_seconds)
        except queue.Empty:
            return None

    def flush(self) -> bool:
        """Waits until every event is in the log, for as long as the lease lasts; answers whether it is."""
        while not self._idle.wait(FLUSH_POLL_SECONDS):
            if self._refused or self.lease_lapsed:
                return False
        return True

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._live())
        except BaseException:
            # Without its session nobody hears of the work, and nobody could end it.
            log.exception("the session broke")
            os._exit(EXIT_BROKEN)

    async def _live(self) -> None:
        await asyncio.gather(self._keep(), self._guard())

    async def _guard(self) -> None:
        """Ends the process when it has not come to rest: its device may be another's from then on."""
        rest = self._link.rest_seconds
        while (left := self._deadline + rest - time.monotonic()) > 0:  # noqa: ASYNC110 - no one tells
            await asyncio.sleep(left)
        os._exit(EXIT_LAPSED)

    async def _keep(self) -> None:
        while not self._refused:
            try:
                address = self._link.endpoint_file.read_text(encoding="utf-8")
                async with grpc.aio.insecure_channel(address) as channel:
                    await self._converse(worker_pb2_grpc.WorkerServiceStub(channel))
            except grpc.aio.AioRpcError as error:
                self._refused = self._refused or error.code() in REFUSED
                gone = error.code() not in STILL_THERE
            except OSError:
                gone = True
            else:
                gone = True
            if gone and not self._outlives_service:
                # Nothing that this process holds is worth saving.
                os._exit(0)
            await asyncio.sleep(RETRY_SECONDS)

    async def _converse(self, stub: worker_pb2_grpc.WorkerServiceStub) -> None:
        """Runs the session until the connection is lost."""
        both = [
            asyncio.ensure_future(self._take_orders(stub)),
            asyncio.ensure_future(self._send_events(stub)),
        ]
        try:
            done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _take_orders(self, stub: worker_pb2_grpc.WorkerServiceStub) -> None:
        request = worker_pb2.AttachRequest(worker_id=self._link.worker_id, token=self._link.token)
        async for message in stub.Attach(request):
            if message.HasField("command"):
                with self._lock:
                    self._orders[message.command.job] = message.command.command
            elif message.HasField("work"):
                item = message.work
                if (item.job, item.fence) not in self._taken:
                    self._taken.add((item.job, item.fence))
                    configuration = json.loads(item.configuration_json)
                    self._work.put(
                        Work(job=item.job, fence=item.fence, configuration=configuration)
                    )

    async def _send_events(self, stub: worker_pb2_grpc.WorkerServiceStub) -> None:
        renewal = min(self._link.lease_seconds / RENEWALS_PER_LEASE, MAX_RENEWAL_SECONDS)
        while True:
            self._wake.clear()
            request = self._next_report()
            sent = time.monotonic()
            try:
                answer = await stub.Report(request, timeout=REPORT_TIMEOUT_SECONDS)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.INTERNAL:
                    # The service is there and counts it, although it could not take the events.
                    self._deadline = sent + self._link.lease_seconds
                raise
            self._deadline = sent + self._link.lease_seconds
            if self._acknowledge(request, answer.acknowledged_local_number):
                continue
            try:
                async with asyncio.timeout(renewal):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _next_report(self) -> worker_pb2.ReportRequest:
        """Pending events of the first job in line; none only renews the lease."""
        request = worker_pb2.ReportRequest(worker_id=self._link.worker_id, token=self._link.token)
        with self._lock:
            for pending in self._pending:
                if len(request.events) == MAX_EVENTS_A_REPORT:
                    break
                if request.job and (request.job, request.fence) != (pending.job, pending.fence):
                    break
                request.job, request.fence = pending.job, pending.fence
                request.events.append(pending.event)
        return request

    def _acknowledge(self, request: worker_pb2.ReportRequest, number: int) -> bool:
        """Drops what is in the log; answers whether more is pending."""
        with self._lock:
            while (
                request.job
                and self._pending
                and (self._pending[0].job, self._pending[0].fence) == (request.job, request.fence)
                and self._pending[0].event.local_number <= number
            ):
                self._pending.popleft()
            if not self._pending:
                self._idle.set()
            return bool(self._pending)
