"""One device, two services: the generator waits, refuses, gives way and comes back."""

import asyncio

import pytest
import pytest_asyncio
from sqlalchemy import func, select

from sfumato.job.v1 import job_pb2
from sfumato_chassis.leases import Held, device_key
from sfumato_chassis.tables import workers
from sfumato_client import FailedPrecondition

pytestmark = pytest.mark.asyncio(loop_scope="module")

DEVICE = device_key("cpu")
RUN = "run-0123456789abcdef"
REFUSE = {"device_busy": "DEVICE_BUSY_POLICY_REFUSE"}
POLL_SECONDS = 0.1


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def studio(studio_of):
    async with studio_of(generator__idle_unload_seconds=2.0) as studio:
        yield studio


async def take_device(studio):
    """Takes the device as a training run does: asks until it is given."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await studio.platform.leases.acquire(DEVICE, RUN, "training")
            except Held:
                await asyncio.sleep(POLL_SECONDS)


async def give_device_back(studio):
    await studio.platform.leases.release(DEVICE, RUN)


async def num_workers(studio):
    """Worker processes that the service knows of."""
    statement = select(func.count()).select_from(workers)
    return await studio.platform.database.read(
        lambda connection: connection.execute(statement).scalar_one()
    )


async def test_a_busy_device_is_refused_or_waited_for_as_asked(studio):
    await take_device(studio)
    with pytest.raises(FailedPrecondition) as refusal:
        await studio.create(**REFUSE)
    first = await studio.create(seed=1)
    second = await studio.create(seed=2)
    still = await studio.client.generator.wait_generation(first.name, timeout_seconds=1)

    assert refusal.value.reason == "DEVICE_BUSY"
    assert refusal.value.details["holder"] == RUN
    assert (first.status.queue_position, second.status.queue_position) == (1, 2)
    assert still.status.state == job_pb2.JOB_STATE_QUEUED
    assert await num_workers(studio) == 0
    assert (await studio.platform.leases.get(DEVICE)).wanted_by == "generator"
    await give_device_back(studio)
    for generation in (first, second):
        ended = await studio.ended(generation.name)
        assert ended.status.state == job_pb2.JOB_STATE_SUCCEEDED
    kinds = [event.WhichOneof("event") for event in await studio.events(second.name)]
    assert kinds[:3] == ["queued", "queued", "started"]


async def test_an_idle_worker_leaves_the_device(studio):
    assert (await studio.make()).status.state == job_pb2.JOB_STATE_SUCCEEDED
    async with asyncio.timeout(30):
        # Nobody is told of a lease that is given back.
        while await studio.platform.leases.get(DEVICE) is not None:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
    assert await num_workers(studio) == 0


async def test_a_running_generation_is_finished_first_and_the_next_one_waits(studio):
    running = await studio.create(steps=150, count=2, width=128, height=128)
    await studio.until(running.name, lambda event: event.HasField("step"))
    held = await studio.platform.leases.get(DEVICE)
    with pytest.raises(Held):
        await studio.platform.leases.acquire(DEVICE, RUN, "training")
    waiting = await studio.create(seed=1)
    with pytest.raises(FailedPrecondition) as refusal:
        await studio.create(**REFUSE)
    taken = await take_device(studio)
    finished = await studio.client.generator.get_generation(running.name)
    not_begun = await studio.client.generator.get_generation(waiting.name)

    assert (held.holder, held.purpose) == ("generator", "resident")
    assert refusal.value.details["holder"] == RUN
    assert taken.fence > held.fence
    assert finished.status.state == job_pb2.JOB_STATE_SUCCEEDED
    assert not_begun.status.state == job_pb2.JOB_STATE_QUEUED
    await give_device_back(studio)
    assert (await studio.ended(waiting.name)).status.state == job_pb2.JOB_STATE_SUCCEEDED


async def test_an_idle_model_leaves_when_training_asks(studio):
    assert (await studio.make()).status.state == job_pb2.JOB_STATE_SUCCEEDED
    assert await num_workers(studio) == 1
    await take_device(studio)
    assert await num_workers(studio) == 0
    await give_device_back(studio)
