import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import pytest
import structlog

from sfumato_chassis.logging import configure_logging, get_logger

LOADED_BY_MANY_AT_ONCE = """
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

def log(number):
    together.wait()
    from sfumato_chassis.logging import configure_logging, get_logger
    configure_logging(level="info", json_lines=True)
    get_logger("test").info("line", number=number)

together = Barrier(8, timeout=20)
with ThreadPoolExecutor(8) as threads:
    list(threads.map(log, range(8)))
import rich.table
"""


@pytest.fixture(params=["full", "closed"])
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TextIO]:
    """A stream on a full disk, or one that is closed."""
    path = Path("/dev/full") if request.param == "full" else tmp_path / "log"
    stream = path.open("w", encoding="utf-8", buffering=1)
    if request.param == "closed":
        stream.close()
    yield stream
    with suppress(OSError):
        stream.close()


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize("json_lines", [True, False])
def test_a_line_that_cannot_be_written_is_lost_and_nothing_else(
    broken: TextIO, json_lines: bool
) -> None:
    configure_logging(level="info", json_lines=json_lines, stream=broken)
    log = get_logger("test")
    log.info("lost")
    try:
        raise ValueError("text")
    except ValueError:
        log.exception("lost as well")
    with pytest.raises((OSError, ValueError)):
        broken.write("a line\n")


def test_threads_may_load_it_at_once() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LOADED_BY_MANY_AT_ONCE], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count('"event": "line"') == 8


def test_a_logger_that_has_logged_follows_a_later_configuration() -> None:
    first, second = io.StringIO(), io.StringIO()
    log = get_logger("test")
    configure_logging(level="error", json_lines=False, stream=first)
    log.info("below the level")
    log.error("to the first")
    configure_logging(level="info", json_lines=True, stream=second)
    log.info("to the second")
    assert "to the first" in first.getvalue()
    assert len(first.getvalue().splitlines()) == 1
    line = json.loads(second.getvalue())
    assert (line["event"], line["level"], line["module"]) == ("to the second", "info", "test")


def test_a_logger_that_has_logged_follows_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    configure_logging(level="info", json_lines=True)
    log = get_logger("test")
    for _ in range(2):
        stream = io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        log.info("line")
        assert json.loads(stream.getvalue())["event"] == "line"
        stream.close()
