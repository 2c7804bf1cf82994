"""Decisions about a job that must hold against whoever else decides at the same moment."""

from collections.abc import Callable

from sqlalchemy import Connection

from sfumato_chassis.errors import Reason, ResourceExhausted
from sfumato_chassis.job_store import Fenced, JobStore, nothing_more
from sfumato_chassis.jobs import Job, JobState, NewEvent, check_cancellable

RETRY_AFTER_QUEUE_SECONDS = 10.0


async def cancel_job(
    store: JobStore,
    name: str,
    owner: str,
    *,
    also: Callable[[Connection, Job], None] = nothing_more,
) -> Job:
    """Ends a waiting job, or asks for the end of one that is held. Safe to repeat.

    Args:
        also: Runs in the same transaction; what it raises leaves the job as it was.

    Returns:
        The job, CANCELLED or CANCELLING.

    Raises:
        NotFound: No such job.
        FailedPrecondition: JOB_STATE_UNSUITABLE, it has ended in another way.
    """
    while True:
        job = await store.get(name, owner)
        check_cancellable(job)
        if job.state in {JobState.CANCELLED, JobState.CANCELLING}:
            return job
        held = job.state is JobState.RUNNING
        event = NewEvent(kind="cancel_requested" if held else "cancelled")
        try:
            return await store.append(name, [event], fence=job.fence, states={job.state}, also=also)
        except Fenced:
            continue  # it moved on in between


async def end_attempt(
    store: JobStore, name: str, owner: str, decide: Callable[[Job], NewEvent]
) -> Job:
    """Ends the attempt of a job whose process is gone, unless it has ended by itself.

    Args:
        decide: The event that ends it, by the state that the job is in when it is appended.

    Raises:
        NotFound: There is no such job of this owner.
        DBAPIError: The database could not do it.
    """
    while True:
        job = await store.get(name, owner)
        if job.ended or job.state is JobState.QUEUED:
            return job
        try:
            return await store.append(name, [decide(job)], fence=job.fence, states={job.state})
        except Fenced:
            continue  # it moved on in between


def check_queue(job: Job, max_queued: int) -> None:
    """Refuses one job too many, inside the transaction that makes it. Raises QUEUE_FULL."""
    if job.queue_position > max_queued:
        raise ResourceExhausted(
            Reason.QUEUE_FULL,
            f"{max_queued} jobs wait already",
            retry_after_seconds=RETRY_AFTER_QUEUE_SECONDS,
        )
