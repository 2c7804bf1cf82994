"""A lock file that lets one process at a time encode an item, on any shared file system.

The holder touches the file while it works. A waiter that sees the file unchanged for longer
than `stale_seconds` of its own clock takes it over, so no clocks are compared across machines.
A lock never guards correctness: two holders at worst do the same work twice.
"""

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path


class FlightLock:
    """One waiter's view of one lock file."""

    def __init__(
        self,
        path: Path,
        *,
        heartbeat_seconds: float = 2.0,
        stale_seconds: float = 20.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._heartbeat_seconds = heartbeat_seconds
        self._stale_seconds = stale_seconds
        self._clock = clock
        self._token = uuid.uuid4().hex
        self._seen: tuple[int, int] | None = None
        self._seen_at = 0.0

    @contextlib.contextmanager
    def attempt(self) -> Iterator[bool]:
        """True while this process holds the lock; False when another one does."""
        self._remove_if_stale()
        try:
            with self._path.open("x", encoding="ascii") as file:
                file.write(self._token)
        except FileExistsError:
            yield False
            return
        ended = threading.Event()
        heart = threading.Thread(target=self._beat, args=(ended,), daemon=True)
        heart.start()
        try:
            yield True
        finally:
            ended.set()
            heart.join()
            if self._owner() == self._token:
                self._path.unlink(missing_ok=True)

    def _beat(self, ended: threading.Event) -> None:
        while not ended.wait(self._heartbeat_seconds):
            with contextlib.suppress(OSError):
                os.utime(self._path)

    def _remove_if_stale(self) -> None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._seen = None
            return
        state = (status.st_ino, status.st_mtime_ns)
        now = self._clock()
        if state != self._seen:
            self._seen, self._seen_at = state, now
        elif now - self._seen_at > self._stale_seconds:
            self._path.unlink(missing_ok=True)
            self._seen = None

    def _owner(self) -> str | None:
        try:
            return self._path.read_text(encoding="ascii")
        except OSError:
            return None
