"""A database, a store of jobs, and worker channels on them."""

import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from job_stores import make_store, opened_database
from sfumato_chassis.clock import SystemClock
from sfumato_chassis.database import Database
from sfumato_chassis.executor import LocalExecutor
from sfumato_chassis.identifiers import random_name
from sfumato_chassis.job_store import JobStore
from sfumato_chassis.jobs import NewEvent
from sfumato_chassis.process import kill
from sfumato_chassis.worker_channel import WorkerChannel, WorkerHandle
from worker_channels import LEASE_SECONDS, OpenChannel, Reports

SUPPORT = Path(__file__).parents[2] / "support"


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with opened_database(tmp_path) as opened:
        yield opened


@pytest.fixture
def store(database: Database) -> JobStore:
    return make_store(database)


@pytest.fixture
def executor() -> LocalExecutor:
    return LocalExecutor(threads=1)


@pytest.fixture
def reports() -> Reports:
    return Reports()


@pytest.fixture
async def open_channel(
    database: Database,
    store: JobStore,
    executor: LocalExecutor,
    reports: Reports,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[OpenChannel]:
    """Opens channels as one life of the service after another would; `tiny_worker` is found."""
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT), prepend=os.pathsep)
    channels: list[WorkerChannel] = []
    handles: list[WorkerHandle] = []

    async def on_report(job: str, fence: int, numbered: Sequence[tuple[int, NewEvent]]) -> int:
        if reports.broken:
            reports.num_failed.release()
            raise RuntimeError("the store is away")
        return (await store.append_from_worker(job, fence, numbered))[1]

    async def start(
        lease_seconds: float = LEASE_SECONDS, rest_seconds: float = LEASE_SECONDS
    ) -> tuple[WorkerChannel, Sequence[WorkerHandle]]:
        channel = WorkerChannel(
            "tests",
            database,
            executor,
            clock=SystemClock(),
            new_name=random_name,
            run_folder=tmp_path / "run",
            lease_seconds=lease_seconds,
            rest_seconds=rest_seconds,
            on_report=on_report,
        )
        channels.append(channel)
        survivors = await channel.start()
        handles.extend(survivors)
        return channel, survivors

    yield start
    for channel in channels:
        handles.extend(vars(channel)["_handles"].values())
        await channel.stop()
    for handle in handles:
        kill(handle.process)
        await executor.wait(handle.process)
