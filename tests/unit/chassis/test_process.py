import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from sfumato_chassis.process import (
    ProcessIdentity,
    identify,
    is_alive,
    kill,
    wait_for_exit,
)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_a_process_is_known_by_number_and_start(child: subprocess.Popen[bytes]) -> None:
    identity = identify(child.pid)
    assert identity.start_ticks is not None
    assert is_alive(identity)
    assert not is_alive(ProcessIdentity(pid=child.pid, start_ticks=identity.start_ticks + 1))


def test_a_number_taken_over_is_not_killed(child: subprocess.Popen[bytes]) -> None:
    identity = identify(child.pid)
    assert identity.start_ticks is not None
    kill(ProcessIdentity(pid=child.pid, start_ticks=identity.start_ticks - 1))
    assert child.poll() is None
    kill(identity)
    assert child.wait(10) == -signal.SIGKILL


def test_a_zombie_is_dead(child: subprocess.Popen[bytes]) -> None:
    identity = identify(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(identity)
    kill(identity)


def test_where_the_start_is_not_told_the_number_decides(child: subprocess.Popen[bytes]) -> None:
    assert is_alive(ProcessIdentity(pid=child.pid, start_ticks=None))
    child.kill()
    child.wait(10)
    assert not is_alive(ProcessIdentity(pid=child.pid, start_ticks=None))
    assert is_alive(ProcessIdentity(pid=1, start_ticks=None))


async def test_waiting_ends_with_the_process(child: subprocess.Popen[bytes]) -> None:
    identity = identify(child.pid)
    waiting = asyncio.ensure_future(wait_for_exit(identity))
    done, _ = await asyncio.wait([waiting], timeout=0.05)
    assert not done
    child.kill()
    await asyncio.wait_for(waiting, 5)
    child.wait(10)
    await asyncio.wait_for(wait_for_exit(identity), 5)


async def test_waiting_for_another_process_of_that_number_is_over(
    child: subprocess.Popen[bytes],
) -> None:
    await asyncio.wait_for(wait_for_exit(ProcessIdentity(pid=child.pid, start_ticks=1)), 5)
