"""Queue and life of generations: first in, first out, one at a time on the device.

The worker owns the numerics; this side owns the truth: it appends what the worker reports, notices when
the worker is gone, and decides by the generation's policy what follows. The device is shared with the
trainer: when somebody else asks for it, the running generation is finished first, then it is left.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Connection

from sfumato_chassis.background import BackgroundTasks, keep_running
from sfumato_chassis.errors import FailedPrecondition, JobFailure, Reason, ResourceExhausted
from sfumato_chassis.job_store import Fenced, JobStore
from sfumato_chassis.jobs import (
    ACTIVE,
    InterruptionPolicy,
    Job,
    JobKind,
    JobState,
    NewEvent,
    check_cancellable,
    failed_event,
    interrupted_event,
)
from sfumato_chassis.leases import Held
from sfumato_chassis.logging import get_logger, log_context
from sfumato_chassis.platform import Platform
from sfumato_chassis.requests import Request
from sfumato_chassis.worker_channel import WorkerHandle
from sfumato_generator import storage
from sfumato_generator.config import GeneratorConfig
from sfumato_generator.configuration import WantedGeneration
from sfumato_generator.device import POLL_SECONDS, Device
from sfumato_generator.gallery import Gallery
from sfumato_generator.generations import GenerationResolver
from sfumato_generator.plan import GenerationPlan
from sfumato_generator.storage import GenerationRecord

YIELD_SECONDS = 3.0
"""After the device was left to somebody who asked, they have this long to take it."""
MAX_ATTEMPTS = 3
"""A generation that is retried fails when its worker has died this often."""
SERVICE_STOPPED = JobFailure(reason=Reason.WORKER_DIED, message="the service stopped")
WORKER_DIED = JobFailure(reason=Reason.WORKER_DIED, message="the worker died")

log = get_logger(__name__)


@dataclass(kw_only=True)
class Running:
    """The generation on the device.

    Attributes:
        worker: None until it was handed over.
        ended: Its last event is in the log.
    """

    record: GenerationRecord
    worker: WorkerHandle | None = None
    cancelled: bool = False
    ended: bool = False

    @property
    def name(self) -> str:
        """The job's name."""
        return self.record.job

    def cancel(self) -> None:
        """Tells the worker, now or when it gets the work."""
        self.cancelled = True
        if self.worker is not None:
            self.worker.order("cancel", self.name)


class GenerationEngine:
    """Queue and work of all generations."""

    def __init__(
        self, platform: Platform, config: GeneratorConfig, resolver: GenerationResolver
    ) -> None:
        self._platform = platform
        self._config = config
        self._resolver = resolver
        self._gallery = Gallery(platform.blobs, new_name=platform.new_name)
        self.jobs: JobStore = platform.job_store(
            JobKind(
                name="generation",
                prefix="generation",
                project=self._gallery.project,
                retention=timedelta(hours=config.generation_retention_hours),
            )
        )
        self._wake = asyncio.Event()
        self._channel = platform.worker_channel("generator", self._on_report)
        self._device = Device(
            config.device,
            self._channel,
            platform.leases,
            clock=platform.clock,
            directory=(platform.data_dir / "generator" / "workers").absolute(),
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

    async def start(self) -> None:
        """Takes up what an earlier life left: its workers are ended, what ran ends by its policy."""
        for survivor in await self._channel.start():
            self._channel.kill(survivor)
            await self._channel.wait_gone(survivor)
        await self._device.clear()
        for job in await self.jobs.in_states(*ACTIVE):
            await self._end_attempt(job.name, job.owner, SERVICE_STOPPED)
        self._background.spawn(keep_running("schedule", self._schedule, self._platform.clock))

    async def maintain(self) -> None:
        """Removes the records of generations whose retention has passed."""
        await self.jobs.purge(remove=storage.remove_generation)

    async def drain(self) -> None:
        """Ends the worker at the next step; what ran begins anew with the next start, or ends."""
        await self._background.cancel()
        await self._device.leave("drain")
        if self._running is not None and not self._running.ended:
            record = self._running.record
            await self._end_attempt(record.job, record.owner, SERVICE_STOPPED)

    async def stop(self) -> None:
        """Closes the worker channel."""
        await self._channel.stop()

    async def validate(
        self, wanted: WantedGeneration, owner: str, *, refuse_busy: bool
    ) -> GenerationPlan:
        """What ``create`` would make; nothing is made.

        Raises:
            FailedPrecondition: DEVICE_BUSY.
            And what :meth:`GenerationResolver.resolve` raises.
        """
        plan = await self._resolver.resolve(wanted, owner)
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
        wanted: WantedGeneration,
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
        plan = await self.validate(wanted, request.principal, refuse_busy=refuse_busy)

        def add(connection: Connection, job: Job) -> None:
            if job.queue_position > self._config.max_queued_generations:
                raise ResourceExhausted(
                    Reason.QUEUE_FULL,
                    f"{self._config.max_queued_generations} generations wait already",
                    retry_after_seconds=10.0,
                )
            record = GenerationRecord(job=job.name, owner=job.owner, plan=plan)
            storage.insert_generation(connection, record)

        created = await self.jobs.create(request, policy=policy, add=add)
        self._wake.set()
        return created

    async def cancel(self, name: str, owner: str) -> Job:
        """Ends a generation; images that are saved stay.

        Raises:
            FailedPrecondition: It has ended in another way.
        """
        while True:
            job = await self.jobs.get(name, owner)
            check_cancellable(job)
            if job.state in {JobState.CANCELLED, JobState.CANCELLING}:
                return job
            kind = "cancelled" if job.state is JobState.QUEUED else "cancel_requested"
            try:
                job = await self.jobs.append(
                    name, [NewEvent(kind=kind)], fence=job.fence, states={job.state}
                )
            except Fenced:
                continue  # it moved on in between
            if self._running is not None and self._running.name == name:
                self._running.cancel()
            self._wake.set()
            return job

    async def delete(self, name: str, owner: str) -> None:
        """Removes an ended generation; its images stay in the gallery.

        Raises:
            FailedPrecondition: It has not ended.
        """
        await self.jobs.delete(name, owner, remove=storage.remove_generation)

    async def _on_report(
        self, name: str, fence: int, events: Sequence[tuple[int, NewEvent]]
    ) -> int:
        running = self._running
        if running is None or running.name != name:
            raise Fenced(name)
        number = 0
        for batch in batches(events):
            completed = [
                (local, self._gallery.completed(event, running.record)) for local, event in batch
            ]
            job, number = await self.jobs.append_from_worker(name, fence, completed)
            if job.ended:
                running.ended = True
                self._wake.set()
        return number

    async def _schedule(self) -> None:
        while True:
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
                if self._device.wanted_by is not None:
                    self._yields_until = self._platform.clock.monotonic() + YIELD_SECONDS
                await self._device.leave("stop")
            elif waiting and now >= self._yields_until:
                await self._begin(waiting[0])
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
        if not running.ended:
            if self._device.worker is not None and self._device.worker is running.worker:
                return
            await self._end_attempt(running.record.job, running.record.owner, WORKER_DIED)
        self._running = None
        self._idle_since = self._platform.clock.monotonic()

    async def _begin(self, job: Job) -> None:
        with log_context(job=job.name):
            record, num_saved = await self._platform.database.read(
                lambda connection: (
                    storage.get_generation(connection, job.name),
                    storage.num_images(connection, job.name, job.owner),
                )
            )
            try:
                worker = await self._device.occupy()
            except Held:
                return
            self._running = running = Running(record=record)
            started = NewEvent(kind="started", data={"device": self._device.name})
            try:
                claimed = await self.jobs.claim(job.name, started)
            except Fenced:
                self._running = None
                self._wake.set()
                return
            worker.give(
                job.name,
                claimed.fence,
                {"plan": record.plan.to_json(), "first_image": num_saved},
            )
            running.worker = worker
            if running.cancelled:
                running.cancel()
            self._wake.set()

    async def _end_attempt(self, name: str, owner: str, failure: JobFailure) -> None:
        """Ends an attempt whose worker is gone without having said how it ended."""
        job = await self.jobs.get(name, owner)
        if job.state not in ACTIVE:
            return
        try:
            await self.jobs.append(name, [end_of(job, failure)], states=ACTIVE)
        except Fenced:
            log.info("the generation had ended", job=name)


def end_of(job: Job, failure: JobFailure) -> NewEvent:
    """What follows from a worker that is gone, or a service that stops, while it worked on ``job``."""
    if job.state is JobState.CANCELLING:
        return NewEvent(kind="cancelled")
    if failure is SERVICE_STOPPED:
        return interrupted_event(job, failure)
    if job.interruption_policy is InterruptionPolicy.MANUAL:
        return failed_event(failure)
    if job.attempt >= MAX_ATTEMPTS:
        repeated = JobFailure(
            reason=Reason.WORKER_DIED_REPEATEDLY,
            message=f"the worker died {job.attempt} times",
        )
        return failed_event(repeated)
    return interrupted_event(job, failure)


def batches(
    events: Sequence[tuple[int, NewEvent]],
) -> Sequence[Sequence[tuple[int, NewEvent]]]:
    """Splits events so that each image is appended on its own and has a time of its own."""
    split: list[list[tuple[int, NewEvent]]] = [[]]
    for numbered in events:
        if numbered[1].kind == "image_saved" and split[-1]:
            split.append([])
        split[-1].append(numbered)
    return split
