"""Queue and life of training runs: device, worker, attempts, orders.

One run trains at a time. The worker owns the numerics; this side owns the truth about the run: it holds
the device's lease, appends what the worker reports, notices when the worker is gone and decides by the
run's policy what follows.
"""

import asyncio
import os
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from sfumato_chassis.background import BackgroundTasks, keep_running
from sfumato_chassis.errors import (
    FailedPrecondition,
    JobFailure,
    NotFound,
    Reason,
    ResourceExhausted,
    SfumatoError,
    Unavailable,
)
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
    unexpected_failure,
)
from sfumato_chassis.leases import Held, device_key
from sfumato_chassis.logging import get_logger, log_context
from sfumato_chassis.platform import Platform
from sfumato_chassis.requests import Request
from sfumato_chassis.worker_channel import WorkerHandle
from sfumato_diffusion.source_revision import hub_cache_roots
from sfumato_trainer import storage
from sfumato_trainer.config import TrainerConfig
from sfumato_trainer.dataset_reader import DatasetReader
from sfumato_trainer.pins import Pins
from sfumato_trainer.resolver import RunRequest, RunResolver
from sfumato_trainer.settings import Lineage, TrainingPlan, TrainingSample
from sfumato_trainer.storage import Run

WORKER_MODULE = "sfumato_trainer.worker"
LEASE_DURATION = timedelta(seconds=30)
RENEW_SECONDS = 10.0
DEVICE_POLL_SECONDS = 0.5
DATASETS_RETRY_SECONDS = 2.0

log = get_logger(__name__)


class TrainingEngine:
    """All training runs of a deployment, one at work."""

    def __init__(self, platform: Platform, config: TrainerConfig) -> None:
        self._platform = platform
        self._config = config
        self._device_key = device_key(config.device)
        self._datasets = DatasetReader(lambda: platform.address_of("datasets"))
        self.resolver = RunResolver(config, self._datasets, data_dir=platform.data_dir)
        self.jobs: JobStore = platform.job_store(
            JobKind(name="training_run", prefix="run", project=self._project, retention=None)
        )
        self._pins = Pins(self._datasets, self.jobs, self._run, seconds=config.pin_minutes * 60)
        self._channel = platform.worker_channel("trainer", self._on_report)
        self._wake = asyncio.Event()
        self._attempt: Attempt | None = None
        self._background = BackgroundTasks()

    async def start(self) -> None:
        """Takes up what an earlier life left: live workers are adopted, dead ones missed."""
        survivors = {(handle.job, handle.fence): handle for handle in await self._channel.start()}
        for job in await self.jobs.in_states(*ACTIVE):
            handle = survivors.pop((job.name, job.fence), None)
            if handle is None:
                await self._interrupt(job, "the worker died while the service was away")
            else:
                await self._adopt(job, handle)
        for stray in survivors.values():
            self._channel.kill(stray)
            await self._channel.forget(stray)
        clock = self._platform.clock
        self._background.spawn(keep_running("schedule", self._schedule, clock))
        self._background.spawn(keep_running("pins", lambda: self._pins.keep(clock), clock))

    async def drain(self) -> None:
        """Brings the run to a checkpoint; it goes on with the next start, by its policy."""
        await self._background.cancel()
        attempt = self._attempt
        if attempt is not None:
            attempt.handle.order("drain")
            await asyncio.wait([attempt.task])

    async def stop(self) -> None:
        """Closes the worker channel and the connection to the datasets service."""
        await self._channel.stop()
        await self._datasets.close()

    async def create(
        self, request: Request, asked: RunRequest, policy: InterruptionPolicy
    ) -> tuple[Job, bool]:
        """Queues a run and pins its dataset version.

        Raises:
            ResourceExhausted: QUEUE_FULL.
            And what the resolver raises.
        """
        known = await self.jobs.find_created(request)
        if known is not None:
            return known, True
        run = await self.resolver.resolve(asked)

        def add(connection: Connection, job: Job) -> None:
            if job.queue_position > self._config.max_queued_runs:
                raise ResourceExhausted(
                    Reason.QUEUE_FULL,
                    f"{self._config.max_queued_runs} runs wait already",
                    retry_after_seconds=60.0,
                )
            storage.insert_run(connection, replace(run, job=job.name))

        job, deduplicated = await self.jobs.create(request, policy=policy, add=add)
        if not deduplicated:
            await self._pins.hold(job)
        self._wake.set()
        return job, deduplicated

    async def cancel(self, name: str, owner: str) -> Job:
        """Ends a run; its checkpoints stay, nothing is published. The first of stop and cancel wins.

        Raises:
            FailedPrecondition: It has ended, or is being stopped.
        """
        job = await self.jobs.get(name, owner)
        check_cancellable(job)
        if job.state in {JobState.CANCELLED, JobState.CANCELLING}:
            return job
        if (await self._run(name)).stop_requested:
            raise FailedPrecondition(Reason.JOB_STATE_UNSUITABLE, f"{name} is being stopped")
        kind = "cancelled" if job.state is JobState.QUEUED else "cancel_requested"
        data = {"step": 0} if kind == "cancelled" else {}
        job = await self.jobs.append(name, [NewEvent(kind=kind, data=data)], fence=job.fence)
        self._order(name, "cancel")
        if job.ended:
            await self._pins.release(job)
        self._wake.set()
        return job

    async def stop_run(self, name: str, owner: str) -> Job:
        """Ends a running run early, with a result. The first of stop and cancel wins.

        Raises:
            FailedPrecondition: It is not running.
        """
        job = await self.jobs.get(name, owner)
        if (await self._run(name)).stop_requested:
            return job
        if job.state is not JobState.RUNNING:
            raise FailedPrecondition(
                Reason.JOB_STATE_UNSUITABLE,
                f"{name} is {job.state.value}",
                details={"state": job.state.value},
            )
        job = await self.jobs.append(
            name, [NewEvent(kind="stop_requested")], fence=job.fence, also=storage.request_stop
        )
        self._order(name, "stop")
        return job

    async def delete(self, name: str, owner: str) -> None:
        """Removes an ended run with its checkpoints; its adapters stay.

        Raises:
            FailedPrecondition: It has not ended.
        """
        await self.jobs.delete(name, owner, remove=storage.remove_run)
        await asyncio.to_thread(shutil.rmtree, self._directory(name), ignore_errors=True)

    def _project(self, connection: Connection, job: Job, events: Sequence[Any]) -> None:
        for event in events:
            if event.kind == "succeeded":
                for blob in storage.blobs_of(event):
                    self._platform.blobs.record(connection, blob)
        storage.project_run(connection, job, events)

    async def _on_report(
        self, name: str, fence: int, events: Sequence[tuple[int, NewEvent]]
    ) -> int:
        job, number = await self.jobs.append_from_worker(name, fence, events)
        if job.ended:
            self._wake.set()
        return number

    async def _schedule(self) -> None:
        while True:
            self._wake.clear()
            waiting = await self.jobs.update_queue()
            delay: float | None = None
            if waiting and self._attempt is None:
                delay = await self._try_to_begin(waiting[0])
            try:
                async with asyncio.timeout(delay):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _try_to_begin(self, job: Job) -> float | None:
        """Starts the next attempt of ``job``; a job that cannot be started fails, and others go on."""
        try:
            return await self._begin(job)
        except Exception:
            error_id = uuid.uuid4().hex
            log.exception("run could not be started", job=job.name, error_id=error_id)
            await self.jobs.append(job.name, [failed_event(unexpected_failure(error_id))])
            await self._platform.leases.release(self._device_key, job.name)
            return 0.0

    async def _begin(self, job: Job) -> float | None:
        """Starts the next attempt of ``job``; answers after how long to try again if it cannot."""
        with log_context(job=job.name):
            run = await self._run(job.name)
            try:
                samples = await self._datasets.samples(run.owner, run.dataset, run.dataset_version)
                await self._lease(job.name)
            except Held:
                return DEVICE_POLL_SECONDS
            except Unavailable as error:
                log.warning("datasets service unreachable", reason=error.reason)
                return DATASETS_RETRY_SECONDS
            except SfumatoError as error:
                await self.jobs.append(job.name, [failed_event(JobFailure.of(error))])
                return 0.0
            started = NewEvent(kind="started", data={"device": self._config.device})
            try:
                claimed = await self.jobs.claim(job.name, started)
            except (Fenced, NotFound):
                await self._platform.leases.release(self._device_key, job.name)
                return 0.0
            plan = self._plan(claimed, run, samples)
            handle = await self._channel.launch(
                WORKER_MODULE,
                {"plan": plan.to_json(), "blobs": str(self._platform.blobs.folder.root.absolute())},
                directory=self._directory(job.name) / "workers",
                job=job.name,
                fence=claimed.fence,
            )
            self._attend(claimed, handle, run)
            return None

    async def _adopt(self, job: Job, handle: WorkerHandle) -> None:
        with log_context(job=job.name):
            log.info("worker adopted", worker=handle.worker_id)
            run = await self._run(job.name)
            await self._lease(job.name)
            self._attend(job, handle, run)

    def _attend(self, job: Job, handle: WorkerHandle, run: Run) -> None:
        if job.state is JobState.CANCELLING:
            handle.order("cancel", job.name)
        elif run.stop_requested:
            handle.order("stop", job.name)
        task = asyncio.create_task(self._follow(job, handle))
        self._attempt = Attempt(job=job, handle=handle, task=task)

    async def _follow(self, job: Job, handle: WorkerHandle) -> None:
        """Stays with an attempt until its worker is gone, then says what follows."""
        renewing = asyncio.create_task(self._keep_lease(job.name))
        try:
            with log_context(job=job.name):
                await self._channel.wait_gone(handle)
                current = await self.jobs.get(job.name, job.owner)
                if current.ended:
                    await self._pins.release(current)
                else:
                    draining = self._platform.draining.is_set()
                    await self._interrupt(
                        current, "the service stopped" if draining else "the worker died"
                    )
        finally:
            renewing.cancel()
            await self._platform.leases.release(self._device_key, job.name)
            self._attempt = None
            self._wake.set()

    async def _interrupt(self, job: Job, message: str) -> None:
        """Ends an attempt whose worker is gone without having said how it ended."""
        if job.state is JobState.CANCELLING:
            await self.jobs.append(job.name, [NewEvent(kind="cancelled", data={"step": 0})])
            return
        run = await self._run(job.name)
        failure = JobFailure(reason=Reason.WORKER_DIED, message=message)
        if run.idle_attempts + 1 >= self._config.max_idle_attempts:
            failure = JobFailure(
                reason=Reason.WORKER_DIED_REPEATEDLY,
                message=f"the worker died {run.idle_attempts + 1} times without taking a step",
            )
            await self.jobs.append(job.name, [failed_event(failure)])
            return
        await self.jobs.append(job.name, [interrupted_event(job, failure)])

    def _plan(self, job: Job, run: Run, samples: Sequence[TrainingSample]) -> TrainingPlan:
        directory = self._directory(job.name)
        return TrainingPlan(
            run=job.name,
            attempt=job.attempt,
            fence=job.fence,
            settings=run.settings,
            samples=tuple(samples),
            lineage=Lineage(dataset=run.dataset, dataset_digest=run.dataset_digest),
            work_directory=directory,
            cache_directory=(self._platform.data_dir / "conditioning-cache").absolute(),
            model_path=Path(run.base_path) if run.base_path else None,
            cache_roots=hub_cache_roots(None, os.environ),
            device=self._config.device,
            allow_download=self._config.allow_download,
        )

    def _directory(self, run: str) -> Path:
        return (self._platform.data_dir / "runs" / run).absolute()

    async def _run(self, name: str) -> Run:
        return await self._platform.database.read(
            lambda connection: storage.get_run(connection, name)
        )

    def _order(self, name: str, command: str) -> None:
        if self._attempt is not None and self._attempt.job.name == name:
            self._attempt.handle.order(command, name)

    async def _lease(self, holder: str) -> None:
        await self._platform.leases.acquire(
            self._device_key, holder, "training", duration=LEASE_DURATION
        )

    async def _keep_lease(self, holder: str) -> None:
        while True:
            await self._platform.clock.sleep(RENEW_SECONDS)
            await self._lease(holder)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """The attempt at work."""

    job: Job
    handle: WorkerHandle
    task: asyncio.Task[None]
