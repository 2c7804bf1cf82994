"""The same client for code without an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from sfumato_client.client import Client

ResultT = TypeVar("ResultT")


class BlockingClient:
    """Runs the asyncio client on a loop in a thread of its own. Use it with `with`.

    It has two methods, so that nothing is written twice:

        with BlockingClient() as client:
            run = client.call(lambda c: c.trainer.get_training_run(name))
            for item in client.iterate(lambda c: c.trainer.watch_training_run(name)):
                ...
    """

    def __init__(self, make_client: Callable[[], Client] = Client) -> None:
        """`make_client` is called on the loop's thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="sfumato-client", daemon=True
        )
        self._thread.start()
        self._client = self._run(_made(make_client))

    def call(self, method: Callable[[Client], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """Calls a method of the client and waits for its result."""
        return self._run(method(self._client))

    def iterate(
        self, method: Callable[[Client], AsyncGenerator[ResultT, None]]
    ) -> Iterator[ResultT]:
        """Iterates over what a list or watch method yields; leaving the loop ends it."""
        items = method(self._client)
        try:
            while True:
                try:
                    yield self._run(_next(items))
                except StopAsyncIteration:
                    return
        finally:
            self._run(_close(items))

    def close(self) -> None:
        """Closes the connections and ends the thread; jobs go on."""
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise


async def _made(make_client: Callable[[], Client]) -> Client:
    return make_client()


async def _next(items: AsyncGenerator[ResultT, None]) -> ResultT:
    return await anext(items)


async def _close(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()
