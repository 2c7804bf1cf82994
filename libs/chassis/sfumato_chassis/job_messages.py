"""The shared job messages of ``sfumato.job.v1``, from the chassis's records, and back."""

from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message as ProtoMessage
from google.protobuf.timestamp_pb2 import Timestamp

from sfumato.job.v1 import errors_pb2, job_pb2
from sfumato_chassis import watching
from sfumato_chassis.database import EPOCH
from sfumato_chassis.errors import InvalidArgument, JobFailure
from sfumato_chassis.jobs import Event, InterruptionPolicy, Job

Response = TypeVar("Response", bound=ProtoMessage)


MAX_WAIT_SECONDS = 30.0


class WaitRequest(Protocol):
    """What the requests of all waits have in common."""

    @property
    def timeout(self) -> Duration:
        """Longest time to wait."""
        ...

    def HasField(self, field_name: Any) -> bool:  # noqa: N802 - protobuf's name
        """Whether a field is set."""
        ...


class WatchRequest(Protocol):
    """What the requests of all watches have in common."""

    name: str
    after_sequence: int
    log_id: str
    replay: bool


def timestamp(time: datetime | None) -> Timestamp | None:
    """A time as a message."""
    if time is None:
        return None
    seconds, microseconds = divmod((time - EPOCH) // timedelta(microseconds=1), 1_000_000)
    return Timestamp(seconds=seconds, nanos=microseconds * 1000)


def duration(seconds: float | None) -> Duration | None:
    """A number of seconds as a message."""
    if seconds is None:
        return None
    message = Duration()
    message.FromTimedelta(timedelta(seconds=seconds))
    return message


def job_error(failure: JobFailure | None) -> errors_pb2.JobError | None:
    """A failure as a message."""
    if failure is None:
        return None
    return errors_pb2.JobError(
        reason=errors_pb2.ErrorReason.Value(f"ERROR_REASON_{failure.reason.value}"),
        message=failure.message,
        error_id=failure.error_id,
        details=dict(failure.details),
    )


def job_status(job: Job) -> job_pb2.JobStatus:
    """The envelope of a job."""
    return job_pb2.JobStatus(
        state=job_pb2.JobState.Value(f"JOB_STATE_{job.state.value}"),
        error=job_error(job.failure),
        last_sequence=job.last_sequence,
        first_sequence=job.first_sequence,
        log_id=job.log_id,
        create_time=timestamp(job.create_time),
        start_time=timestamp(job.start_time),
        end_time=timestamp(job.end_time),
        expire_time=timestamp(job.expire_time),
        attempt=job.attempt,
        queue_position=job.queue_position,
        interruption_policy=job_pb2.InterruptionPolicy.Value(
            f"INTERRUPTION_POLICY_{job.interruption_policy.value}"
        ),
    )


def interruption_policy(value: int, default: InterruptionPolicy) -> InterruptionPolicy:
    """The policy that a request's field names; 0 stands for a field that was not set."""
    if value == job_pb2.INTERRUPTION_POLICY_UNSPECIFIED:
        return default
    name = job_pb2.InterruptionPolicy.Name(job_pb2.InterruptionPolicy.ValueType(value))
    return InterruptionPolicy(name.removeprefix("INTERRUPTION_POLICY_"))


def event_header(event: Event) -> job_pb2.EventHeader:
    """The header of an event."""
    return job_pb2.EventHeader(sequence=event.sequence, time=timestamp(event.time))


def shared_event(event: Event) -> ProtoMessage | None:
    """The message of an event that all kinds of job have, or None for one of a service's own."""
    data = event.data
    match event.kind:
        case "queued":
            return job_pb2.Queued(position=data["position"])
        case "started":
            return job_pb2.Started(attempt=data["attempt"], device=data.get("device", ""))
        case "cancel_requested":
            return job_pb2.CancelRequested()
        case "interrupted":
            return job_pb2.Interrupted(
                attempt=data["attempt"],
                error=job_error(JobFailure.from_json(data["failure"])),
                retrying=data["retrying"],
            )
        case "failed":
            return job_error(JobFailure.from_json(data))
        case "cancelled":
            return job_pb2.Cancelled()
        case _:
            return None


def wait_seconds(request: WaitRequest) -> float:
    """How long a wait may take: as asked, at most 30 s. Raises InvalidArgument for less than 0."""
    if not request.HasField("timeout"):
        return MAX_WAIT_SECONDS
    seconds = request.timeout.ToTimedelta().total_seconds()
    if seconds < 0:
        raise InvalidArgument.field("timeout", "must not be negative")
    return min(seconds, MAX_WAIT_SECONDS)


def cursor_of(request: WatchRequest) -> watching.Cursor:
    """The cursor in the request of a watch."""
    return watching.Cursor(
        after_sequence=request.after_sequence, log_id=request.log_id, replay=request.replay
    )
