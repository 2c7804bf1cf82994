"""Wakes those who wait for a job's next event."""

import asyncio
from collections import defaultdict


class Wakeups:
    """One wake-up per job. Take it before reading the log, then nothing is missed in between."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)

    def take(self, job: str) -> asyncio.Event:
        """An event that is set at the next change of ``job``. Give it back with :meth:`drop`."""
        wakeup = asyncio.Event()
        self._waiting[job].add(wakeup)
        return wakeup

    def drop(self, job: str, wakeup: asyncio.Event) -> None:
        """Forgets a wake-up that nobody waits for any more."""
        waiting = self._waiting.get(job)
        if waiting is not None:
            waiting.discard(wakeup)
            if not waiting:
                del self._waiting[job]

    def notify(self, job: str) -> None:
        """Wakes everyone who took a wake-up of ``job``."""
        for wakeup in self._waiting.pop(job, ()):
            wakeup.set()
