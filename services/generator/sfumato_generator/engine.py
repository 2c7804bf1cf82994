"""Queue and life of generations: first in, first out, one at a time on the device.

The worker owns the numerics; this side owns the truth: it appends what the worker reports, notices when
the worker is gone, and decides by the generation's policy what follows. The device is shared with the
trainer: when somebody else asks for it, the running generation is finished first, then it is left.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from sfumato_chassis import unexpected_errors
from sfumato_chassis.background import BackgroundTasks, keep_running
from sfumato_chassis.errors import FailedPrecondition, JobFailure, NotFound, Reason
from sfumato_chassis.job_control import cancel_job, check_queue
from sfumato_chassis.job_store import Fenced, JobStore
from sfumato_chassis.jobs import (
    ACTIVE,
    InterruptionPolicy,
    Job,
    JobKind,
    NewEvent,
    failed_event,
)
from sfumato_chassis.leases import Held
from sfumato_chassis.logging import get_logger, log_context
from sfumato_chassis.platform import Platform
from sfumato_chassis.requests import Request
from sfumato_chassis.worker_channel import CANCEL_SECONDS, WorkerHandle
from sfumato_generator import storage
from sfumato_generator.attempts import SERVICE_DIED, SERVICE_STOPPED, WORKER_DIED, close_attempt
from sfumato_generator.config import GeneratorConfig
from sfumato_generator.configuration import GenerationRequest
from sfumato_generator.device import POLL_SECONDS, Device
from sfumato_generator.gallery import Gallery
from sfumato_generator.plan import GenerationPlan
from sfumato_generator.reports import Reports
from sfumato_generator.storage import GenerationRecord

if TYPE_CHECKING:
    from sfumato_generator.resolver import GenerationResolver

YIELD_SECONDS = 3.0
"""After the device was left to somebody who asked, they have this long to take it."""

log = get_logger(__name__)


@dataclass(kw_only=True)
class Running:
    """The generation on the device.

    Attributes:
        worker: None until it was handed over.
        rest_by: Monotonic time by which the worker must have obeyed a cancel.
    """

    record: GenerationRecord
    worker: WorkerHandle | None = None
    rest_by: float = math.inf

    @property
    def name(self) -> str:
        """The job's name."""
        return self.record.job

    @property
    def cancelled(self) -> bool:
        """Whether it was asked to end."""
        return self.rest_by < math.inf

    def cancel(self, rest_by: float) -> None:
        """Tells the worker, now or when it gets the work."""
        self.rest_by = min(self.rest_by, rest_by)
        if self.worker is not None:
            self.worker.order("cancel", self.name)


class GenerationEngine:
    """Queue and work of all generations."""

    def __init__(
        self,
        platform: Platform,
        config: GeneratorConfig,
        make_resolver: "Callable[[], GenerationResolver]",
    ) -> None:
        self._platform = platform
        self._config = config
        self._make_resolver = make_resolver
        gallery = Gallery(platform.blobs, new_name=platform.new_name)
        self._wake = asyncio.Event()
        self.jobs: JobStore = platform.job_store(
            JobKind(
                name="generation",
                prefix="generation",
                project=gallery.project,
                retention=timedelta(hours=config.generation_retention_hours),
            ),
            on_queue=self._wake.set,
        )
        reports = Reports(platform.database, self.jobs, gallery)
        self._channel = platform.worker_channel("generator", reports.append)
        self._device = Device(
            config.device,
            self._channel,
            platform.leases,
            clock=platform.clock,
            lease=platform.device_lease,
            log_folder=(platform.data_dir / "generator" / "workers").absolute(),
            configuration={
                "device": config.device,
                "blobs": str(platform.blobs.folder.root.absolute()),
                "max_resident_models": config.max_resident_models,
            },
            on_change=self._wake.set,
        )
        self._running: Running | None = None
        self._idle_since = platform.clock.monotonic()
        self._yields_until = self._idle_since
        self._background = BackgroundTasks()

    @cached_property
    def resolver(self) -> "GenerationResolver":
        """Made with the first request: what reads models would delay the start."""
        return self._make_resolver()

    async def start(self) -> None:
        """Takes up what an earlier life left: its workers are ended, what ran ends by its policy."""
        for survivor in await self._channel.start():
            self._channel.kill(survivor)
            await self._channel.wait_gone(survivor)
        await self._device.clear()
        for job in await self.jobs.in_states(*ACTIVE):
            await close_attempt(self.jobs, job.name, job.owner, SERVICE_DIED)
        self._background.spawn(keep_running("schedule", self._schedule, self._platform.clock))

    async def maintain(self) -> None:
        """Removes the records of generations whose retention has passed."""
        await self.jobs.purge(remove=self._remove)

    async def drain(self) -> None:
        """Ends the worker at the next step; what ran begins anew with the next start, or ends."""
        now = self._platform.clock.monotonic
        rest_by = now() + self._platform.drain_limits.rest_seconds
        self._wake.set()
        # A step of the queue is finished, not broken off: what it begins must be known here.
        await self._background.rest(within_seconds=rest_by - now())
        await self._device.leave("drain", within_seconds=rest_by - now())
        for job in await self.jobs.in_states(*ACTIVE):
            await close_attempt(self.jobs, job.name, job.owner, SERVICE_STOPPED)

    async def stop(self) -> None:
        """Closes the worker channel."""
        await self._channel.stop()

    async def validate(
        self, asked: GenerationRequest, owner: str, *, refuse_busy: bool
    ) -> GenerationPlan:
        """What ``create`` would make; nothing is made.

        Raises:
            FailedPrecondition: DEVICE_BUSY.
            And what :meth:`GenerationResolver.resolve` raises.
        """
        plan = await self.resolver.resolve(asked, owner)
        holder = await self._device.foreign_holder() if refuse_busy else None
        if holder is not None:
            raise FailedPrecondition(
                Reason.DEVICE_BUSY,
                f"{holder} holds the device {self._device.name}",
                details={"holder": holder},
            )
        return plan

    async def create(
        self,
        request: Request,
        asked: GenerationRequest,
        policy: InterruptionPolicy,
        *,
        refuse_busy: bool,
    ) -> tuple[Job, bool]:
        """Queues a generation, or answers the one that this request made before.

        Raises:
            AlreadyExists: REQUEST_ID_REUSED.
            ResourceExhausted: QUEUE_FULL.
            And what :meth:`validate` raises.
        """
        known = await self.jobs.find_created(request)
        if known is not None:
            return known, True
        plan = await self.validate(asked, request.principal, refuse_busy=refuse_busy)

        def add(connection: Connection, job: Job) -> None:
            check_queue(job, self._config.max_queued_generations)
            record = GenerationRecord(job=job.name, owner=job.owner, plan=plan)
            storage.insert_generation(connection, record)

        return await self.jobs.create(request, policy=policy, add=add)

    async def cancel(self, name: str, owner: str) -> Job:
        """Ends a generation; images that are saved stay. A worker that does not obey in time is ended.

        Raises:
            FailedPrecondition: It has ended in another way.
        """
        job = await cancel_job(self.jobs, name, owner)
        if self._running is not None and self._running.name == name:
            self._running.cancel(self._platform.clock.monotonic() + CANCEL_SECONDS)
        return job

    async def delete(self, name: str, owner: str) -> None:
        """Removes an ended generation; its images stay in the gallery.

        Raises:
            FailedPrecondition: It has not ended.
        """
        await self.jobs.delete(name, owner, remove=self._remove)

    def _remove(self, connection: Connection, job: Job) -> None:
        storage.remove_generation(connection, job, self._platform.clock.now())

    async def _schedule(self) -> None:
        while not self._platform.draining.is_set():
            self._wake.clear()
            busy = await self._advance()
            try:
                async with asyncio.timeout(POLL_SECONDS if busy else None):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _advance(self) -> bool:
        """Takes the next due step of the queue; answers whether to look again without being woken."""
        await self._settle()
        waiting = await self.jobs.update_queue()
        if self._running is None:
            now = self._platform.clock.monotonic()
            if self._device.worker is not None and self._should_leave(now, idle=not waiting):
                wanted = self._device.wanted_by is not None
                await self._device.leave("stop")
                if wanted:
                    self._yields_until = self._platform.clock.monotonic() + YIELD_SECONDS
            elif waiting and now >= self._yields_until:
                await self._try_to_begin(waiting[0])
        return bool(waiting) or self._device.worker is not None

    def _should_leave(self, now: float, *, idle: bool) -> bool:
        if self._device.wanted_by is not None:
            return True
        limit = self._config.idle_unload_seconds
        return idle and limit > 0 and now - self._idle_since >= limit

    async def _settle(self) -> None:
        """Closes the running generation when it has ended or its worker is gone."""
        running = self._running
        if running is None:
            return
        if self._device.worker is None or self._device.worker is not running.worker:
            await self._close_running(WORKER_DIED)
        elif await self._is_over(running.record):
            self._running = None
        elif self._platform.clock.monotonic() >= running.rest_by:
            log.warning("a cancelled generation goes on, its worker is ended", job=running.name)
            await self._device.end()
            await self._close_running(WORKER_DIED)
        self._idle_since = self._platform.clock.monotonic()

    async def _is_over(self, record: GenerationRecord) -> bool:
        """Whether a generation has ended; one that is removed had."""
        try:
            return (await self.jobs.get(record.job, record.owner)).ended
        except NotFound:
            return True

    async def _close_running(self, failure: JobFailure) -> None:
        """Ends the attempt of the running generation, whose worker is gone, if it has not ended."""
        if self._running is None:
            return
        record = self._running.record
        try:
            await close_attempt(self.jobs, record.job, record.owner, failure)
        except NotFound:
            log.info("the generation was removed after its end", job=record.job)
        self._running = None

    async def _try_to_begin(self, job: Job) -> None:
        """Starts the next attempt of ``job``; one that cannot be started fails, and others go on."""
        with log_context(job=job.name):
            try:
                await self._begin(job)
            except Held:
                return
            except (Fenced, NotFound):
                self._running = None  # cancelled or removed in between
            except Exception as error:  # noqa: BLE001 - the boundary, where it is logged
                self._running = None
                told = unexpected_errors.report(error, "generation could not be started")
                await self._fail(job, JobFailure.of(told))

    async def _begin(self, job: Job) -> None:
        record, num_saved = await self._platform.database.read(
            lambda connection: (
                storage.get_generation(connection, job.name),
                storage.num_images(connection, job.name, job.owner),
            )
        )
        worker = await self._device.occupy()
        self._running = running = Running(record=record)
        started = NewEvent(kind="started", data={"device": self._device.name})
        claimed = await self.jobs.claim(job.name, started)
        worker.give(
            job.name, claimed.fence, {"plan": record.plan.to_json(), "first_image": num_saved}
        )
        running.worker = worker
        if running.cancelled:
            running.cancel(running.rest_by)
        self._wake.set()  # those who wait move up

    async def _fail(self, job: Job, failure: JobFailure) -> None:
        """Ends a generation that could not be started."""
        try:
            await self.jobs.append(job.name, [failed_event(failure)])
        except (Fenced, NotFound):
            log.info("the generation had ended")
