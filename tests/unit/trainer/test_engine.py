"""Lives of runs and workers, against a clock that the test moves."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

import pytest

from made_up_workers import MadeUpExecutor
from sfumato_chassis.background import RESTART_SECONDS
from sfumato_chassis.clock import ManualClock
from sfumato_chassis.config import WorkersConfig
from sfumato_chassis.errors import NotFound, Reason
from sfumato_chassis.job_store import JobStore
from sfumato_chassis.jobs import ACTIVE, InterruptionPolicy, Job, JobState, NewEvent
from sfumato_chassis.leases import Held, device_key
from sfumato_chassis.platform import Platform
from sfumato_chassis.tables import job_events
from sfumato_chassis.worker_channel import CANCEL_SECONDS, WorkerHandle
from sfumato_trainer.engine import TrainingEngine
from sfumato_trainer.storage import adapters_of, run_of

DEVICE = device_key("cpu")
PATIENCE_SECONDS = 10
POLL_SECONDS = 0.01
STARTED = NewEvent(kind="started", data={"device": "cpu"})
RAISE = "SELECT RAISE(FAIL, 'database or disk is full');"
MakeJob = Callable[..., Awaitable[Job]]


async def take_nothing(job: str, fence: int, events: object) -> int:
    raise AssertionError("a made up worker reports nothing")


async def until(jobs: JobStore, job: Job, state: JobState) -> Job:
    """Waits until a run is in a state."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            wakeup = jobs.wakeups.take(job.name)
            found = await jobs.get(job.name, job.owner)
            if found.state is state:
                jobs.wakeups.drop(job.name, wakeup)
                return found
            await wakeup.wait()


async def attended(engine: TrainingEngine) -> WorkerHandle:
    """The worker of the attempt at work."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (attempt := vars(engine)["_attempt"]) is None:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(POLL_SECONDS)
    return attempt.handle


async def stop(platform: Platform, engine: TrainingEngine) -> None:
    platform.draining.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await engine.drain()
        await engine.stop()


async def stop_for_good(platform: Platform, engine: TrainingEngine, clock: ManualClock) -> None:
    """Stops a service whose workers hear no order."""
    stopping = asyncio.create_task(stop(platform, engine))
    while not stopping.done():
        await asyncio.sleep(POLL_SECONDS)
        clock.advance(1.0)
    await stopping


async def test_a_cancel_that_is_not_obeyed_ends_the_worker(
    platform: Platform,
    executor: MadeUpExecutor,
    clock: ManualClock,
    engine: TrainingEngine,
    queued: MakeJob,
) -> None:
    first, second = await queued(), await queued()
    await engine.start()
    handle = await attended(engine)
    assert (await engine.cancel(first.name, first.owner)).state is JobState.CANCELLING
    clock.advance(CANCEL_SECONDS - 0.1)
    await engine.cancel(first.name, first.owner)  # does not begin the time anew
    assert handle.orders == {first.name: "cancel"}
    assert executor.killed == []
    clock.advance(0.2)

    await until(engine.jobs, first, JobState.CANCELLED)
    assert executor.killed == [handle.process]
    await until(engine.jobs, second, JobState.RUNNING)
    assert (await platform.leases.get(DEVICE)).holder == second.name


async def test_an_end_that_cannot_be_written_is_written_later(
    platform: Platform,
    executor: MadeUpExecutor,
    clock: ManualClock,
    engine: TrainingEngine,
    queued: MakeJob,
) -> None:
    first, second = await queued(InterruptionPolicy.MANUAL), await queued()
    await engine.start()
    handle = await attended(engine)
    refuse = f"CREATE TRIGGER full BEFORE INSERT ON {job_events.name} BEGIN {RAISE} END"
    await platform.database.write(lambda connection: connection.exec_driver_sql(refuse))
    executor.end(handle.process)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10 * POLL_SECONDS):
            await until(engine.jobs, second, JobState.RUNNING)
    await platform.database.write(
        lambda connection: connection.exec_driver_sql("DROP TRIGGER full")
    )
    clock.advance(RESTART_SECONDS)

    ended = await until(engine.jobs, first, JobState.INTERRUPTED)
    assert ended.failure is not None
    assert ended.failure.reason is Reason.WORKER_DIED
    await until(engine.jobs, second, JobState.RUNNING)
    assert (await platform.leases.get(DEVICE)).holder == second.name


async def test_a_run_that_is_removed_at_its_end_does_not_keep_the_device(
    platform: Platform,
    executor: MadeUpExecutor,
    engine: TrainingEngine,
    queued: MakeJob,
) -> None:
    """Its record goes before its worker has."""
    first, second = await queued(), await queued()
    await engine.start()
    handle = await attended(engine)
    await engine.jobs.append(first.name, [NewEvent(kind="cancelled")])
    await engine.delete(first.name, first.owner)
    executor.end(handle.process)

    await until(engine.jobs, second, JobState.RUNNING)
    assert (await platform.leases.get(DEVICE)).holder == second.name


async def test_a_result_that_comes_after_a_cancel_is_not_published(
    platform: Platform, engine: TrainingEngine, queued: MakeJob
) -> None:
    job = await engine.jobs.claim((await queued()).name, STARTED)
    await engine.cancel(job.name, job.owner)
    digest = f"sha256:{'0' * 64}"
    result = {"adapter": {"digest": digest, "size_bytes": 1}, "steps": 9, "stopped_early": False}
    succeeded = NewEvent(kind="succeeded", data=result)
    ended, _ = await engine.jobs.append_from_worker(job.name, job.fence, [(1, succeeded)])

    assert ended.state is JobState.CANCELLED
    _, adapters = await engine.jobs.read(
        job.name, job.owner, lambda connection, job: adapters_of(connection, job.name)
    )
    assert adapters == []
    with pytest.raises(NotFound):
        await platform.blobs.get(digest)


async def test_a_stop_may_take_its_time(
    platform: Platform,
    executor: MadeUpExecutor,
    engine: TrainingEngine,
    queued: MakeJob,
) -> None:
    """It saves and publishes; and it is noted once, however often it is asked for."""
    job = await queued()
    await engine.start()
    handle = await attended(engine)
    for _ in range(3):
        await engine.stop_run(job.name, job.owner)

    assert handle.exit_by == math.inf
    assert handle.orders == {job.name: "stop"}
    assert executor.killed == []
    kinds = [event.kind for event in await engine.jobs.events(job.name, 0)]
    assert kinds.count("stop_requested") == 1


async def test_a_worker_that_does_not_come_to_rest_is_ended_by_the_drain(
    platform: Platform,
    executor: MadeUpExecutor,
    clock: ManualClock,
    engine: TrainingEngine,
    queued: MakeJob,
) -> None:
    job = await queued()
    await engine.start()
    handle = await attended(engine)
    began = clock.monotonic()
    await stop_for_good(platform, engine, clock)

    assert handle.orders == {"": "drain"}
    assert executor.killed == [handle.process]
    assert clock.monotonic() - began <= platform.drain_limits.service_seconds
    ended = await engine.jobs.get(job.name, job.owner)
    assert ended.state is JobState.QUEUED
    assert ended.failure.reason is Reason.SERVER_DRAINING
    _, run = await engine.jobs.read(job.name, job.owner, run_of)
    assert run.idle_attempts == 0, "the run is not to blame"
    assert await platform.leases.get(DEVICE) is None


async def test_a_drain_in_the_middle_of_a_start_leaves_nothing_behind(
    platform: Platform,
    executor: MadeUpExecutor,
    clock: ManualClock,
    engine: TrainingEngine,
    queued: MakeJob,
) -> None:
    """The worker process is being started when the drain begins."""
    job = await queued(InterruptionPolicy.MANUAL)
    executor.startable.clear()
    await engine.start()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await executor.starting.wait()
    stopping = asyncio.create_task(stop_for_good(platform, engine, clock))
    await asyncio.sleep(0)
    executor.startable.set()
    await stopping

    assert len(executor.started) == 1
    assert executor.num_alive == 0
    ended = await engine.jobs.get(job.name, job.owner)
    assert ended.state is JobState.INTERRUPTED
    assert ended.failure.reason is Reason.SERVER_DRAINING
    assert await platform.leases.get(DEVICE) is None


async def test_a_start_that_hangs_does_not_hold_up_the_drain(
    platform: Platform,
    executor: MadeUpExecutor,
    engine: TrainingEngine,
    queued: MakeJob,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = type(platform.drain_limits).of(0.1)
    monkeypatch.setattr(type(platform), "drain_limits", limits)
    job = await queued()
    executor.startable.clear()
    await engine.start()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await executor.starting.wait()
    await stop(platform, engine)

    assert executor.num_alive == 0
    assert await engine.jobs.in_states(*ACTIVE) == []
    assert (await engine.jobs.get(job.name, job.owner)).failure.reason is Reason.SERVER_DRAINING
    assert await platform.leases.get(DEVICE) is None


async def test_a_cancel_while_the_worker_starts_reaches_it(
    platform: Platform,
    executor: MadeUpExecutor,
    clock: ManualClock,
    engine: TrainingEngine,
    queued: MakeJob,
) -> None:
    job = await queued()
    executor.startable.clear()
    await engine.start()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await executor.starting.wait()
    await engine.cancel(job.name, job.owner)
    executor.startable.set()
    handle = await attended(engine)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await handle.changed.wait()

    assert handle.orders == {job.name: "cancel"}
    clock.advance(CANCEL_SECONDS)
    await until(engine.jobs, job, JobState.CANCELLED)


async def test_a_worker_that_cannot_be_started_fails_the_run_unless_it_was_cancelled(
    platform: Platform, executor: MadeUpExecutor, engine: TrainingEngine, queued: MakeJob
) -> None:
    failing, cancelled = await queued(), await queued()
    executor.start_error = RuntimeError("unexpected")
    await engine.start()
    failed = await until(engine.jobs, failing, JobState.FAILED)
    assert failed.failure.reason is Reason.INTERNAL
    assert (await until(engine.jobs, cancelled, JobState.FAILED)).failure.error_id
    executor.starting.clear()
    executor.startable.clear()
    third = await queued()
    vars(engine)["_wake"].set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await executor.starting.wait()
    await engine.cancel(third.name, third.owner)
    executor.startable.set()
    await until(engine.jobs, third, JobState.CANCELLED)


async def test_the_device_is_not_given_away_while_an_orphaned_worker_may_work(
    platform: Platform,
    executor: MadeUpExecutor,
    clock: ManualClock,
    engine: TrainingEngine,
    queued: MakeJob,
) -> None:
    """The service dies right before it would have renewed the lease."""
    await queued()
    await engine.start()
    await attended(engine)
    workers = platform.config.section(WorkersConfig)
    # No task that could renew it runs in between.
    clock.advance(workers.lease_seconds + workers.rest_seconds)
    with pytest.raises(Held):
        await platform.leases.acquire(DEVICE, "generator", "resident")


async def test_what_outlived_its_service_is_adopted_or_ended(
    platform: Platform,
    executor: MadeUpExecutor,
    clock: ManualClock,
    engine: TrainingEngine,
    queued: MakeJob,
) -> None:
    """The worker of a run goes on with its device; one whose run is over is gone after the start."""
    running, over = await queued(), await queued()
    earlier = platform.worker_channel("trainer", take_nothing)
    await earlier.start()
    handles = []
    for job in (running, over):
        claimed = await engine.jobs.claim(job.name, STARTED)
        options = {"job": job.name, "fence": claimed.fence}
        handles.append(await earlier.launch("x", {}, log_folder=platform.data_dir, **options))
    await engine.jobs.append(over.name, [NewEvent(kind="cancelled")])
    before = await platform.leases.acquire(DEVICE, running.name, "training")
    await earlier.stop()
    await engine.start()

    assert executor.killed == [handles[1].process]
    assert (await attended(engine)).process == handles[0].process
    assert (await platform.leases.get(DEVICE)).fence == before.fence


@pytest.mark.parametrize("state", ["ended", "died"])
async def test_a_stale_lease_of_training_is_given_back_at_the_next_start(
    platform: Platform, clock: ManualClock, engine: TrainingEngine, queued: MakeJob, state: str
) -> None:
    job = await queued(InterruptionPolicy.MANUAL)
    await engine.jobs.claim(job.name, STARTED)
    if state == "ended":
        await engine.jobs.append(job.name, [NewEvent(kind="cancelled")])
    await platform.leases.acquire(DEVICE, job.name, "training")
    await engine.start()

    assert await platform.leases.get(DEVICE) is None
    assert (await engine.jobs.get(job.name, job.owner)).ended


async def test_a_lease_of_another_purpose_is_left_alone(
    platform: Platform, engine: TrainingEngine
) -> None:
    held = await platform.leases.acquire(DEVICE, "generator", "resident")
    await engine.start()
    assert await platform.leases.get(DEVICE) == held
