"""Threads for work that may take long or never end, as reading from a network mount may.

asyncio has a few threads for everybody, and waits for each of them before the process ends. Here one kind
of work has threads of its own: what hangs stops only its like, and keeps no process alive.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar

MAX_READERS = 4
"""So many requests read, at once, what may lie on a network mount."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Threads:
    """Runs functions, each in a thread of its own, at most ``limit`` at once; more wait.

    Args:
        name: Of the threads.
        limit: A thread counts until its function has ended, whether anybody waits for it or not.
    """

    def __init__(self, name: str, *, limit: int) -> None:
        self._name = name
        self._free = asyncio.Semaphore(limit)

    async def run(
        self,
        work: Callable[Parameters, Result],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Result:
        """Answers what ``work`` answers, or raises what it raises; it sees the caller's context.

        A caller that is cancelled leaves at once; what has begun goes on.
        """
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        context = copy_context()

        def serve() -> None:
            try:
                answer = partial(future.set_result, context.run(work, *args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - whoever waits must hear of it
                answer = partial(fail, future, error)
            tell(future, answer)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._free.release)

        try:
            threading.Thread(target=serve, name=self._name, daemon=True).start()
        except RuntimeError:
            self._free.release()
            raise
        return await future


def fail(future: asyncio.Future[Any], error: BaseException) -> None:
    """Has whoever awaits ``future`` meet ``error``, or one with it as its cause."""
    if isinstance(error, StopIteration):  # which a future cannot hold
        met = RuntimeError("the work raised StopIteration")
        met.__cause__ = error
        future.set_exception(met)
    else:
        future.set_exception(error)


def tell(future: asyncio.Future[Any], answer: Callable[[], None]) -> None:
    """Answers in the loop's thread, if anybody waits there still."""

    def answer_if_awaited() -> None:
        if not future.done():
            answer()

    with suppress(RuntimeError):  # the loop is closed
        future.get_loop().call_soon_threadsafe(answer_if_awaited)
