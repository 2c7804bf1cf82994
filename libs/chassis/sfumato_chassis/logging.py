"""Structured logs. Each line carries the request id and job it belongs to."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TextIO, cast

from sfumato_chassis.config import ConfigError

if TYPE_CHECKING:
    import structlog

SECRET_KEYS = frozenset({"token", "api_key", "authorization", "password", "secret"})


class Structlog:
    """structlog, loaded with the first line or call: a service is ready a twentieth sooner."""

    def __init__(self) -> None:
        self._configure: Callable[[], None] | None = None

    @cached_property
    def _module(self) -> Any:
        # structlog.dev imports rich wherever rich is installed, which would double the time of loading.
        # The renderers here do not use it.
        rich = sys.modules.get("rich")
        sys.modules["rich"] = None  # type: ignore[assignment]
        try:
            return import_module("structlog")
        finally:
            del sys.modules["rich"]
            if rich is not None:
                sys.modules["rich"] = rich

    def load(self) -> Any:
        """The module, configured."""
        module, configure = self._module, self._configure
        if configure is not None:
            self._configure = None
            configure()
        return module

    def configure_with(self, configure: Callable[[], None]) -> None:
        """Has ``configure`` called before the next use."""
        self._configure = configure


_structlog = Structlog()


class LateLogger:
    """A module's logger, made with its first line."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._made: Any = None

    def __getattr__(self, method: str) -> Any:
        structlog = _structlog.load()
        if self._made is None:
            self._made = structlog.get_logger(module=self._name)
        return getattr(self._made, method)


class LogStream:
    """Where lines go. One that cannot be written is lost, and what it tells of goes on.

    Lines are logged where errors become answers: a full disk or a closed pipe must not change those.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Writes if that can be done."""
        with suppress(OSError, ValueError):  # ValueError: it is closed
            self._stream.write(text)

    def flush(self) -> None:
        """Flushes if that can be done."""
        with suppress(OSError, ValueError):
            self._stream.flush()


def redact_secrets(
    logger: object, method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Replaces values whose key says that they are secret."""
    del logger, method
    for key in event.keys() & SECRET_KEYS:
        event[key] = "[redacted]"
    return event


def configure_logging(*, level: str, json_lines: bool, stream: TextIO | None = None) -> None:
    """Sets up the process's log, once, at its start.

    Args:
        level: ``debug``, ``info``, ``warning`` or ``error``.
        json_lines: One JSON object a line; otherwise a line for people.
        stream: Where to; standard error if not given.

    Raises:
        ConfigError: There is no such level.
    """
    levels = logging.getLevelNamesMapping()
    if level.upper() not in levels:
        raise ConfigError(f"log.level {level}: must be debug, info, warning or error")
    lines = cast(TextIO, LogStream(stream or sys.stderr))
    _structlog.configure_with(
        partial(configure_structlog, levels[level.upper()], lines, json_lines=json_lines)
    )


def configure_structlog(level: int, stream: TextIO, *, json_lines: bool) -> None:
    """Sets up structlog."""
    import structlog

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
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of a module."""
    return cast("structlog.stdlib.BoundLogger", LateLogger(name))


@contextmanager
def log_context(**values: Any) -> Iterator[None]:
    """Adds ``values`` to every line logged within."""
    with _structlog.load().contextvars.bound_contextvars(**values):
        yield
