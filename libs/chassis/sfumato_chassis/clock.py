"""Time, passed in wherever it matters so that a test can own it."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """Wall time for records, monotonic time for leases and timeouts."""

    def now(self) -> datetime:
        """Wall time in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary origin; never steps back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Returns after ``seconds`` of monotonic time."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, start: datetime) -> None:
        self._start = start
        self._elapsed = 0.0
        self._sleepers: list[tuple[float, asyncio.Event]] = []

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        self._sleepers.append((self._elapsed + seconds, woken))
        self.advance(0)
        await woken.wait()

    def advance(self, seconds: float) -> None:
        """Moves both times on and wakes every sleeper that is due."""
        self._elapsed += seconds
        due = [sleeper for sleeper in self._sleepers if sleeper[0] <= self._elapsed]
        self._sleepers = [sleeper for sleeper in self._sleepers if sleeper[0] > self._elapsed]
        for _, woken in due:
            woken.set()
