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
    """A text stream; `is_broken` once a write found no reader. Everything else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.is_broken = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes text. Raises BrokenPipeError when nobody reads."""
        with self._watched():
            return self._stream.write(text)

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
    streams = sys.stdout, sys.stderr
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    outputs = Output(streams[0]), Output(streams[1])
    sys.stdout, sys.stderr = outputs
    try:
        with suppress(BrokenPipeError):
            yield outputs
    finally:
        sys.stdout, sys.stderr = streams
        for output, stream in zip(outputs, streams, strict=True):
            with suppress(BrokenPipeError):
                output.flush()
            if output.is_broken:
                _discard(stream)


def _discard(stream: TextIO) -> None:
    """Sends what is left in a stream nowhere; the interpreter would complain of it when it ends."""
    with suppress(OSError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())
