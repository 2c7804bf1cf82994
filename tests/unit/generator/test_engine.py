"""Starts and stops of the engine with work in its hands."""

import asyncio

import pytest

from sfumato_chassis.errors import NotFound, Reason
from sfumato_chassis.jobs import ACTIVE, JobState, NewEvent
from sfumato_chassis.leases import device_key
from sfumato_chassis.platform import DrainLimits
from sfumato_chassis.threads import Threads
from sfumato_chassis.worker_channel import WorkerChannel
from sfumato_generator import engine as generation_engine
from sfumato_generator.config import GeneratorConfig
from sfumato_generator.engine import GenerationEngine
from sfumato_generator.resolver import GenerationResolver

DEVICE = device_key("cpu")
PATIENCE_SECONDS = 10
LONG_SECONDS = 20.0
POLL_SECONDS = 0.01


@pytest.fixture
async def engine(platform, monkeypatch):
    limits = DrainLimits(rest_seconds=0.5, service_seconds=10.0, stream_seconds=0.1)
    monkeypatch.setattr(type(platform), "drain_limits", limits)
    resolver = GenerationResolver(
        roots=[],
        cache_roots=list,
        adapters=None,
        device="cpu",
        precision="auto",
        draw_seed=lambda: 1,
        reading=Threads("read-model", limit=1),
    )
    made = GenerationEngine(platform, GeneratorConfig(), lambda: resolver)
    yield made
    await stop(platform, made)


async def stop(platform, engine):
    platform.draining.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await engine.drain()
        await engine.stop()


async def until(jobs, job, state):
    """Waits until a generation is in a state."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            found = await jobs.get(job.name, job.owner)
            if found.state is state:
                return found
            await asyncio.sleep(POLL_SECONDS)


async def test_a_stop_in_the_middle_of_a_start_leaves_nothing_behind(
    platform, executor, jobs, queued, engine
):
    """The worker process is being started when the drain begins."""
    job = await queued()
    executor.startable.clear()
    await engine.start()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await platform.leases.get(DEVICE) is None:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(POLL_SECONDS)
    stopping = asyncio.create_task(stop(platform, engine))
    await asyncio.sleep(0)
    executor.startable.set()
    await stopping

    ended = await jobs.get(job.name, job.owner)
    assert await jobs.in_states(*ACTIVE) == []
    assert ended.state is JobState.INTERRUPTED
    assert ended.failure.reason is Reason.SERVER_DRAINING
    assert len(executor.killed) == 1
    assert await platform.leases.get(DEVICE) is None


async def test_a_start_that_hangs_does_not_keep_a_stop_waiting(
    platform, executor, jobs, queued, engine
):
    job = await queued()
    executor.startable.clear()
    await engine.start()
    await asyncio.wait_for(executor.starting.wait(), PATIENCE_SECONDS)
    await stop(platform, engine)

    assert await jobs.in_states(*ACTIVE) == []
    assert (await jobs.get(job.name, job.owner)).state is JobState.QUEUED
    assert executor.num_alive == 0
    assert await platform.leases.get(DEVICE) is None


async def test_a_worker_has_the_time_of_the_drain_to_come_to_rest(
    platform, executor, jobs, queued, engine, monkeypatch
):
    limits = DrainLimits(rest_seconds=LONG_SECONDS, service_seconds=30.0, stream_seconds=0.1)
    monkeypatch.setattr(type(platform), "drain_limits", limits)
    sent_away = []
    send_away = WorkerChannel.send_away

    def noted(channel, handle, command, *, within_seconds, job=""):
        send_away(channel, handle, command, within_seconds=within_seconds, job=job)
        sent_away.append((command, within_seconds))
        executor.end(handle.process)

    monkeypatch.setattr(WorkerChannel, "send_away", noted)
    job = await queued()
    await engine.start()
    await until(jobs, job, JobState.RUNNING)
    await stop(platform, engine)

    ((command, within_seconds),) = sent_away
    assert command == "drain"
    assert LONG_SECONDS - PATIENCE_SECONDS < within_seconds <= LONG_SECONDS
    assert executor.killed == []


async def test_a_generation_that_cannot_be_started_fails_and_the_next_one_is_done(
    executor, jobs, queued, engine
):
    executor.start_error = RuntimeError("unexpected")
    first = await queued()
    await engine.start()
    failed = await until(jobs, first, JobState.FAILED)
    executor.start_error = None
    second = await queued()
    await engine.cancel((await queued()).name, second.owner)  # wakes the queue
    await until(jobs, second, JobState.RUNNING)

    assert failed.failure.reason is Reason.INTERNAL
    assert failed.failure.error_id


async def test_a_generation_that_is_over_makes_room_also_when_it_is_removed_at_once(
    jobs, queued, engine
):
    first, second = await queued(), await queued()
    await engine.start()
    await until(jobs, first, JobState.RUNNING)
    await engine.jobs.append(first.name, [NewEvent(kind="cancelled")])
    await engine.delete(first.name, first.owner)
    await until(jobs, second, JobState.RUNNING)

    with pytest.raises(NotFound):
        await jobs.get(first.name, first.owner)


async def test_a_cancel_that_is_not_obeyed_ends_the_worker_and_the_queue_goes_on(
    platform, executor, jobs, queued, engine, monkeypatch
):
    monkeypatch.setattr(generation_engine, "CANCEL_SECONDS", 0.2)
    first, second = await queued(), await queued()
    await engine.start()
    await until(jobs, first, JobState.RUNNING)
    assert (await engine.cancel(first.name, first.owner)).state is JobState.CANCELLING
    assert executor.killed == []
    await until(jobs, first, JobState.CANCELLED)
    assert len(executor.killed) == 1
    await until(jobs, second, JobState.RUNNING)

    assert executor.num_alive == 1
    kinds = [event.kind for event in await jobs.events(first.name, 0)]
    assert kinds.count("cancelled") == 1
    assert "interrupted" not in kinds


async def test_a_cancel_that_is_obeyed_keeps_the_worker(
    executor, jobs, queued, engine, monkeypatch
):
    monkeypatch.setattr(generation_engine, "CANCEL_SECONDS", 0.2)
    first, second = await queued(), await queued()
    await engine.start()
    await until(jobs, first, JobState.RUNNING)
    await engine.cancel(first.name, first.owner)
    await engine.jobs.append(first.name, [NewEvent(kind="cancelled")])
    await until(jobs, second, JobState.RUNNING)

    assert engine._running.name == second.name
    assert not engine._running.cancelled
    assert executor.killed == []
    assert (await jobs.get(second.name, second.owner)).state is JobState.RUNNING
