import asyncio
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from job_stores import OWNER, add_nothing, create, make_store, opened_database
from sfumato_chassis import watching
from sfumato_chassis.clock import SystemClock
from sfumato_chassis.errors import NotFound, OutOfRange, Reason, Unavailable
from sfumato_chassis.job_store import JobStore
from sfumato_chassis.jobs import JobState, NewEvent
from sfumato_chassis.watching import (
    Attached,
    Cursor,
    Finished,
    GoingAway,
    Happened,
    Heartbeat,
    Message,
    Snapshot,
    WatchLimits,
    wait_until_ended,
    watch,
)

NOTE = NewEvent(kind="note")
SUCCEEDED = NewEvent(kind="succeeded")
START = Cursor(after_sequence=0, log_id="", replay=False)
REPLAY = Cursor(after_sequence=0, log_id="", replay=True)
Watch = Callable[..., AsyncIterator[Message]]
PATIENCE_SECONDS = 5
"""Shorter than a heartbeat, by which a watcher would look again although nobody woke it."""


class Draining(asyncio.Event):
    """Tells when somebody sleeps until it is set, or something else wakes them."""

    def __init__(self) -> None:
        super().__init__()
        self._slept_on = asyncio.Event()

    async def wait(self) -> Literal[True]:
        self._slept_on.set()
        return await super().wait()

    async def slept_on(self) -> None:
        self._slept_on.clear()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._slept_on.wait()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[JobStore]:
    async with opened_database(tmp_path) as database:
        yield make_store(database)


@pytest.fixture
def draining() -> Draining:
    return Draining()


@pytest.fixture
def follow(store: JobStore, draining: Draining) -> Watch:
    def start(name: str, cursor: Cursor, **limits: float) -> AsyncIterator[Message]:
        return watch(
            store,
            name,
            OWNER,
            cursor,
            clock=SystemClock(),
            limits=WatchLimits(**limits),
            draining=draining,
        )

    return start


def told(messages: list[Message]) -> list[Any]:
    """Class names, with the sequences in place of events."""
    names: list[Any] = []
    for message in messages:
        if isinstance(message, Happened):
            names += [event.sequence for event, _ in message.events]
        else:
            names.append(type(message).__name__)
    return names


async def test_replay_gives_every_event_then_the_end(store: JobStore, follow: Watch) -> None:
    job = await create(store)
    await store.append(job.name, [NOTE] * 600)
    await store.append(job.name, [SUCCEEDED])
    messages = [message async for message in follow(job.name, REPLAY)]
    assert told(messages) == ["Attached", *range(1, 603), "Finished"]
    assert isinstance(messages[-1], Finished)
    assert messages[-1].job == await store.get(job.name, OWNER)


async def test_a_snapshot_stands_for_what_came_before(store: JobStore, follow: Watch) -> None:
    job = await create(store)
    await store.append(job.name, [NOTE] * 3)
    messages = follow(job.name, START)
    attached, snapshot = [await anext(messages) for _ in range(2)]
    assert isinstance(attached, Attached)
    assert isinstance(snapshot, Snapshot)
    assert snapshot.job.last_sequence == 4
    await store.append(job.name, [NOTE, SUCCEEDED])
    assert told([message async for message in messages]) == [5, 6, "Finished"]


async def test_a_finished_job_gives_a_snapshot_and_its_end(store: JobStore, follow: Watch) -> None:
    job = await create(store)
    await store.append(job.name, [SUCCEEDED])
    messages = [message async for message in follow(job.name, START)]
    assert told(messages) == ["Attached", "Snapshot", "Finished"]


@pytest.mark.parametrize("after", [1, 2, 3])
async def test_a_cursor_goes_on_where_it_stands(store: JobStore, follow: Watch, after: int) -> None:
    job = await create(store)
    await store.append(job.name, [NOTE, SUCCEEDED])
    cursor = Cursor(after_sequence=after, log_id=job.log_id, replay=False)
    messages = [message async for message in follow(job.name, cursor)]
    assert told(messages) == ["Attached", *range(after + 1, 4), "Finished"]


@pytest.mark.parametrize(("after", "log_id"), [(2, None), (1, "log-other"), (0, "log-other")])
async def test_a_cursor_of_another_log_is_refused(
    store: JobStore, follow: Watch, after: int, log_id: str | None
) -> None:
    job = await create(store)
    cursor = Cursor(after_sequence=after, log_id=log_id or job.log_id, replay=False)
    with pytest.raises(OutOfRange) as caught:
        await anext(follow(job.name, cursor))
    assert caught.value.reason is Reason.EVENT_LOG_CHANGED
    assert caught.value.details == {"log_id": job.log_id, "last_sequence": "1"}


async def test_a_job_that_is_not_there_is_not_watched(follow: Watch) -> None:
    with pytest.raises(NotFound):
        await anext(follow("task-none", START))


async def test_silence_is_broken_by_heartbeats(store: JobStore, follow: Watch) -> None:
    job = await create(store)
    messages = follow(job.name, REPLAY, heartbeat_seconds=0.02)
    assert told([await anext(messages) for _ in range(2)]) == ["Attached", 1]
    for _ in range(3):
        assert await anext(messages) == Heartbeat(delivered_sequence=1)
    await store.append(job.name, [NOTE])
    received: list[Message] = []
    while not any(isinstance(message, Happened) for message in received):
        received.append(await anext(messages))
    assert told(received)[-1] == 2
    assert await anext(messages) == Heartbeat(delivered_sequence=2)


async def test_events_keep_heartbeats_away(store: JobStore, follow: Watch) -> None:
    job = await create(store)
    messages = follow(job.name, REPLAY, heartbeat_seconds=60)
    received = [await anext(messages) for _ in range(2)]
    for _ in range(20):
        await store.append(job.name, [NOTE])
        received.append(await anext(messages))
    assert told(received) == ["Attached", *range(1, 22)]


async def test_a_drain_sends_watchers_away_at_once(
    store: JobStore, follow: Watch, draining: Draining, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "POLL_SECONDS", 3600.0)
    job = await create(store)
    messages = follow(job.name, REPLAY)
    assert told([await anext(messages) for _ in range(2)]) == ["Attached", 1]
    waiting = asyncio.ensure_future(anext(messages))
    await draining.slept_on()
    draining.set()
    assert isinstance(await asyncio.wait_for(waiting, PATIENCE_SECONDS), GoingAway)
    assert [message async for message in messages] == []


async def test_an_old_watch_is_sent_away(store: JobStore, follow: Watch) -> None:
    job = await create(store)
    messages = [message async for message in follow(job.name, REPLAY, max_age_seconds=0)]
    assert told(messages) == ["Attached", 1, "GoingAway"]


async def test_a_watcher_that_leaves_is_forgotten(
    store: JobStore, follow: Watch, draining: Draining
) -> None:
    job = await create(store)
    messages = follow(job.name, REPLAY)
    for _ in range(2):
        await anext(messages)
    waiting = asyncio.ensure_future(anext(messages))
    await draining.slept_on()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await messages.aclose()  # type: ignore[attr-defined]
    assert not vars(store.wakeups)["_waiting"]


async def test_no_wakeup_is_lost_among_many(
    store: JobStore, follow: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty watchers, four writers, and nobody looks without having been woken."""
    monkeypatch.setattr(watching, "POLL_SECONDS", 3600.0)
    job = await create(store)
    randomness = random.Random(7)
    num_events = 200

    async def received() -> list[Any]:
        return told([message async for message in follow(job.name, REPLAY)])

    async def write(count: int) -> None:
        for _ in range(count):
            await store.append(job.name, [NOTE])
            if randomness.random() < 0.2:
                await asyncio.sleep(0)

    watchers = [asyncio.ensure_future(received()) for _ in range(30)]
    await asyncio.gather(*(write(num_events // 4) for _ in range(4)))
    await store.append(job.name, [SUCCEEDED])
    expected = ["Attached", *range(1, num_events + 3), "Finished"]
    async with asyncio.timeout(60):
        assert all(found == expected for found in await asyncio.gather(*watchers))


async def test_an_event_wakes_its_watcher(
    store: JobStore, follow: Watch, draining: Draining, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "POLL_SECONDS", 3600.0)
    job = await create(store)
    messages = follow(job.name, REPLAY)
    assert told([await anext(messages) for _ in range(2)]) == ["Attached", 1]
    for sequence in range(2, 22):
        waiting = asyncio.ensure_future(anext(messages))
        await draining.slept_on()
        await store.append(job.name, [NOTE])
        assert told([await asyncio.wait_for(waiting, 10)]) == [sequence]


async def test_what_another_process_appends_is_seen_by_polling(
    store: JobStore, follow: Watch, tmp_path: Path
) -> None:
    job = await create(store)
    messages = follow(job.name, REPLAY)
    assert told([await anext(messages) for _ in range(2)]) == ["Attached", 1]
    async with opened_database(tmp_path) as database:
        await make_store(database).append(job.name, [NOTE])
    assert told([await asyncio.wait_for(anext(messages), 5)]) == [2]


async def test_wait_returns_at_the_end_or_at_the_time(
    store: JobStore, draining: Draining, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "POLL_SECONDS", 3600.0)
    job = await create(store)

    async def wait(seconds: float) -> JobState:
        found = await wait_until_ended(
            store, job.name, OWNER, timeout_seconds=seconds, draining=draining
        )
        return found.state

    assert await wait(0) is JobState.QUEUED
    assert await wait(0.02) is JobState.QUEUED
    waiting = asyncio.ensure_future(wait(30))
    await draining.slept_on()
    draining.set()
    with pytest.raises(Unavailable) as caught:
        await asyncio.wait_for(waiting, PATIENCE_SECONDS)
    assert caught.value.reason is Reason.SERVER_DRAINING
    draining.clear()
    waiting = asyncio.ensure_future(wait(30))
    await draining.slept_on()
    await store.append(job.name, [SUCCEEDED])
    assert await asyncio.wait_for(waiting, PATIENCE_SECONDS) is JobState.SUCCEEDED
    draining.set()
    assert await wait(30) is JobState.SUCCEEDED
    await store.delete(job.name, OWNER, remove=add_nothing)
    with pytest.raises(NotFound):
        await wait(1)
