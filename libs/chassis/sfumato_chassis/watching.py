"""Follows one job's log: the order of messages that every watch keeps.

A watcher holds a cursor and nothing else. It never owns the job, never keeps a transaction open and
costs the server nothing while it is slow: it reads the log from where it stands.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from sfumato_chassis.clock import Clock
from sfumato_chassis.errors import OutOfRange, Reason, server_draining
from sfumato_chassis.job_store import JobStore
from sfumato_chassis.jobs import Event, Job

POLL_SECONDS = 1.0
"""Watchers also look without being woken: another process may have appended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """Where a watcher stands.

    Attributes:
        after_sequence: Sequence of the last event it has; 0 for none.
        log_id: The log that the number belongs to; may be empty with 0.
        replay: With 0: every event from the first, in place of a snapshot.
    """

    after_sequence: int
    log_id: str
    replay: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Attached:
    """The watch stands."""

    job: Job


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """Stands for all events up to ``job.last_sequence``; ``resource`` is as it was then."""

    job: Job
    resource: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Happened:
    """Events in order, each with what the watch makes of it."""

    events: Sequence[tuple[Event, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Heartbeat:
    """Nothing happened for one interval."""

    delivered_sequence: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GoingAway:
    """The stream ends, the job goes on."""

    retry_after_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """The job has ended and every event was sent; ``resource`` is final."""

    job: Job
    resource: Any


Message = Attached | Snapshot | Happened | Heartbeat | GoingAway | Finished


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchLimits:
    """How a watch behaves in time.

    Attributes:
        heartbeat_seconds: Longest silence.
        max_age_seconds: A stream is asked to attach anew after this long.
        retry_after_seconds: When to attach again after a going-away.
    """

    heartbeat_seconds: float = 10.0
    max_age_seconds: float = 1800.0
    retry_after_seconds: float = 0.5


async def read_ahead(
    store: JobStore,
    name: str,
    after_sequence: int,
    last_sequence: int,
    tell: Callable[[Event], Any],
) -> AsyncIterator[Sequence[tuple[Event, Any]]]:
    """Yields what each read finds up to ``last_sequence``; the next is under way while one is sent."""

    def read(after: int) -> asyncio.Task[Sequence[tuple[Event, Any]]]:
        return asyncio.create_task(store.events(name, after, lambda event: (event, tell(event))))

    ahead = read(after_sequence) if after_sequence < last_sequence else None
    try:
        while ahead is not None:
            batch = await ahead
            reached = batch[-1][0].sequence if batch else last_sequence
            ahead = read(reached) if reached < last_sequence else None
            yield [pair for pair in batch if pair[0].sequence <= last_sequence]
    finally:
        if ahead is not None:
            ahead.cancel()


def event_alone(event: Event) -> Event:
    """For a watch whose caller reads the event itself."""
    return event


def job_alone(connection: Connection, job: Job) -> None:
    """For a watch whose caller needs nothing but the job."""
    del connection, job


async def watch(
    store: JobStore,
    name: str,
    owner: str,
    cursor: Cursor,
    *,
    resource: Callable[[Connection, Job], Any] = job_alone,
    tell: Callable[[Event], Any] = event_alone,
    clock: Clock,
    limits: WatchLimits,
    draining: asyncio.Event,
) -> AsyncIterator[Message]:
    """Yields the messages of one watch, see the module.

    Args:
        resource: Reads what the job stands for.
        tell: Makes of an event what the watcher is told. It runs in the reader's thread, while
            earlier events are being sent.

    Raises:
        NotFound: No such job.
        OutOfRange: EVENT_LOG_CHANGED, the cursor is of another log or past its end.
    """
    job = await store.get(name, owner)
    check_cursor(job, cursor)
    began = clock.monotonic()
    yield Attached(job=job)
    delivered = cursor.after_sequence
    if delivered + 1 < job.first_sequence or (delivered == 0 and not cursor.replay):
        job, value = await store.read(name, owner, resource)
        yield Snapshot(job=job, resource=value)
        delivered = job.last_sequence
    spoke = clock.monotonic()
    while True:
        wakeup = store.wakeups.take(name)
        try:
            # The job is read before its events: what it says has happened is then in the log.
            job = await store.get(name, owner)
            async for events in read_ahead(store, name, delivered, job.last_sequence, tell):
                if events:
                    yield Happened(events=events)
                    delivered = events[-1][0].sequence
                    spoke = clock.monotonic()
            if delivered < job.last_sequence:
                continue  # the job was removed, as the next look will tell
            if job.ended:
                job, value = await store.read(name, owner, resource)
                yield Finished(job=job, resource=value)
                return
            if draining.is_set() or clock.monotonic() - began >= limits.max_age_seconds:
                yield GoingAway(retry_after_seconds=limits.retry_after_seconds)
                return
            silence_left = limits.heartbeat_seconds - (clock.monotonic() - spoke)
            if silence_left <= 0:
                yield Heartbeat(delivered_sequence=delivered)
                spoke = clock.monotonic()
                silence_left = limits.heartbeat_seconds
            await first_of(wakeup, draining, min(silence_left, POLL_SECONDS))
        finally:
            store.wakeups.drop(name, wakeup)


async def wait_until_ended(
    store: JobStore, name: str, owner: str, *, timeout_seconds: float, draining: asyncio.Event
) -> Job:
    """The job as it stands when it has ended or the time is up.

    Raises:
        NotFound: No such job.
        Unavailable: SERVER_DRAINING.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_seconds
    while True:
        wakeup = store.wakeups.take(name)
        try:
            job = await store.get(name, owner)
            left = deadline - loop.time()
            if job.ended or left <= 0:
                return job
            if draining.is_set():
                raise server_draining()
            await first_of(wakeup, draining, min(left, POLL_SECONDS))
        finally:
            store.wakeups.drop(name, wakeup)


def check_cursor(job: Job, cursor: Cursor) -> None:
    """Raises EVENT_LOG_CHANGED for a cursor that is not of this log."""
    other_log = bool(cursor.log_id) and cursor.log_id != job.log_id
    if other_log or cursor.after_sequence > job.last_sequence:
        raise OutOfRange(
            Reason.EVENT_LOG_CHANGED,
            "the cursor belongs to another log or lies past its end; start again at 0",
            details={"log_id": job.log_id, "last_sequence": str(job.last_sequence)},
        )


async def first_of(wakeup: asyncio.Event, draining: asyncio.Event, timeout_seconds: float) -> None:
    """Returns when either event is set or the time is up."""
    waits = [asyncio.ensure_future(wakeup.wait()), asyncio.ensure_future(draining.wait())]
    try:
        await asyncio.wait(waits, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
