"""Rows of the tables of jobs and events, to and from records."""

import json
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, func, select, update

from sfumato_chassis.errors import JobFailure
from sfumato_chassis.jobs import Event, InterruptionPolicy, Job, JobState
from sfumato_chassis.tables import jobs


def event_row(job: str, event: Event) -> dict[str, Any]:
    """The row of an event. Raises ValueError for a number that is not finite."""
    data = dict(event.data)
    json.dumps(data, allow_nan=False)
    return {
        "job": job,
        "sequence": event.sequence,
        "time": event.time,
        "kind": event.kind,
        "data": data,
    }


def failure_after(failure: JobFailure | None, event: Event) -> JobFailure | None:
    """The failure that a job's status tells once ``event`` has happened."""
    match event.kind:
        case "failed":
            return JobFailure.from_json(event.data)
        case "interrupted":
            return JobFailure.from_json(event.data["failure"])
        case "started":
            return None
        case _:
            return failure


def to_job(row: Row[Any]) -> Job:
    """The record in a row of the table of jobs."""
    return Job(
        name=row.name,
        ordinal=row.ordinal,
        kind=row.kind,
        owner=row.owner,
        state=JobState(row.state),
        interruption_policy=InterruptionPolicy(row.interruption_policy),
        failure=JobFailure.from_json(row.failure) if row.failure else None,
        log_id=row.log_id,
        first_sequence=row.first_sequence,
        last_sequence=row.last_sequence,
        attempt=row.attempt,
        fence=row.fence,
        queue_position=row.queue_position,
        create_time=row.create_time,
        start_time=row.start_time,
        end_time=row.end_time,
        expire_time=row.expire_time,
    )


def next_ordinal(connection: Connection) -> int:
    """Larger than that of any job there is, of whatever kind."""
    newest = select(func.coalesce(func.max(jobs.c.ordinal), 0))
    return int(connection.execute(newest).scalar_one()) + 1


def num_queued(connection: Connection, kind: str) -> int:
    """How many jobs of one kind wait."""
    waiting = (
        select(func.count())
        .select_from(jobs)
        .where(jobs.c.kind == kind, jobs.c.state == JobState.QUEUED)
    )
    return int(connection.execute(waiting).scalar_one())


def update_row(connection: Connection, job: Job) -> None:
    """Writes what events change of a job."""
    connection.execute(
        update(jobs)
        .where(jobs.c.name == job.name)
        .values(
            state=job.state,
            failure=job.failure.to_json() if job.failure else None,
            last_sequence=job.last_sequence,
            start_time=job.start_time,
            end_time=job.end_time,
            expire_time=job.expire_time,
            queue_position=job.queue_position,
        )
    )


def expired_job(kind: str, name: str, owner: str, create_time: datetime) -> Job:
    """What is left of a job whose record was removed."""
    return Job(
        name=name,
        ordinal=0,
        kind=kind,
        owner=owner,
        state=JobState.EXPIRED,
        interruption_policy=InterruptionPolicy.MANUAL,
        failure=None,
        log_id="",
        first_sequence=0,
        last_sequence=0,
        attempt=0,
        fence=0,
        queue_position=0,
        create_time=create_time,
        start_time=None,
        end_time=None,
        expire_time=None,
    )
