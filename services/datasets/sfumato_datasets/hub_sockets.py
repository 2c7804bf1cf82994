"""Connections that another thread can end, whatever the thread that uses them is waiting for.

A timeout of a socket ends silence alone: a server that sends a byte now and then holds a reader for ever.
"""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from urllib3 import HTTPConnectionPool

CHECK_SECONDS: Final = 0.2
"""How often it is asked whether the connections are still wanted."""


class WatchedSockets:
    """The sockets of a set of connections. Close it after use.

    Args:
        is_wanted: Asked by a thread of its own; once it says no, every read and write ends.
    """

    def __init__(self, is_wanted: Callable[[], bool]) -> None:
        self._is_wanted = is_wanted
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="watch-hub", daemon=True).start()

    def close(self) -> None:
        """Ends the thread."""
        self._closed.set()

    def watch(self, pool: HTTPConnectionPool) -> None:
        """Has the connections that a pool will make watched."""
        sockets = self

        class Watched(pool.ConnectionCls):  # type: ignore[name-defined, misc]
            def _new_conn(self) -> socket.socket:
                made: socket.socket = super()._new_conn()
                # TLS takes the descriptor away from this object; another one of the same socket stays.
                self._watched = sockets.add(made.dup())
                return made

            def close(self) -> None:
                super().close()
                sockets.discard(getattr(self, "_watched", None))

        pool.ConnectionCls = Watched

    def add(self, watched: socket.socket) -> socket.socket:
        """Watches a socket, which is its own from now on."""
        with self._lock:
            self._sockets.add(watched)
        return watched

    def discard(self, watched: socket.socket | None) -> None:
        """Closes a socket that was added, once."""
        with self._lock:
            if watched in self._sockets:
                self._sockets.remove(watched)
                watched.close()

    def _watch(self) -> None:
        while not self._closed.wait(CHECK_SECONDS):
            if not self._is_wanted():
                with self._lock:
                    for watched in self._sockets:
                        with suppress(OSError):  # the other side was faster
                            watched.shutdown(socket.SHUT_RDWR)
