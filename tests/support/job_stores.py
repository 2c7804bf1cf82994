"""A store of jobs of a kind that no service has."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from sqlalchemy import Connection

from sfumato_chassis.clock import Clock, SystemClock
from sfumato_chassis.database import Database
from sfumato_chassis.identifiers import random_name
from sfumato_chassis.job_store import JobStore
from sfumato_chassis.jobs import Event, InterruptionPolicy, Job, JobKind
from sfumato_chassis.requests import Request, fingerprint_of
from sfumato_chassis.schema import CHASSIS_SCHEMA, prepare_database
from sfumato_chassis.wakeups import Wakeups

OWNER = "local"


@asynccontextmanager
async def opened_database(folder: Path) -> AsyncIterator[Database]:
    """A database with the chassis's tables."""
    database = Database(f"sqlite:///{folder / 'store.sqlite3'}")
    try:
        await prepare_database(database, [CHASSIS_SCHEMA])
        yield database
    finally:
        database.close()


class Projected:
    """What a service would write into its own tables."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int, str]] = []

    def __call__(self, connection: Connection, job: Job, events: Sequence[Event]) -> None:
        self.events += [(job.name, event.sequence, event.kind) for event in events]


def make_store(
    database: Database,
    *,
    clock: Clock | None = None,
    retention: timedelta | None = None,
    project: Projected | None = None,
    name: str = "task",
    on_queue: Callable[[], None] = lambda: None,
) -> JobStore:
    """A store of jobs of the kind `name`."""
    kind = JobKind(name=name, prefix=name, project=project or Projected(), retention=retention)
    return JobStore(
        database,
        kind,
        clock=clock or SystemClock(),
        new_name=random_name,
        wakeups=Wakeups(),
        on_queue=on_queue,
    )


def request(body: bytes = b"", request_id: str = "", principal: str = OWNER) -> Request:
    """A create with a fresh request id unless one is given."""
    return Request(
        principal=principal,
        method="tests.CreateTask",
        request_id=request_id or str(uuid.uuid4()),
        fingerprint=fingerprint_of(body),
    )


def add_nothing(connection: Connection, job: Job) -> None:
    """For jobs without a row of their service's own."""


async def create(
    store: JobStore,
    asked: Request | None = None,
    *,
    policy: InterruptionPolicy = InterruptionPolicy.AUTO,
) -> Job:
    """A queued job."""
    job, _ = await store.create(asked or request(), policy=policy, add=add_nothing)
    return job
