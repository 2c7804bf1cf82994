"""Named places where a test makes the process die or a call fail. Off in production.

A failpoint is armed through the environment variable ``SFUMATO_FAILPOINTS``, a comma-separated list of
``name=action`` or ``name=action@n`` (act on the n-th passage, counted from 1). Actions:

- ``kill``: SIGKILL to this process, as a power cut would.
- ``error``: raise :class:`FailpointError` (an OSError, as a failing disk would).
- ``full``: raise the error of a disk without space.
- ``hold:PATH``: wait until the file PATH exists.
"""

import errno
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "SFUMATO_FAILPOINTS"
HOLD_POLL_SECONDS = 0.01

Failpoint = Callable[[str], None]
"""Called with a place's name whenever the program passes it."""


class FailpointError(OSError):
    """Raised at a failpoint that is armed with ``error``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Armed:
    """What happens at one place, and at which passage (0 for each)."""

    action: str
    passage: int


def unarmed(name: str) -> None:
    """The failpoint of production: nothing happens at ``name``."""
    del name


def parse(specification: str) -> dict[str, Armed]:
    """Reads the variable's value. Raises ValueError for a malformed one."""
    armed = {}
    for item in filter(None, specification.split(",")):
        name, separator, action = item.partition("=")
        if not separator:
            raise ValueError(f"failpoint without an action: {item!r}")
        action, _, passage = action.partition("@")
        if action not in {"kill", "error", "full"} and not action.startswith("hold:"):
            raise ValueError(f"unknown failpoint action: {action!r}")
        armed[name] = Armed(action=action, passage=int(passage or 0))
    return armed


class Failpoints:
    """Armed places and how often each was passed."""

    def __init__(self, armed: Mapping[str, Armed]) -> None:
        self._armed = armed
        self._passages: Counter[str] = Counter()

    def __call__(self, name: str) -> None:
        armed = self._armed.get(name)
        if armed is None:
            return
        self._passages[name] += 1
        if armed.passage in {0, self._passages[name]}:
            act(name, armed.action)


def act(name: str, action: str) -> None:
    """Does ``action`` for the place ``name``."""
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "error":
        raise FailpointError(f"failpoint {name}")
    if action == "full":
        raise FailpointError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    gate = Path(action.removeprefix("hold:"))
    while not gate.exists():
        time.sleep(HOLD_POLL_SECONDS)


def from_environment(environment: Mapping[str, str]) -> Failpoint:
    """The failpoints that ``environment`` arms."""
    armed = parse(environment.get(VARIABLE, ""))
    return Failpoints(armed) if armed else unarmed
