import asyncio
from datetime import UTC, datetime

import pytest
from structlog.testing import capture_logs

from sfumato_chassis.background import RESTART_SECONDS, BackgroundTasks, keep_running
from sfumato_chassis.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 1, 1, tzinfo=UTC))


async def test_work_that_fails_begins_anew_after_a_moment(clock: ManualClock) -> None:
    begun = asyncio.Semaphore(0)
    num_begun = 0

    async def work() -> None:
        nonlocal num_begun
        num_begun += 1
        begun.release()
        if num_begun < 3:
            raise RuntimeError("unexpected")

    with capture_logs() as logs:
        running = asyncio.create_task(keep_running("work", work, clock))
        for _ in range(2):
            await begun.acquire()
            await asyncio.sleep(0)
            clock.advance(RESTART_SECONDS / 2)
            await asyncio.sleep(0)
            assert begun.locked(), "not before its time"
            clock.advance(RESTART_SECONDS / 2)
        await asyncio.wait_for(running, 5)
    assert num_begun == 3
    assert [entry["work"] for entry in logs] == ["work", "work"]


async def test_work_can_be_cancelled(clock: ManualClock) -> None:
    running = asyncio.create_task(keep_running("work", asyncio.Event().wait, clock))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_finish_waits_for_the_end_and_tells_whether_it_came() -> None:
    tasks, gate = BackgroundTasks(), asyncio.Event()
    assert await tasks.finish()

    async def work() -> None:
        await gate.wait()

    task = tasks.spawn(work())
    assert not await tasks.finish(within_seconds=0.01)
    assert not task.done(), "it goes on"
    gate.set()
    assert await tasks.finish()
    assert task.done()


async def test_a_wait_that_is_given_up_breaks_nothing_off() -> None:
    tasks, gate = BackgroundTasks(), asyncio.Event()

    async def work() -> None:
        await gate.wait()

    task = tasks.spawn(work())
    waiting = asyncio.create_task(tasks.finish())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not task.done()
    gate.set()
    await task


async def test_cancel_ends_everything_before_it_returns() -> None:
    tasks, cleaned = BackgroundTasks(), []

    async def work(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(number)

    for number in range(3):
        tasks.spawn(work(number))
    await asyncio.sleep(0)
    await tasks.cancel()
    assert sorted(cleaned) == [0, 1, 2]
    assert await tasks.finish(within_seconds=0)


async def test_what_does_not_come_to_rest_in_time_is_cancelled() -> None:
    tasks = BackgroundTasks()
    quick, slow = tasks.spawn(asyncio.sleep(0)), tasks.spawn(asyncio.sleep(3600))
    await tasks.rest(within_seconds=0.05)
    assert (quick.cancelled(), slow.cancelled()) == (False, True)
    await asyncio.wait_for(tasks.rest(within_seconds=3600), 5)


async def test_an_error_is_logged_and_harms_no_other() -> None:
    tasks, gate = BackgroundTasks(), asyncio.Event()

    async def fail() -> None:
        raise RuntimeError("unexpected")

    async def work() -> None:
        await gate.wait()

    other = tasks.spawn(work())
    with capture_logs() as logs:
        await asyncio.wait([tasks.spawn(fail())], timeout=5)
    assert [str(entry["exc_info"]) for entry in logs] == ["unexpected"]
    assert not other.done()
    gate.set()
    assert await tasks.finish()
