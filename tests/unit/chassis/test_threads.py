import asyncio
import subprocess
import sys
import threading
from contextvars import ContextVar

import pytest

from sfumato_chassis.threads import Threads

PATIENCE_SECONDS = 10
END_WITH_WORK_THAT_HANGS = """
import asyncio, threading
from sfumato_chassis.threads import Threads

async def main():
    begun = threading.Event()
    def hang():
        begun.set()
        threading.Event().wait()
    work = asyncio.ensure_future(Threads("test", limit=1).run(hang))
    await asyncio.to_thread(begun.wait)
    work.cancel()

asyncio.run(main())
"""


async def test_work_answers_and_raises_in_its_callers_context() -> None:
    request = ContextVar("request", default="")
    request.set("trace-1")
    threads = Threads("test", limit=1)
    assert await threads.run(lambda text: text + request.get(), "seen ") == "seen trace-1"
    with pytest.raises(LookupError):
        await threads.run({}.__getitem__, "absent")


async def test_an_error_that_no_future_can_hold_is_met_as_the_cause_of_another() -> None:
    def stop() -> None:
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration") as met:
        await asyncio.wait_for(Threads("test", limit=1).run(stop), PATIENCE_SECONDS)
    assert isinstance(met.value.__cause__, StopIteration)


async def test_no_more_run_at_once_than_may() -> None:
    threads = Threads("test", limit=2)
    running, most = 0, 0
    lock, both = threading.Lock(), threading.Barrier(2, timeout=PATIENCE_SECONDS)

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        both.wait()
        with lock:
            running -= 1

    await asyncio.gather(*(threads.run(work) for _ in range(6)))
    assert most == 2


async def test_work_that_hangs_counts_until_it_has_ended() -> None:
    threads = Threads("test", limit=1)
    begun, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        go_on.wait(PATIENCE_SECONDS)

    hanging = asyncio.ensure_future(threads.run(hang))
    assert await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
    hanging.cancel()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await threads.run(int)
    go_on.set()
    assert await asyncio.wait_for(threads.run(int), PATIENCE_SECONDS) == 0


def test_work_that_hangs_keeps_no_process_alive() -> None:
    ended = subprocess.run([sys.executable, "-c", END_WITH_WORK_THAT_HANGS], timeout=30)
    assert ended.returncode == 0
