import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from job_stores import opened_database
from sfumato_chassis.clock import ManualClock
from sfumato_chassis.leases import (
    DEFAULT_LEASE,
    RENEWAL_SECONDS,
    Held,
    LeaseStore,
    device_key,
    host_id,
    lease_for_worker,
)

KEY = "device:host:cuda:0"
LEASE_SECONDS = DEFAULT_LEASE.total_seconds()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
async def leases(tmp_path: Path, clock: ManualClock) -> AsyncIterator[LeaseStore]:
    async with opened_database(tmp_path) as database:
        yield LeaseStore(database, clock=clock)


async def test_a_free_lease_is_taken(leases: LeaseStore, clock: ManualClock) -> None:
    assert await leases.get(KEY) is None
    lease = await leases.acquire(KEY, "run-1", "training")
    assert (lease.holder, lease.fence, lease.wanted_by) == ("run-1", 1, None)
    assert lease.expire_time == clock.now() + DEFAULT_LEASE
    assert await leases.get(KEY) == lease


async def test_who_comes_second_is_told_and_remembered(leases: LeaseStore) -> None:
    await leases.acquire(KEY, "run-1", "training")
    with pytest.raises(Held) as caught:
        await leases.acquire(KEY, "run-2", "training")
    assert caught.value.lease.holder == "run-1"
    renewed = await leases.acquire(KEY, "run-1", "training")
    assert (renewed.fence, renewed.wanted_by) == (1, "run-2")


async def test_renewal_keeps_the_fence_and_moves_the_end(
    leases: LeaseStore, clock: ManualClock
) -> None:
    first = await leases.acquire(KEY, "run-1", "training")
    clock.advance(LEASE_SECONDS - 1)
    second = await leases.acquire(KEY, "run-1", "training")
    assert second.fence == first.fence
    clock.advance(LEASE_SECONDS - 1)
    assert await leases.get(KEY) == second
    with pytest.raises(Held):
        await leases.acquire(KEY, "run-2", "training")


async def test_a_lapsed_lease_is_taken_over_with_a_higher_fence(
    leases: LeaseStore, clock: ManualClock
) -> None:
    first = await leases.acquire(KEY, "run-1", "training", duration=timedelta(seconds=5))
    clock.advance(5)
    assert await leases.get(KEY) is None
    second = await leases.acquire(KEY, "run-2", "training")
    assert (second.holder, second.fence) == ("run-2", first.fence + 1)
    assert second.wanted_by is None
    with pytest.raises(Held):
        await leases.acquire(KEY, "run-1", "training")


async def test_a_holder_that_lapsed_gets_a_new_fence_too(
    leases: LeaseStore, clock: ManualClock
) -> None:
    first = await leases.acquire(KEY, "run-1", "training")
    clock.advance(LEASE_SECONDS)
    assert (await leases.acquire(KEY, "run-1", "training")).fence == first.fence + 1


async def test_release_frees_only_ones_own(leases: LeaseStore) -> None:
    first = await leases.acquire(KEY, "run-1", "training")
    await leases.release(KEY, "run-2")
    assert await leases.get(KEY) == first
    await leases.release(KEY, "run-1")
    assert await leases.get(KEY) is None
    assert (await leases.acquire(KEY, "run-2", "training")).fence == first.fence + 1
    await leases.release("device:host:absent", "run-1")


async def test_of_many_at_once_one_wins(leases: LeaseStore) -> None:
    outcomes = await asyncio.gather(
        *(leases.acquire(KEY, f"run-{index}", "training") for index in range(20)),
        return_exceptions=True,
    )
    winners = [outcome for outcome in outcomes if not isinstance(outcome, Held)]
    assert len(winners) == 1
    assert all(isinstance(outcome, Held) for outcome in outcomes if outcome not in winners)


async def test_leases_do_not_touch_each_other(leases: LeaseStore) -> None:
    await leases.acquire(KEY, "run-1", "training")
    other = await leases.acquire("dataset:cats", "import-1", "import")
    assert other.fence == 1


def test_devices_are_of_one_machine() -> None:
    assert host_id() == host_id() != ""
    assert device_key("cuda:0", {}) == f"device:{host_id()}:cuda:0"
    assert device_key("cpu", {"CUDA_VISIBLE_DEVICES": "3"}) == f"device:{host_id()}:cpu"


@pytest.mark.parametrize(
    ("device", "visible", "counted"),
    [
        ("cuda:0", "", "cuda:0"),
        ("cuda:0", "2,3", "cuda:2"),
        ("cuda:1", "2, 3", "cuda:3"),
        ("cuda:0", "GPU-8f1c", "cuda:GPU-8f1c"),
        ("cuda:4", "2,3", "cuda:4"),
    ],
)
def test_a_gpu_is_the_same_however_a_process_counts(
    device: str, visible: str, counted: str
) -> None:
    key = device_key(device, {"CUDA_VISIBLE_DEVICES": visible})
    assert key == f"device:{host_id()}:{counted}"


async def test_a_lease_for_a_worker_outlasts_the_worker(
    leases: LeaseStore, clock: ManualClock
) -> None:
    """Its service died just before a renewal, right after it had answered the worker."""
    duration = lease_for_worker(60.0, 20.0)
    await leases.acquire(KEY, "run-1", "training", duration=duration)
    clock.advance(RENEWAL_SECONDS)
    clock.advance(60.0 + 20.0)
    with pytest.raises(Held):
        await leases.acquire(KEY, "generator", "resident")
    clock.advance(LEASE_SECONDS)
    await leases.acquire(KEY, "generator", "resident")
