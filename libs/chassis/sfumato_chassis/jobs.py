"""Jobs as the services see them: records, states, events. Their store is in ``job_store``."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection

from sfumato_chassis.errors import FailedPrecondition, JobFailure, Reason


class JobState(StrEnum):
    """The names of ``sfumato.job.v1.JobState``."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    PAUSED = "PAUSED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    INTERRUPTED = "INTERRUPTED"
    EXPIRED = "EXPIRED"


class InterruptionPolicy(StrEnum):
    """What happens when the process that does the work dies."""

    AUTO = "AUTO"
    MANUAL = "MANUAL"


ENDED = frozenset(
    {
        JobState.SUCCEEDED,
        JobState.FAILED,
        JobState.CANCELLED,
        JobState.INTERRUPTED,
        JobState.EXPIRED,
    }
)
"""States that a job never leaves. An interruption that is retried leads to QUEUED instead."""

NOT_ENDED = frozenset(JobState) - ENDED
"""States that something still follows."""

ACTIVE = frozenset({JobState.RUNNING, JobState.CANCELLING})
"""States in which something holds the job."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NewEvent:
    """An event before it has a number.

    Attributes:
        data: JSON with finite numbers only.
        time: When it happened, if that is not now.
    """

    kind: str
    data: Mapping[str, Any] = field(default_factory=dict)
    time: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One entry of a job's log."""

    sequence: int
    time: datetime
    kind: str
    data: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """The part that all jobs share."""

    name: str
    ordinal: int
    kind: str
    owner: str
    state: JobState
    interruption_policy: InterruptionPolicy
    failure: JobFailure | None
    log_id: str
    first_sequence: int
    last_sequence: int
    attempt: int
    fence: int
    queue_position: int
    create_time: datetime
    start_time: datetime | None
    end_time: datetime | None
    expire_time: datetime | None

    @property
    def ended(self) -> bool:
        """Whether nothing will happen to it any more."""
        return self.state in ENDED


Project = Callable[[Connection, Job, Sequence[Event]], None]
"""Brings a service's own tables in line with new events, in the transaction that appends them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobKind:
    """What the store must know of one service's jobs.

    Attributes:
        name: ``training_run``, ``import`` or ``generation``; also the resource type in errors.
        prefix: First part of the names of such jobs.
        project: Called with every event inside the transaction that appends it.
        retention: How long a job is kept after its end; None for ever.
    """

    name: str
    prefix: str
    project: Project
    retention: timedelta | None


def state_after(state: JobState, event: NewEvent | Event) -> JobState:
    """The state that a job is in once ``event`` has happened. Events decide it, nothing else does."""
    match event.kind:
        case "queued":
            return JobState.QUEUED
        case "started":
            return JobState.RUNNING
        case "cancel_requested":
            return JobState.CANCELLING
        case "succeeded":
            return JobState.SUCCEEDED
        case "failed":
            return JobState.FAILED
        case "cancelled":
            return JobState.CANCELLED
        case "interrupted":
            return JobState.QUEUED if event.data["retrying"] else JobState.INTERRUPTED
        case _:
            return state


def as_recorded(state: JobState, event: NewEvent) -> NewEvent:
    """``event`` as the log of a job in ``state`` records it.

    A Cancel that was acknowledged holds: whatever ends the attempt after that ends the job CANCELLED. A
    result that was on its way is dropped and nothing is published; a failure is dropped as well, since
    the work that failed was given up before and the failure may be the cancel's own doing.
    """
    if state is JobState.CANCELLING and event.kind in {"succeeded", "failed", "interrupted"}:
        return NewEvent(kind="cancelled", time=event.time)
    return event


def number_events(job: Job, events: Sequence[NewEvent], now: datetime) -> Sequence[Event]:
    """``events`` as they follow in the log of ``job``, none of them later than ``now``."""
    recorded = [as_recorded(job.state, event) for event in events]
    return [
        Event(
            sequence=sequence,
            time=min(event.time or now, now),
            kind=event.kind,
            data=event.data,
        )
        for sequence, event in enumerate(recorded, start=job.last_sequence + 1)
    ]


def failed_event(failure: JobFailure) -> NewEvent:
    """The event that ends a job without a result."""
    return NewEvent(kind="failed", data=failure.to_json())


def interrupted_event(job: Job, failure: JobFailure, *, retrying: bool | None = None) -> NewEvent:
    """The event of an attempt whose process is gone.

    Args:
        job: As it was while the attempt ran.
        failure: Why.
        retrying: Whether another attempt follows; by the job's policy if not given.
    """
    if retrying is None:
        retrying = job.interruption_policy is InterruptionPolicy.AUTO
    return NewEvent(
        kind="interrupted",
        data={"attempt": job.attempt, "failure": failure.to_json(), "retrying": retrying},
    )


def check_cancellable(job: Job) -> None:
    """Raises FailedPrecondition for a job that has ended in another way than by Cancel."""
    if job.ended and job.state is not JobState.CANCELLED:
        raise FailedPrecondition(
            Reason.JOB_STATE_UNSUITABLE,
            f"{job.name} has ended: {job.state.value}",
            details={"state": job.state.value},
        )
