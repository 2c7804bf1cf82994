import asyncio
from datetime import UTC, datetime, timedelta

from sfumato_chassis.clock import ManualClock, SystemClock

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(START)
    assert (clock.now(), clock.monotonic()) == (START, 0.0)
    clock.advance(2.5)
    assert (clock.now(), clock.monotonic()) == (START + timedelta(seconds=2.5), 2.5)


async def test_sleepers_wake_when_they_are_due() -> None:
    clock = ManualClock(START)
    short, long = asyncio.ensure_future(clock.sleep(1)), asyncio.ensure_future(clock.sleep(2))
    await asyncio.sleep(0)
    clock.advance(1)
    await short
    assert not long.done()
    clock.advance(1)
    await long
    await asyncio.wait_for(clock.sleep(0), 1)


async def test_the_system_clock_goes_on() -> None:
    clock = SystemClock()
    before, wall = clock.monotonic(), clock.now()
    await clock.sleep(0.01)
    assert clock.monotonic() - before >= 0.009
    assert wall.tzinfo is UTC
