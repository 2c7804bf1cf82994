"""Processes by identity: a number alone may be taken over by another process."""

import asyncio
import os
import signal
from dataclasses import dataclass
from pathlib import Path

POLL_SECONDS = 0.2
START_TICKS_FIELD = 22
"""Place of starttime in /proc/<pid>/stat, counted from 1 (proc(5))."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessIdentity:
    """A process; ``start_ticks`` is None where the system does not tell it."""

    pid: int
    start_ticks: int | None


def identify(pid: int) -> ProcessIdentity:
    """The identity of the process that has ``pid`` now."""
    return ProcessIdentity(pid=pid, start_ticks=read_stat(pid)[1])


def read_stat(pid: int) -> tuple[str, int | None]:
    """State letter and start time of a process; ``("X", None)`` when it is gone or not told."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "X", None
    after_command = text.rpartition(")")[2].split()
    return after_command[0], int(after_command[START_TICKS_FIELD - 3])


def is_alive(identity: ProcessIdentity) -> bool:
    """Whether this very process still runs; a zombie does not."""
    if identity.start_ticks is not None:
        state, start_ticks = read_stat(identity.pid)
        return start_ticks == identity.start_ticks and state not in {"Z", "X"}
    try:
        os.kill(identity.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def kill(identity: ProcessIdentity, signal_number: signal.Signals = signal.SIGKILL) -> None:
    """Sends a signal to this very process, if it still runs."""
    if is_alive(identity):
        try:
            os.kill(identity.pid, signal_number)
        except ProcessLookupError:
            return


async def wait_for_exit(identity: ProcessIdentity) -> None:
    """Returns when the process is gone, whether or not it is a child of this one."""
    try:
        descriptor = os.pidfd_open(identity.pid)
    except (AttributeError, OSError):
        while is_alive(identity):  # noqa: ASYNC110 - there is nothing that could wake us
            await asyncio.sleep(POLL_SECONDS)
        return
    try:
        if not is_alive(identity):
            return
        gone = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(descriptor)
    finally:
        os.close(descriptor)
