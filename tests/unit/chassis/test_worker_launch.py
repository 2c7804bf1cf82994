"""A worker that is started is known to its channel, or it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from job_stores import opened_database
from made_up_workers import MadeUpExecutor
from sfumato_chassis.clock import SystemClock
from sfumato_chassis.database import Database
from sfumato_chassis.identifiers import random_name
from sfumato_chassis.worker_channel import WorkerChannel

PATIENCE_SECONDS = 10


class SlowDatabase(Database):
    """Fails in its writes, or does not come to them, when told so."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.error: Exception | None = None
        self.writing = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()

    async def write(self, work: Callable[..., Any]) -> Any:
        self.writing.set()
        await self.writable.wait()
        if self.error is not None:
            raise self.error
        return await super().write(work)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[SlowDatabase]:
    async with opened_database(tmp_path):
        slow = SlowDatabase(f"sqlite:///{tmp_path / 'store.sqlite3'}")
        yield slow
        slow.close()


@pytest.fixture
def executor() -> MadeUpExecutor:
    return MadeUpExecutor()


@pytest.fixture
def channel(database: SlowDatabase, executor: MadeUpExecutor, tmp_path: Path) -> WorkerChannel:
    async def on_report(job: str, fence: int, events: object) -> int:
        raise AssertionError("a made up worker reports nothing")

    return WorkerChannel(
        "tests",
        database,
        executor,
        clock=SystemClock(),
        new_name=random_name,
        run_folder=tmp_path / "run",
        lease_seconds=20.0,
        rest_seconds=20.0,
        on_report=on_report,
    )


async def test_a_worker_that_cannot_be_noted_is_ended(
    channel: WorkerChannel, database: SlowDatabase, executor: MadeUpExecutor, tmp_path: Path
) -> None:
    database.error = OSError("the disk is full")
    with pytest.raises(OSError, match="full"):
        await channel.launch("any", {}, log_folder=tmp_path)
    assert len(executor.started) == 1
    assert executor.num_alive == 0


async def test_a_launch_that_is_given_up_leaves_no_worker(
    channel: WorkerChannel, database: SlowDatabase, executor: MadeUpExecutor, tmp_path: Path
) -> None:
    database.writing.clear()
    database.writable.clear()
    launching = asyncio.create_task(channel.launch("any", {}, log_folder=tmp_path))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await database.writing.wait()
    assert executor.num_alive == 1
    launching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await launching
    assert executor.num_alive == 0
