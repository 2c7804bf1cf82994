"""Questions to the table of jobs, each inside a transaction of the caller's."""

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, bindparam, select

from sfumato_chassis.errors import NotFound, Reason
from sfumato_chassis.job_rows import to_job
from sfumato_chassis.jobs import Event, Job, JobState
from sfumato_chassis.paging import Page, read_page
from sfumato_chassis.tables import job_events, jobs, request_ids

MAX_EVENTS_READ = 250

# Statements of the calls that clients repeat are built once: to build one takes as long as to run it.
_JOB = select(jobs).where(jobs.c.name == bindparam("name"), jobs.c.kind == bindparam("kind"))
_EVENTS = (
    select(job_events)
    .where(
        job_events.c.job == bindparam("job"),
        job_events.c.sequence > bindparam("after_sequence"),
    )
    .order_by(job_events.c.sequence)
    .limit(bindparam("limit"))
)
_EVENTS_OF_KIND = _EVENTS.where(job_events.c.kind == bindparam("kind"))

HOW_REMOVED: Mapping[bool | None, str] = {
    True: "was deleted",
    False: "was removed after its retention",
    # Tombstones of databases that were upgraded from revision 0002 do not say.
    None: "was deleted, or removed after its retention",
}


def find_job(connection: Connection, kind: str, name: str, owner: str) -> Job:
    """The job ``name`` of ``owner``.

    Raises:
        NotFound: RESOURCE_NOT_FOUND, or JOB_EXPIRED for one whose record was removed.
    """
    row = connection.execute(_JOB, {"name": name, "kind": kind}).one_or_none()
    if row is not None and row.owner == owner:
        return to_job(row)
    tombstone = connection.execute(
        select(request_ids.c.deleted).where(
            request_ids.c.resource == name,
            request_ids.c.principal == owner,
            request_ids.c.expire_time.is_not(None),
        )
    ).first()
    if tombstone is not None:
        raise NotFound(
            Reason.JOB_EXPIRED,
            f"{name} {HOW_REMOVED[tombstone.deleted]}",
            resource_type=kind,
            resource_name=name,
        )
    raise NotFound.resource(kind, name)


def select_job_page(
    connection: Connection, kind: str, owner: str, *, size: int, token: str
) -> Page[Job]:
    """A page of ``owner``'s jobs, newest first."""
    return read_page(
        connection,
        select(jobs).where(jobs.c.kind == kind, jobs.c.owner == owner),
        [jobs.c.ordinal],
        to_job,
        query={"list": kind, "owner": owner},
        size=size,
        token=token,
    )


def jobs_in_states(connection: Connection, kind: str, *states: JobState) -> Sequence[Job]:
    """All jobs in one of ``states``, oldest first."""
    statement = (
        select(jobs).where(jobs.c.kind == kind, jobs.c.state.in_(states)).order_by(jobs.c.ordinal)
    )
    return [to_job(row) for row in connection.execute(statement)]


def select_events(
    connection: Connection,
    job: str,
    after_sequence: int,
    *,
    kind: str | None = None,
    limit: int = MAX_EVENTS_READ,
) -> Sequence[Event]:
    """Up to ``limit`` events that follow ``after_sequence``, of one kind if it is given."""
    values: dict[str, str | int] = {"job": job, "after_sequence": after_sequence, "limit": limit}
    statement = _EVENTS
    if kind is not None:
        statement, values["kind"] = _EVENTS_OF_KIND, kind
    return [
        Event(sequence=row.sequence, time=row.time, kind=row.kind, data=row.data)
        for row in connection.execute(statement, values).all()
    ]
