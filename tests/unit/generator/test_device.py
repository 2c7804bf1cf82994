"""The device's lease and its worker: neither outlives the other, whatever fails."""

import asyncio

import pytest
from sqlalchemy import update

from sfumato_chassis import tables
from sfumato_chassis.leases import Held, LeaseStore, device_key
from sfumato_generator.device import HOLDER, Device

DEVICE = device_key("cpu")
PATIENCE_SECONDS = 10


class FailingLeases(LeaseStore):
    """Fails once in what it is told to."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.failing = ""

    def _fail(self, call):
        if self.failing == call:
            self.failing = ""
            raise RuntimeError("the store is away")

    async def get(self, key):
        self._fail("get")
        return await super().get(key)

    async def release(self, key, holder):
        self._fail("release")
        await super().release(key, holder)


@pytest.fixture
def leases(platform):
    return FailingLeases(platform.database, clock=platform.clock)


@pytest.fixture
def changed():
    return asyncio.Event()


@pytest.fixture
def channel(platform):
    async def on_report(job, fence, events):
        raise AssertionError("a made up worker reports nothing")

    return platform.worker_channel("generator", on_report)


@pytest.fixture
async def device(platform, executor, channel, leases, changed, tmp_path):
    made = Device(
        "cpu",
        channel,
        leases,
        clock=platform.clock,
        lease=platform.device_lease,
        log_folder=tmp_path,
        configuration={},
        on_change=changed.set,
    )
    yield made
    if made.worker is not None:
        executor.end(made.worker.process)
        await made.leave("stop")


async def take_away(platform):
    """What is left when the lease has lapsed, while the service was held up, and a run took it."""
    statement = update(tables.leases).where(tables.leases.c.key == DEVICE).values(holder="run-1")
    await platform.database.write(lambda connection: connection.execute(statement))


@pytest.mark.parametrize("error", [OSError("no memory"), RuntimeError("unexpected")])
async def test_a_worker_that_cannot_be_started_leaves_no_lease(device, executor, leases, error):
    executor.start_error = error
    with pytest.raises(type(error)):
        await device.occupy()
    assert device.worker is None
    assert await leases.get(DEVICE) is None


async def test_a_worker_that_cannot_be_attended_is_ended(
    device, executor, channel, leases, changed
):
    async def wait_gone(handle):
        raise RuntimeError("unexpected")

    channel.wait_gone = wait_gone
    worker = await device.occupy()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await changed.wait()

    assert executor.killed == [worker.process]
    assert device.worker is None
    assert await leases.get(DEVICE) is None


async def test_the_device_is_not_given_back_before_the_worker_is_gone(
    device, executor, channel, leases, changed
):
    async def wait_gone(handle):
        raise RuntimeError("unexpected")

    channel.wait_gone = wait_gone
    held_while_ending = []
    dying, gone = asyncio.Event(), asyncio.Event()
    wait = executor.wait

    async def wait_long(process):
        dying.set()
        await gone.wait()
        await wait(process)

    executor.wait = wait_long
    await device.occupy()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await dying.wait()
        held_while_ending.append(await leases.get(DEVICE))
        gone.set()
        await changed.wait()

    assert held_while_ending[0].holder == HOLDER
    assert await leases.get(DEVICE) is None


async def test_a_worker_that_is_gone_is_noticed_though_the_lease_cannot_be_given_back(
    device, executor, leases, changed
):
    worker = await device.occupy()
    leases.failing = "release"
    executor.end(worker.process)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await changed.wait()
    assert device.worker is None


@pytest.mark.parametrize("failing", ["", "get"])
async def test_a_worker_whose_device_was_taken_comes_to_rest(
    platform, device, executor, leases, changed, failing
):
    """Also when the store was away for a moment before."""
    worker = await device.occupy()
    leases.failing = failing
    async with asyncio.timeout(PATIENCE_SECONDS):
        await take_away(platform)
        await worker.changed.wait()
        assert worker.orders == {"": "drain"}
        executor.end(worker.process)
        await changed.wait()

    assert executor.killed == []
    assert device.worker is None
    assert (await leases.get(DEVICE)).holder == "run-1"
    with pytest.raises(Held):
        await device.occupy()
