"""How an attempt ends whose worker is gone without having said so."""

from functools import partial

from sqlalchemy import Connection

from sfumato_chassis.errors import JobFailure, Reason, server_draining
from sfumato_chassis.job_control import end_attempt
from sfumato_chassis.job_queries import select_events
from sfumato_chassis.job_store import JobStore
from sfumato_chassis.jobs import (
    InterruptionPolicy,
    Job,
    JobState,
    NewEvent,
    failed_event,
    interrupted_event,
)

MAX_DEATHS = 3
"""A generation that is retried fails when its worker has died this often."""

SERVICE_STOPPED = JobFailure.of(server_draining())
SERVICE_DIED = JobFailure(
    reason=Reason.WORKER_DIED, message="the service died, and the worker with it"
)
WORKER_DIED = JobFailure(reason=Reason.WORKER_DIED, message="the worker died")


async def close_attempt(jobs: JobStore, name: str, owner: str, failure: JobFailure) -> None:
    """Ends the attempt of a generation unless it has ended by itself; a cancel that came first wins.

    Args:
        failure: ``SERVICE_STOPPED``, ``SERVICE_DIED`` or ``WORKER_DIED``.

    Raises:
        NotFound: It was removed meanwhile.
    """
    _, num_earlier = await jobs.read(name, owner, num_deaths)
    decide = partial(end_of, failure=failure, num_earlier_deaths=num_earlier)
    await end_attempt(jobs, name, owner, decide)


def num_deaths(connection: Connection, job: Job) -> int:
    """How many attempts of a job ended by a death; those that a stopping service ended are none."""
    interruptions = select_events(connection, job.name, 0, kind="interrupted")
    reasons = [event.data["failure"]["reason"] for event in interruptions]
    return reasons.count(Reason.WORKER_DIED.value)


def end_of(job: Job, failure: JobFailure, *, num_earlier_deaths: int) -> NewEvent:
    """The event that ends an attempt of ``job`` for ``failure``."""
    if job.state is JobState.CANCELLING:
        return NewEvent(kind="cancelled")
    retried = job.interruption_policy is InterruptionPolicy.AUTO
    if failure is WORKER_DIED and not retried:
        return failed_event(failure)
    deaths = num_earlier_deaths + 1
    if failure.reason is Reason.WORKER_DIED and retried and deaths >= MAX_DEATHS:
        repeated = JobFailure(
            reason=Reason.WORKER_DIED_REPEATEDLY, message=f"the worker died {deaths} times"
        )
        return failed_event(repeated)
    return interrupted_event(job, failure)
