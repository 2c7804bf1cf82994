"""Work that goes on for as long as a service does."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from sfumato_chassis.clock import Clock
from sfumato_chassis.logging import get_logger

RESTART_SECONDS = 1.0

log = get_logger(__name__)


async def keep_running(name: str, work: Callable[[], Awaitable[None]], clock: Clock) -> None:
    """Runs ``work``, which is meant not to end, and begins it anew after an unexpected error."""
    while True:
        try:
            await work()
            return
        except Exception:
            log.exception("background work failed, it begins anew", work=name)
            await clock.sleep(RESTART_SECONDS)


class BackgroundTasks:
    """Tasks of one owner, cancelled together."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts ``work``; an error that it ends with is logged."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    async def finish(self, *, within_seconds: float | None = None) -> bool:
        """Waits until everything that runs has ended by itself; answers whether it has.

        What has not by then goes on, also when the wait is given up.
        """
        if not self._tasks:
            return True
        _, unfinished = await asyncio.wait(self._tasks, timeout=within_seconds)
        return not unfinished

    async def rest(self, *, within_seconds: float) -> None:
        """Waits until everything that runs has ended by itself; cancels what has not by then."""
        if not await self.finish(within_seconds=within_seconds):
            await self.cancel()

    async def cancel(self) -> None:
        """Cancels what runs and waits for its end."""
        running = list(self._tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background work failed", exc_info=error)
