"""Structured logs. Each line carries the request id and job it belongs to."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

# structlog.dev imports rich wherever rich is installed, which would double the time that structlog
# takes to load. The renderers here do not use it.
_rich = sys.modules.get("rich")
sys.modules["rich"] = None  # type: ignore[assignment]
try:
    import structlog
finally:
    del sys.modules["rich"]
    if _rich is not None:
        sys.modules["rich"] = _rich

Logger = structlog.stdlib.BoundLogger
SECRET_KEYS = frozenset({"token", "api_key", "authorization", "password", "secret"})


class LogStream:
    """Where lines go. One that cannot be written is lost, and what it tells of goes on.

    Lines are logged where errors become answers: a full disk or a closed pipe must not change those.
    """

    def __init__(self, stream: TextIO | None) -> None:
        """Without a stream lines go to what is standard error when they are written."""
        self._stream = stream

    def write(self, text: str) -> None:
        """Writes if that can be done."""
        with suppress(OSError, ValueError):  # ValueError: it is closed
            (self._stream or sys.stderr).write(text)

    def flush(self) -> None:
        """Flushes if that can be done."""
        with suppress(OSError, ValueError):
            (self._stream or sys.stderr).flush()


def redact_secrets(
    logger: object, method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Replaces values whose key says that they are secret."""
    del logger, method
    for key in event.keys() & SECRET_KEYS:
        event[key] = "[redacted]"
    return event


def configure_logging(*, level: str, json_lines: bool, stream: TextIO | None = None) -> None:
    """Sets up the process's log, at its start. What was set up before is forgotten.

    Args:
        level: ``debug``, ``info``, ``warning`` or ``error``.
        json_lines: One JSON object a line; otherwise a line for people.
        stream: Where to; if not given, what is standard error when a line is written.
    """
    renderer: structlog.typing.Processor
    if json_lines:
        renderer = structlog.processors.JSONRenderer(ensure_ascii=False)
    else:
        renderer = structlog.dev.ConsoleRenderer(
            colors=False, exception_formatter=structlog.dev.plain_traceback
        )
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        redact_secrets,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if json_lines:
        processors.append(structlog.processors.format_exc_info)
    lines = structlog.WriteLogger(cast(TextIO, LogStream(stream)))
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=lambda *_: lines,
        # A cached logger would not follow a later configuration; it would save a microsecond a line.
        cache_logger_on_first_use=False,
    )


def get_logger(name: str) -> Logger:
    """The logger of a module."""
    return cast(Logger, structlog.get_logger(module=name))


@contextmanager
def log_context(**values: Any) -> Iterator[None]:
    """Adds ``values`` to every line logged within."""
    with structlog.contextvars.bound_contextvars(**values):
        yield
