"""Streams that remember whether their reader has left, as `head` does."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from rich.console import Console


class Output:
    """A text stream; what is not said here is the stream's own.

    Attributes:
        is_broken: Whether a write found no reader.
        is_lost: Whether a write failed otherwise, where that was to change nothing.
    """

    def __init__(self, stream: TextIO, *, may_be_lost: bool) -> None:
        self._stream = stream
        self._may_be_lost = may_be_lost
        self.is_broken = False
        self.is_lost = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes text. Raises BrokenPipeError when nobody reads."""
        with self._watched():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Hands on what was written. Raises BrokenPipeError when nobody reads."""
        with self._watched():
            self._stream.flush()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            self.is_broken = True
            raise
        except OSError:
            if not self._may_be_lost:
                raise
            self.is_lost = True


class PipeConsole(Console):
    """A console whose lost reader is an exception; rich would end the process in its place."""

    def on_broken_pipe(self) -> None:
        """Raises BrokenPipeError."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


@contextmanager
def watched_output() -> Iterator[tuple[Output, Output]]:
    """Standard output and standard error, to the last byte, in place of those of `sys`.

    BrokenPipeError ends the block quietly: there is nobody to tell. A character that an encoding
    lacks is escaped.
    """
    # Python has None for a stream that was closed before it began.
    streams = sys.stdout or _nowhere(), sys.stderr or _nowhere()
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # An error that cannot be told, on a full disk, is still the error that it is.
    outputs = Output(streams[0], may_be_lost=False), Output(streams[1], may_be_lost=True)
    sys.stdout, sys.stderr = outputs
    try:
        with suppress(BrokenPipeError):
            yield outputs
    finally:
        sys.stdout, sys.stderr = streams
        for output, stream in zip(outputs, streams, strict=True):
            with suppress(BrokenPipeError):
                output.flush()
            if output.is_broken or output.is_lost:
                _discard(stream)


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")


def _discard(stream: TextIO) -> None:
    """Sends what is left in a stream nowhere; the interpreter would complain of it when it ends."""
    with suppress(OSError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())
