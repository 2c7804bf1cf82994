"""Worker processes that are made up, for tests of those who start and end them."""

from __future__ import annotations

import asyncio

from sfumato_chassis.clock import SystemClock
from sfumato_chassis.executor import WorkerSpec
from sfumato_chassis.process import ProcessIdentity

SHORT_SECONDS = 0.01
FIRST_PID = 10_000_000
"""Above what Linux gives to a process."""


class HastyClock(SystemClock):
    """Naps where others sleep."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, SHORT_SECONDS))


class MadeUpExecutor:
    """Processes that do nothing until they are told to end.

    Attributes:
        starting: Set once a start has begun.
        startable: Set unless a start is to hang.
        start_error: What a start raises.
        started: What processes were started with.
        killed: Those that were ended.
    """

    def __init__(self) -> None:
        self.starting = asyncio.Event()
        self.startable = asyncio.Event()
        self.startable.set()
        self.start_error: Exception | None = None
        self.started: list[WorkerSpec] = []
        self.killed: list[ProcessIdentity] = []
        self._ended: dict[int, asyncio.Event] = {}

    async def start(self, spec: WorkerSpec) -> ProcessIdentity:
        self.starting.set()
        await self.startable.wait()
        if self.start_error is not None:
            raise self.start_error
        self.started.append(spec)
        process = ProcessIdentity(pid=FIRST_PID + len(self._ended), start_ticks=1)
        self._ended[process.pid] = asyncio.Event()
        return process

    def is_alive(self, process: ProcessIdentity) -> bool:
        return process.pid in self._ended and not self._ended[process.pid].is_set()

    @property
    def num_alive(self) -> int:
        """How many of them run."""
        return sum(not ended.is_set() for ended in self._ended.values())

    async def wait(self, process: ProcessIdentity) -> None:
        await self._ended[process.pid].wait()

    def kill(self, process: ProcessIdentity) -> None:
        self.killed.append(process)
        self.end(process)

    def end(self, process: ProcessIdentity) -> None:
        """The process ends by itself."""
        self._ended[process.pid].set()
