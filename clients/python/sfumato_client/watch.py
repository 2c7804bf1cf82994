"""Following a job's events across lost connections: each event once, in order, to the last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar

import grpc
from google.protobuf.duration_pb2 import Duration

from sfumato.job.v1 import job_pb2
from sfumato_client.calls import Backoff, RetryPolicy, Timing, pause_or_raise
from sfumato_client.errors import (
    Failure,
    Loss,
    Refusal,
    RetryAfter,
    SfumatoError,
    Unavailable,
    classify,
    lost,
    violated,
)

# Silence of this many heartbeat intervals means that the connection is dead.
MISSED_HEARTBEATS = 3
DEFAULT_HEARTBEAT_SECONDS = 10.0

WATCH_POLICY = RetryPolicy(budget_seconds=300.0)

ResourceT = TypeVar("ResourceT", bound="JobResource")
EventT = TypeVar("EventT", bound="JobEvent")
ResourceT_co = TypeVar("ResourceT_co", bound="JobResource", covariant=True)
EventT_co = TypeVar("EventT_co", bound="JobEvent", covariant=True)
MessageT_co = TypeVar("MessageT_co", covariant=True)


class JobResource(Protocol):
    """An import, a training run, a generation."""

    @property
    def status(self) -> job_pb2.JobStatus: ...


class JobEvent(Protocol):
    """Something that happened to one."""

    @property
    def header(self) -> job_pb2.EventHeader: ...


class WatchResponse(Protocol[ResourceT_co, EventT_co]):
    """What the three Watch methods answer."""

    @property
    def attached(self) -> job_pb2.Attached: ...
    @property
    def snapshot(self) -> ResourceT_co: ...
    @property
    def event(self) -> EventT_co: ...
    @property
    def heartbeat(self) -> job_pb2.Heartbeat: ...
    @property
    def going_away(self) -> job_pb2.GoingAway: ...
    @property
    def finished(self) -> ResourceT_co: ...
    def WhichOneof(  # noqa: N802  # named by protobuf
        self, oneof_group: Literal["message"]
    ) -> Literal["attached", "snapshot", "event", "heartbeat", "going_away", "finished"] | None: ...


class ResponseStream(Protocol[MessageT_co]):
    """A server stream that can be dropped."""

    def __aiter__(self) -> AsyncIterator[MessageT_co]: ...
    def cancel(self) -> bool: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """A place in one event log; 0 is before the first event."""

    sequence: int = 0
    log_id: str = ""
    # With sequence 0: every event from the first, in place of a snapshot.
    replay: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Attached:
    """The watch stands. Comes once, and once more if the log was replaced by another."""

    status: job_pb2.JobStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot(Generic[ResourceT]):
    """The whole resource; stands for every event up to its status.last_sequence."""

    resource: ResourceT


@dataclass(frozen=True, kw_only=True, slots=True)
class Event(Generic[EventT]):
    """The next event."""

    event: EventT


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished(Generic[ResourceT]):
    """The final resource; nothing follows."""

    resource: ResourceT


WatchItem: TypeAlias = Attached | Snapshot[ResourceT] | Event[EventT] | Finished[ResourceT]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reconnecting:
    """The connection is lost; another attempt follows after the delay."""

    cause: SfumatoError
    delay_seconds: float


class EventOrder(Generic[ResourceT, EventT]):
    """Decides which messages reach the caller, and refuses those that contradict the cursor."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self._replay = cursor.replay
        self._attached = False
        self._delivered_snapshot = False
        self._compacted = False

    def restarted(self) -> EventOrder[ResourceT, EventT]:
        """The order of another log, from its beginning, for the same wish."""
        return EventOrder(Cursor(replay=self._replay))

    def attach(self, attached: job_pb2.Attached) -> Attached | None:
        """Takes the first message of a stream; answers an item for the first stream only."""
        status = attached.status
        cursor = self.cursor
        if cursor.sequence > 0 and cursor.log_id and status.log_id != cursor.log_id:
            raise violated(f"attached to log {status.log_id!r} with a cursor of {cursor.log_id!r}")
        if status.last_sequence < cursor.sequence:
            raise violated(
                f"the log ends at {status.last_sequence}, before event {cursor.sequence} it sent"
            )
        self._compacted = status.first_sequence > cursor.sequence + 1
        self._move(cursor.sequence, log_id=status.log_id)
        if self._attached:
            return None
        self._attached = True
        return Attached(status=status)

    def snapshot(self, resource: ResourceT) -> Snapshot[ResourceT] | None:
        """Moves the cursor past what the snapshot stands for."""
        sequence = resource.status.last_sequence
        behind = self.cursor.sequence
        if sequence < behind:
            raise violated(f"a snapshot of event {sequence} came after event {behind}")
        if sequence == behind and self._delivered_snapshot:
            return None
        may_skip = self._compacted or (behind == 0 and not self._replay)
        if sequence > behind and not may_skip:
            raise violated(f"a snapshot passes over events {behind + 1} to {sequence} of the log")
        self._delivered_snapshot = True
        self._move(sequence)
        return Snapshot(resource=resource)

    def event(self, event: EventT) -> Event[EventT]:
        """Takes the next event."""
        sequence = event.header.sequence
        expected = self.cursor.sequence + 1
        if sequence != expected:
            raise violated(f"event {sequence} came where event {expected} was due")
        self._move(sequence)
        return Event(event=event)

    def heartbeat(self, heartbeat: job_pb2.Heartbeat) -> None:
        """Checks that nothing was sent that has not arrived."""
        if heartbeat.delivered_sequence > self.cursor.sequence:
            raise violated(
                f"event {heartbeat.delivered_sequence} was sent but {self.cursor.sequence} is the"
                " last to arrive"
            )

    def finish(self, resource: ResourceT) -> Finished[ResourceT]:
        """Takes the last message."""
        if resource.status.last_sequence != self.cursor.sequence:
            raise violated(
                f"the job finished at event {resource.status.last_sequence} but"
                f" {self.cursor.sequence} is the last to arrive"
            )
        return Finished(resource=resource)

    def _move(self, sequence: int, *, log_id: str | None = None) -> None:
        self.cursor = Cursor(
            sequence=sequence,
            log_id=self.cursor.log_id if log_id is None else log_id,
            replay=self._replay and sequence == 0,
        )


@dataclass(kw_only=True, slots=True)
class Watch(Generic[ResourceT, EventT]):
    """One watch, over as many streams as it takes."""

    # Opens a stream at a cursor. The log id of a cursor of 0 is to be left out.
    open_stream: Callable[[Cursor], ResponseStream[WatchResponse[ResourceT, EventT]]]
    cursor: Cursor = field(default_factory=Cursor)
    policy: RetryPolicy = WATCH_POLICY
    timing: Timing = field(default_factory=Timing)
    on_reconnecting: Callable[[Reconnecting], None] | None = None

    async def items(self) -> AsyncGenerator[WatchItem[ResourceT, EventT], None]:
        """Yields attached, snapshots, events and finished: each once, in order.

        Ending the iteration early (`aclose`) drops the stream and leaves the job alone.

        Raises:
            ContractViolated: events are missing, repeated or out of order.
            SfumatoError: a refusal; or the last error, when no stream stood for as long as the
                policy's budget without any new event.
        """
        order: EventOrder[ResourceT, EventT] = EventOrder(self.cursor)
        backoff = Backoff(self.policy, self.timing)
        may_restart = True
        while True:
            outcome: Refusal | Loss | RetryAfter = Loss(error=lost("the stream ended too early"))
            began = self.timing.monotonic()
            stands = False
            stream = self.open_stream(order.cursor)
            try:
                async for message in self._messages(stream):
                    match message.WhichOneof("message"):
                        case "attached":
                            stands = True
                            backoff.spend(self.timing.monotonic() - began)
                            if (attached := order.attach(message.attached)) is not None:
                                yield attached
                        case "snapshot":
                            if (snapshot := order.snapshot(message.snapshot)) is not None:
                                yield snapshot
                        case "event":
                            backoff.reset()
                            yield order.event(message.event)
                        case "heartbeat":
                            order.heartbeat(message.heartbeat)
                        case "going_away":
                            outcome = _going_away(message.going_away)
                            break
                        case "finished":
                            yield order.finish(message.finished)
                            return
                        case None:
                            continue  # a kind that a later server may send
            except grpc.aio.AioRpcError as error:
                outcome = classify(error)
            except StreamSilentError as error:
                outcome = Loss(error=lost(str(error)))
            finally:
                stream.cancel()
            if _is_log_changed(outcome) and may_restart:
                may_restart = False
                order = order.restarted()
                continue
            if not stands:
                backoff.spend(self.timing.monotonic() - began)
            await pause_or_raise(outcome, backoff, self.timing, before_pause=self._tell)

    async def _messages(
        self, stream: ResponseStream[WatchResponse[ResourceT, EventT]]
    ) -> AsyncIterator[WatchResponse[ResourceT, EventT]]:
        """Messages of one stream, until it ends or falls silent."""
        allowed_seconds = self.policy.attempt_timeout_seconds
        messages = aiter(stream)
        while True:
            try:
                async with asyncio.timeout(allowed_seconds):
                    message = await anext(messages)
            except StopAsyncIteration:
                return
            except TimeoutError as error:
                raise StreamSilentError(f"nothing arrived for {allowed_seconds:g} s") from error
            if message.WhichOneof("message") == "attached":
                allowed_seconds = MISSED_HEARTBEATS * _heartbeat_seconds(message.attached)
            yield message

    def _tell(self, cause: SfumatoError, delay_seconds: float) -> None:
        if self.on_reconnecting is not None:
            self.on_reconnecting(Reconnecting(cause=cause, delay_seconds=delay_seconds))


class StreamSilentError(Exception):
    """Neither an event nor a heartbeat came in time."""


def _heartbeat_seconds(attached: job_pb2.Attached) -> float:
    return _seconds(attached.heartbeat_interval) or DEFAULT_HEARTBEAT_SECONDS


def _seconds(duration: Duration) -> float:
    return max(0.0, duration.ToNanoseconds() / 1e9)


def _going_away(message: job_pb2.GoingAway) -> RetryAfter:
    return RetryAfter(
        error=Unavailable(
            Failure(
                message="the server ended the stream; the job goes on",
                code=grpc.StatusCode.UNAVAILABLE,
                retry_delay_seconds=_seconds(message.retry_after),
            )
        )
    )


def _is_log_changed(outcome: Refusal | Loss | RetryAfter) -> bool:
    return isinstance(outcome, Refusal) and outcome.error.reason == "EVENT_LOG_CHANGED"
