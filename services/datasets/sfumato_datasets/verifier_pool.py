"""Several verifiers at work at once, each with its process and a thread that drives it."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from sfumato_datasets.verifier import DEFAULT_MEMORY_LIMIT_BYTES, ImageVerifier, Verifier

MAX_VERIFIERS: Final = 4
"""More read no faster from one disk."""

Result = TypeVar("Result")


class VerifierPool:
    """Runs work that needs a verifier, in the order in which it comes. Close it after use.

    Args:
        num_verifiers: 0 for as many as there are processors, but at most MAX_VERIFIERS.
        memory_limit_bytes: address space of each process.
    """

    def __init__(
        self,
        *,
        num_verifiers: int = 0,
        memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT_BYTES,
    ) -> None:
        self.num_verifiers = num_verifiers or min(MAX_VERIFIERS, os.cpu_count() or 1)
        self._verifiers = [
            ImageVerifier(memory_limit_bytes=memory_limit_bytes) for _ in range(self.num_verifiers)
        ]
        self._waiting: SimpleQueue[tuple[Future[Any], Callable[[Verifier], Any]] | None] = (
            SimpleQueue()
        )
        self._closed = False
        for verifier in self._verifiers:
            # A daemon: what it reads may hang, and no process is to be kept alive by that.
            threading.Thread(
                target=self._serve, args=(verifier,), name="verify-image", daemon=True
            ).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, work: Callable[[Verifier], Result]) -> Future[Result]:
        """Has `work` done with the next verifier that is free."""
        future: Future[Result] = Future()
        self._waiting.put((future, work))
        return future

    def close(self) -> None:
        """Ends every process. What still waits is not done."""
        self._closed = True
        for verifier in self._verifiers:
            self._waiting.put(None)
            verifier.interrupt()

    def _serve(self, verifier: ImageVerifier) -> None:
        with verifier:
            while (handed := self._waiting.get()) is not None:
                future, work = handed
                if self._closed:
                    future.cancel()
                    continue
                try:
                    future.set_result(work(verifier))
                except BaseException as error:  # noqa: BLE001 - whoever waits must hear of it
                    future.set_exception(error)
                del handed, future, work  # they would live until the next is handed over
