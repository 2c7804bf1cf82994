import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sfumato_chassis.disk_space import is_disk_full
from sfumato_chassis.failpoints import (
    VARIABLE,
    FailpointError,
    Failpoints,
    from_environment,
    parse,
    unarmed,
)


def test_nothing_is_armed_in_production() -> None:
    assert from_environment({}) is unarmed
    unarmed("anywhere")


@pytest.mark.parametrize("text", ["place", "place=explode", "place=error@x", "=", "a=hold"])
def test_a_malformed_specification_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"failpoint|invalid literal"):
        parse(text)


def test_a_full_disk_is_one_that_is_recognised() -> None:
    with pytest.raises(FailpointError) as full:
        Failpoints(parse("first=full"))("first")
    assert is_disk_full(full.value)


def test_an_error_is_raised_at_its_place_and_passage() -> None:
    failpoint = Failpoints(parse("first=error,second=error@2"))
    for _ in range(2):
        with pytest.raises(FailpointError, match="first"):
            failpoint("first")
    failpoint("second")
    with pytest.raises(FailpointError, match="second"):
        failpoint("second")
    failpoint("second")
    failpoint("third")


async def test_hold_waits_for_its_file(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    failpoint = Failpoints(parse(f"place=hold:{gate}"))
    held = asyncio.ensure_future(asyncio.to_thread(failpoint, "place"))
    done, _ = await asyncio.wait([held], timeout=0.05)
    assert not done
    gate.touch()
    await asyncio.wait_for(held, 5)


def test_kill_ends_the_process_at_once() -> None:
    program = (
        "import os; from sfumato_chassis.failpoints import from_environment;"
        "from_environment(os.environ)('place'); print('alive')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, VARIABLE: "place=kill"},
        capture_output=True,
    )
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == b""
