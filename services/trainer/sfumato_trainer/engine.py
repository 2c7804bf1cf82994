"""Queue and life of training runs: device, worker, attempts, orders.

One run trains at a time. The worker owns the numerics; this side owns the truth about the run: it holds
the device's lease, appends what the worker reports, notices when the worker is gone and decides by the
run's policy what follows.
"""

import asyncio
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from sfumato_chassis import unexpected_errors
from sfumato_chassis.background import BackgroundTasks, keep_running
from sfumato_chassis.errors import (
    FailedPrecondition,
    JobFailure,
    NotFound,
    Reason,
    SfumatoError,
    Unavailable,
    server_draining,
)
from sfumato_chassis.job_control import cancel_job, check_queue, end_attempt
from sfumato_chassis.job_store import Fenced, JobStore
from sfumato_chassis.jobs import (
    ACTIVE,
    InterruptionPolicy,
    Job,
    JobKind,
    JobState,
    NewEvent,
    failed_event,
    interrupted_event,
)
from sfumato_chassis.leases import RENEWAL_SECONDS, Held, device_key
from sfumato_chassis.logging import get_logger, log_context
from sfumato_chassis.platform import Platform
from sfumato_chassis.requests import Request
from sfumato_chassis.worker_channel import CANCEL_SECONDS, WorkerHandle
from sfumato_diffusion.source_revision import hub_cache_roots
from sfumato_trainer import storage
from sfumato_trainer.config import TrainerConfig
from sfumato_trainer.dataset_reader import DatasetReader
from sfumato_trainer.pins import Pins
from sfumato_trainer.run_request import RunRequest
from sfumato_trainer.settings import Lineage, TrainingPlan, TrainingSample
from sfumato_trainer.storage import Run

if TYPE_CHECKING:
    from sfumato_trainer.resolver import RunResolver

WORKER_MODULE = "sfumato_trainer.worker"
PURPOSE = "training"
DEVICE_POLL_SECONDS = 0.5
DATASETS_RETRY_SECONDS = 2.0
GOODBYE_SECONDS = 10.0
"""How long a worker may take to save its state when its device was lost; then it is ended."""

SERVICE_STOPPED = JobFailure.of(server_draining())
WORKER_DIED = JobFailure(reason=Reason.WORKER_DIED, message="the worker died")

log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """The attempt at work."""

    job: Job
    handle: WorkerHandle


class TrainingEngine:
    """All training runs of a deployment, one at work."""

    def __init__(self, platform: Platform, config: TrainerConfig, datasets: DatasetReader) -> None:
        self._platform = platform
        self._config = config
        self._device_key = device_key(config.device)
        self._datasets = datasets
        self._wake = asyncio.Event()
        self.jobs: JobStore = platform.job_store(
            JobKind(name="training_run", prefix="run", project=self._project, retention=None),
            on_queue=self._wake.set,
        )
        self._pins = Pins(self._datasets, self.jobs, self._run, seconds=config.pin_minutes * 60)
        self._channel = platform.worker_channel("trainer", self._on_report)
        self._attempt: Attempt | None = None
        self._background = BackgroundTasks()
        self._scheduling = BackgroundTasks()
        self._following = BackgroundTasks()

    @cached_property
    def resolver(self) -> "RunResolver":
        """Loaded with the first request: what reads models would delay the start."""
        from sfumato_trainer.resolver import RunResolver

        return RunResolver(self._config, self._datasets, data_dir=self._platform.data_dir)

    async def start(self) -> None:
        """Takes up what an earlier life left: live workers are adopted, dead ones missed."""
        survivors = {(handle.job, handle.fence): handle for handle in await self._channel.start()}
        for job in await self.jobs.in_states(*ACTIVE):
            handle = survivors.pop((job.name, job.fence), None)
            if handle is None:
                await self._end_attempt(job, WORKER_DIED)
            else:
                log.info("worker adopted", job=job.name, worker=handle.worker_id)
                await self._attend(job, handle)
        for stray in survivors.values():
            self._channel.kill(stray)
            await self._channel.wait_gone(stray)
        lease = await self._platform.leases.get(self._device_key)
        if lease is not None and lease.purpose == PURPOSE and self._attempt is None:
            # Of a run that ended, or whose worker died, while the service was away.
            await self._platform.leases.release(self._device_key, lease.holder)
        clock = self._platform.clock
        self._scheduling.spawn(keep_running("schedule", self._schedule, clock))
        self._background.spawn(keep_running("pins", lambda: self._pins.keep(clock), clock))

    async def drain(self) -> None:
        """Brings the run to a checkpoint; it goes on with the next start, by its policy.

        A worker that has not come to rest in time is ended, and its run goes on from an older checkpoint.
        """
        now = self._platform.clock.monotonic
        rest_by = now() + self._platform.drain_limits.rest_seconds
        self._wake.set()
        # A step of the queue is finished, not broken off: the worker that it starts is known here.
        await self._scheduling.rest(within_seconds=rest_by - now())
        await self._background.cancel()
        if self._attempt is not None:
            handle = self._attempt.handle
            self._channel.send_away(handle, "drain", within_seconds=rest_by - now())
        await self._following.finish()
        for job in await self.jobs.in_states(*ACTIVE):
            await self._end_attempt(job, SERVICE_STOPPED)

    async def stop(self) -> None:
        """Closes the worker channel."""
        await self._channel.stop()

    async def create(
        self, request: Request, asked: RunRequest, policy: InterruptionPolicy
    ) -> tuple[Job, bool]:
        """Queues a run; its dataset version is pinned soon after.

        Raises:
            AlreadyExists: REQUEST_ID_REUSED.
            ResourceExhausted: QUEUE_FULL.
            And what the resolver raises.
        """
        known = await self.jobs.find_created(request)
        if known is not None:
            return known, True
        run = await self.resolver.resolve(asked)

        def add(connection: Connection, job: Job) -> None:
            check_queue(job, self._config.max_queued_runs)
            storage.insert_run(connection, replace(run, job=job.name))

        job, deduplicated = await self.jobs.create(request, policy=policy, add=add)
        self._background.spawn(self._pins.hold(job))
        return job, deduplicated

    async def cancel(self, name: str, owner: str) -> Job:
        """Ends a run; its checkpoints stay, nothing is published. The first of stop and cancel wins.

        Raises:
            FailedPrecondition: It has ended, or is being stopped.
        """
        job = await cancel_job(self.jobs, name, owner, also=storage.refuse_stopping)
        self._order(name, "cancel")
        if job.ended:
            await self._pins.release(job)
        return job

    async def stop_run(self, name: str, owner: str) -> Job:
        """Ends a running run early, with a result. The first of stop and cancel wins.

        Raises:
            FailedPrecondition: It is not running.
        """
        while True:
            job, run = await self.jobs.read(name, owner, storage.run_of)
            if run.stop_requested:
                return job
            if job.state is not JobState.RUNNING:
                raise FailedPrecondition(
                    Reason.JOB_STATE_UNSUITABLE,
                    f"{name} is {job.state.value}",
                    details={"state": job.state.value},
                )
            try:
                job = await self.jobs.append(
                    name,
                    [NewEvent(kind="stop_requested")],
                    fence=job.fence,
                    states={JobState.RUNNING},
                    also=storage.request_stop,
                )
            except Fenced:
                continue  # it moved on in between
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
        _, number = await self.jobs.append_from_worker(name, fence, events)
        return number

    async def _schedule(self) -> None:
        while not self._platform.draining.is_set():
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
        """Starts the next attempt of ``job``; a job that cannot be started fails, and others go on.

        Returns:
            After how many seconds to try again, if it has to wait.
        """
        with log_context(job=job.name):
            try:
                return await self._begin(job)
            except Held:
                return DEVICE_POLL_SECONDS
            except Unavailable as error:
                log.warning("datasets service unreachable", reason=error.reason)
                return DATASETS_RETRY_SECONDS
            except (Fenced, NotFound):
                return 0.0  # cancelled or removed in between
            except SfumatoError as error:
                await self._fail(job, JobFailure.of(error))
            except Exception as error:  # noqa: BLE001 - the boundary, where it is logged
                told = unexpected_errors.report(error, "run could not be started")
                await self._fail(job, JobFailure.of(told))
            return 0.0

    async def _begin(self, job: Job) -> float | None:
        run = await self._run(job.name)
        try:
            samples = await self._datasets.samples(run.owner, run.dataset, run.dataset_version)
        except NotFound as error:
            await self._fail(job, JobFailure.of(error))
            return 0.0
        if self._platform.draining.is_set():
            return None
        await self._lease(job.name)
        try:
            started = NewEvent(kind="started", data={"device": self._config.device})
            claimed = await self.jobs.claim(job.name, started)
            plan = await asyncio.to_thread(self._plan, claimed, run, samples)
            handle = await self._channel.launch(
                WORKER_MODULE,
                {"plan": plan.to_json(), "blobs": str(self._platform.blobs.folder.root.absolute())},
                log_folder=self._directory(job.name) / "workers",
                job=job.name,
                fence=claimed.fence,
            )
        except BaseException:
            await self._platform.leases.release(self._device_key, job.name)
            raise
        await self._attend(claimed, handle)
        return None

    async def _attend(self, job: Job, handle: WorkerHandle) -> None:
        """Stays with an attempt from now on. Orders that came before are given now."""
        self._attempt = Attempt(job=job, handle=handle)
        following = keep_running("attempt", lambda: self._follow(job, handle), self._platform.clock)
        self._following.spawn(following)
        job, run = await self.jobs.read(job.name, job.owner, storage.run_of)
        if job.state is JobState.CANCELLING:
            self._order(job.name, "cancel")
        elif run.stop_requested:
            self._order(job.name, "stop")

    async def _follow(self, job: Job, handle: WorkerHandle) -> None:
        """Stays with an attempt until its worker is gone, then says what follows. Safe to begin anew."""
        keeping = keep_running(
            "device lease", lambda: self._keep_lease(job.name, handle), self._platform.clock
        )
        renewing = asyncio.create_task(keeping)
        with log_context(job=job.name):
            try:
                await self._channel.wait_gone(handle)
            except BaseException:
                # Nobody would notice its end any more, so it must not go on.
                self._channel.kill(handle)
                raise
            finally:
                renewing.cancel()
                await asyncio.gather(renewing, return_exceptions=True)
            draining = self._platform.draining.is_set()
            try:
                await self._end_attempt(job, SERVICE_STOPPED if draining else WORKER_DIED)
            except NotFound:
                log.info("the run was removed after its end")
            await self._platform.leases.release(self._device_key, job.name)
            self._attempt = None
            self._wake.set()

    async def _end_attempt(self, job: Job, failure: JobFailure) -> None:
        """Ends an attempt whose worker is gone, unless the worker has said how it ended."""
        run = await self._run(job.name)
        deaths = run.idle_attempts + 1
        if failure is WORKER_DIED and deaths >= self._config.max_idle_attempts:
            failure = JobFailure(
                reason=Reason.WORKER_DIED_REPEATEDLY,
                message=f"the worker died {deaths} times without taking a step",
            )

        def decide(current: Job) -> NewEvent:
            if current.state is JobState.CANCELLING:
                return NewEvent(kind="cancelled")
            if failure.reason is Reason.WORKER_DIED_REPEATEDLY:
                return failed_event(failure)
            return interrupted_event(current, failure)

        ended = await end_attempt(self.jobs, job.name, job.owner, decide)
        if ended.ended:
            await self._pins.release(ended)

    async def _fail(self, job: Job, failure: JobFailure) -> None:
        """Ends a job that could not be started."""
        try:
            failed = await self.jobs.append(job.name, [failed_event(failure)])
        except (Fenced, NotFound):
            return
        await self._pins.release(failed)

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
        """Gives an order to the worker of a run, if it has one; a cancel must be obeyed in time.

        A stop saves and publishes, which may take as long as it does.
        """
        if self._attempt is None or self._attempt.job.name != name:
            return
        handle = self._attempt.handle
        if command == "cancel":
            self._channel.send_away(handle, command, job=name, within_seconds=CANCEL_SECONDS)
        else:
            handle.order(command, name)

    async def _lease(self, holder: str) -> None:
        await self._platform.leases.acquire(
            self._device_key, holder, PURPOSE, duration=self._platform.device_lease
        )

    async def _keep_lease(self, holder: str, handle: WorkerHandle) -> None:
        """Renews the device's lease; a worker that has lost its device comes to rest."""
        while True:
            try:
                await self._lease(holder)
            except Held as held:
                log.error("device lost", job=holder, holder=held.lease.holder)
                self._channel.send_away(handle, "drain", within_seconds=GOODBYE_SECONDS)
                return
            await self._platform.clock.sleep(RENEWAL_SECONDS)
