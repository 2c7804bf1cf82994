import asyncio
import math
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from job_stores import (
    OWNER,
    Projected,
    add_nothing,
    create,
    make_store,
    opened_database,
    request,
)
from sfumato_chassis.clock import ManualClock
from sfumato_chassis.database import Database
from sfumato_chassis.errors import (
    AlreadyExists,
    FailedPrecondition,
    JobFailure,
    NotFound,
    Reason,
)
from sfumato_chassis.job_queries import select_events
from sfumato_chassis.job_store import Fenced, JobStore
from sfumato_chassis.jobs import (
    Event,
    InterruptionPolicy,
    Job,
    JobState,
    NewEvent,
    check_cancellable,
    failed_event,
    interrupted_event,
)

FAILURE = JobFailure(reason=Reason.WORKER_DIED, message="gone", details={"step": "3"})
NOTE = NewEvent(kind="note", data={"text": "x"})
STARTED = NewEvent(kind="started", data={"device": "cpu"})
SUCCEEDED = NewEvent(kind="succeeded")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with opened_database(tmp_path) as opened:
        yield opened


@pytest.fixture
def projected() -> Projected:
    return Projected()


@pytest.fixture
def store(database: Database, clock: ManualClock, projected: Projected) -> JobStore:
    return make_store(database, clock=clock, retention=timedelta(hours=24), project=projected)


async def kinds(store: JobStore, name: str) -> list[tuple[int, str]]:
    return [(event.sequence, event.kind) for event in await store.events(name, 0)]


async def events_of(store: JobStore, name: str, kind: str) -> list[Event]:
    return [event for event in await store.events(name, 0) if event.kind == kind]


async def test_a_new_job_waits_and_its_log_says_so(store: JobStore, clock: ManualClock) -> None:
    job, deduplicated = await store.create(
        request(), policy=InterruptionPolicy.MANUAL, add=add_nothing
    )
    assert not deduplicated
    assert (job.state, job.last_sequence, job.queue_position) == (JobState.QUEUED, 1, 1)
    assert (job.attempt, job.fence, job.create_time) == (0, 0, clock.now())
    (event,) = await store.events(job.name, 0)
    assert (event.kind, event.data, event.time) == ("queued", {"position": 1}, clock.now())
    assert await store.get(job.name, OWNER) == job


async def test_the_same_request_finds_the_job_at_any_later_time(store: JobStore) -> None:
    asked = request(b"body")
    job = await create(store, asked)
    await store.claim(job.name, STARTED)
    again, deduplicated = await store.create(
        replace(asked, request_id=asked.request_id.upper()),
        policy=InterruptionPolicy.AUTO,
        add=add_nothing,
    )
    assert deduplicated
    assert again == await store.get(job.name, OWNER)
    assert await store.find_created(asked) == again
    assert await store.find_created(request()) is None


async def test_a_request_id_with_another_body_is_refused(store: JobStore) -> None:
    asked = request(b"body")
    await create(store, asked)
    other = request(b"other body", asked.request_id)
    for call in (create(store, other), store.find_created(other)):
        with pytest.raises(AlreadyExists) as caught:
            await call
        assert caught.value.reason is Reason.REQUEST_ID_REUSED
    await create(store, request(b"other body", asked.request_id, principal="another"))


async def test_twenty_at_once_make_one_job(store: JobStore, projected: Projected) -> None:
    asked = request()
    made = await asyncio.gather(
        *(store.create(asked, policy=InterruptionPolicy.AUTO, add=add_nothing) for _ in range(20))
    )
    assert len({job.name for job, _ in made}) == 1
    assert sorted(deduplicated for _, deduplicated in made) == [False] + [True] * 19
    assert len(projected.events) == 1


async def test_what_the_service_refuses_leaves_nothing(store: JobStore) -> None:
    def refuse(connection: Connection, job: Job) -> None:
        raise LookupError(job.name)

    asked = request()
    with pytest.raises(LookupError) as caught:
        await store.create(asked, policy=InterruptionPolicy.AUTO, add=refuse)
    with pytest.raises(NotFound):
        await store.get(str(caught.value), OWNER)
    assert (await create(store, asked)).queue_position == 1


async def test_sequences_have_no_gap_whoever_appends(store: JobStore, projected: Projected) -> None:
    job = await create(store)
    claimed = await store.claim(job.name, STARTED)
    await asyncio.gather(
        *(store.append(job.name, [NOTE] * (1 + index % 3)) for index in range(20)),
        *(
            store.append_from_worker(job.name, claimed.fence, [(number, NOTE)])
            for number in range(1, 6)
        ),
    )
    after = await store.get(job.name, OWNER)
    found = [sequence for sequence, _ in await kinds(store, job.name)]
    assert found == list(range(1, after.last_sequence + 1))
    sequences = [sequence for _, sequence, _ in projected.events]
    assert sequences == list(range(1, after.last_sequence + 1))


async def test_events_are_read_in_pages_and_by_kind(store: JobStore, database: Database) -> None:
    job = await create(store)
    await store.append(job.name, [NewEvent(kind="step", data={"n": n}) for n in range(400)])
    first = await store.events(job.name, 0)
    second = await store.events(job.name, first[-1].sequence)
    assert [event.sequence for event in [*first, *second]] == list(range(1, 402))
    queued = await database.read(lambda c: select_events(c, job.name, 0, kind="queued"))
    assert queued == first[:1]


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (SUCCEEDED, JobState.SUCCEEDED),
        (failed_event(FAILURE), JobState.FAILED),
        (NewEvent(kind="cancelled"), JobState.CANCELLED),
    ],
)
async def test_a_job_ends_once(
    store: JobStore, clock: ManualClock, end: NewEvent, state: JobState
) -> None:
    job = await create(store)
    claimed = await store.claim(job.name, STARTED)
    clock.advance(5)
    ended = await store.append(job.name, [NOTE, end], fence=claimed.fence)
    assert (ended.state, ended.ended, ended.end_time) == (state, True, clock.now())
    assert ended.expire_time == clock.now() + timedelta(hours=24)
    assert ended.start_time == clock.now() - timedelta(seconds=5)
    for call in (
        store.append(job.name, [NOTE]),
        store.append(job.name, [SUCCEEDED], fence=claimed.fence),
        store.append_from_worker(job.name, claimed.fence, [(1, SUCCEEDED)]),
        store.claim(job.name, STARTED),
    ):
        with pytest.raises(Fenced):
            await call
    assert await store.get(job.name, OWNER) == ended


async def test_nothing_follows_the_end_within_one_append(store: JobStore) -> None:
    job = await create(store)
    with pytest.raises(Fenced):
        await store.append(job.name, [SUCCEEDED, NOTE])
    assert await kinds(store, job.name) == [(1, "queued")]


async def test_one_of_many_ends_is_kept(store: JobStore) -> None:
    job = await create(store)
    ends = [SUCCEEDED, failed_event(FAILURE), NewEvent(kind="cancelled")] * 5
    outcomes = await asyncio.gather(
        *(store.append(job.name, [end]) for end in ends), return_exceptions=True
    )
    assert sum(isinstance(outcome, Job) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, Fenced) for outcome in outcomes) == 14


async def test_a_claim_fences_the_attempt_before(store: JobStore) -> None:
    job = await create(store)
    first = await store.claim(job.name, STARTED)
    assert (first.attempt, first.fence, first.queue_position) == (1, 1, 0)
    with pytest.raises(Fenced):
        await store.claim(job.name, STARTED)
    waiting = await store.append(job.name, [interrupted_event(first, FAILURE)])
    assert (waiting.state, waiting.failure) == (JobState.QUEUED, FAILURE)
    second = await store.claim(job.name, STARTED)
    assert (second.attempt, second.fence, second.failure) == (2, 2, None)
    assert second.start_time == first.start_time
    for call in (
        store.append(job.name, [NOTE], fence=first.fence),
        store.append_from_worker(job.name, first.fence, [(1, NOTE)]),
    ):
        with pytest.raises(Fenced):
            await call
    assert (await store.append(job.name, [NOTE], fence=second.fence)).state is JobState.RUNNING


async def test_an_append_can_ask_for_a_state(store: JobStore) -> None:
    job = await create(store)
    claimed = await store.claim(job.name, STARTED)
    await store.append(job.name, [NewEvent(kind="cancel_requested")])
    with pytest.raises(Fenced):
        await store.append(job.name, [SUCCEEDED], fence=claimed.fence, states={JobState.RUNNING})
    assert (await store.get(job.name, OWNER)).state is JobState.CANCELLING


async def test_an_interruption_without_another_attempt_is_the_end(store: JobStore) -> None:
    job = await create(store, policy=InterruptionPolicy.MANUAL)
    claimed = await store.claim(job.name, STARTED)
    ended = await store.append(job.name, [interrupted_event(claimed, FAILURE)])
    assert (ended.state, ended.failure, ended.ended) == (JobState.INTERRUPTED, FAILURE, True)


async def test_a_workers_events_are_taken_once_however_often_they_come(store: JobStore) -> None:
    job = await create(store)
    fence = (await store.claim(job.name, STARTED)).fence
    numbered = [(number, NewEvent(kind="step", data={"n": number})) for number in range(1, 8)]
    _, known = await store.append_from_worker(job.name, fence, numbered[:3])
    assert known == 3
    _, known = await store.append_from_worker(job.name, fence, numbered[1:5])
    assert known == 5
    _, known = await store.append_from_worker(job.name, fence, numbered[:2])
    assert known == 5
    await store.append_from_worker(job.name, fence, [*numbered[5:], (8, SUCCEEDED)])
    job, known = await store.append_from_worker(job.name, fence, [(8, SUCCEEDED)])
    assert (known, job.state) == (8, JobState.SUCCEEDED)
    steps = [event.data["n"] for event in await events_of(store, job.name, "step")]
    assert steps == list(range(1, 8))


async def test_a_new_attempt_numbers_from_one_again(store: JobStore) -> None:
    job = await create(store)
    first = await store.claim(job.name, STARTED)
    await store.append_from_worker(job.name, first.fence, [(1, NOTE), (2, NOTE)])
    await store.append(job.name, [interrupted_event(first, FAILURE)])
    second = await store.claim(job.name, STARTED)
    _, known = await store.append_from_worker(job.name, second.fence, [(1, NOTE)])
    assert known == 1
    assert len(await events_of(store, job.name, "note")) == 3


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
async def test_numbers_that_are_none_never_reach_the_log(store: JobStore, number: float) -> None:
    job = await create(store)
    data: dict[str, Any] = {"losses": [{"value": number}]}
    with pytest.raises(ValueError, match="JSON compliant"):
        await store.append(job.name, [NOTE, NewEvent(kind="step", data=data)])
    assert await kinds(store, job.name) == [(1, "queued")]


async def test_the_queue_moves_up_and_tells_whom_it_concerns(store: JobStore) -> None:
    names = [(await create(store)).name for _ in range(4)]
    await store.claim(names[0], STARTED)
    await store.append(names[2], [NewEvent(kind="cancelled")])
    waiting = await store.update_queue()
    assert [job.name for job in waiting] == [names[1], names[3]]
    positions = {
        name: [event.data["position"] for event in await events_of(store, name, "queued")]
        for name in (names[1], names[3])
    }
    assert positions == {names[1]: [2, 1], names[3]: [4, 2]}
    before = (await store.get(names[3], OWNER)).last_sequence
    await store.update_queue()
    assert (await store.get(names[3], OWNER)).last_sequence == before


async def test_jobs_of_another_kind_or_owner_are_not_there(
    store: JobStore, database: Database
) -> None:
    other = make_store(database, name="other")
    job = await create(store)
    for call in (other.get(job.name, OWNER), store.get(job.name, "another")):
        with pytest.raises(NotFound) as caught:
            await call
        assert caught.value.reason is Reason.RESOURCE_NOT_FOUND
    await create(other)
    assert (await create(other)).queue_position == 2
    assert [found.name for found in await store.in_states(JobState.QUEUED)] == [job.name]


async def test_deleting_leaves_a_tombstone(store: JobStore) -> None:
    asked, removed = request(), []
    job = await create(store, asked)
    with pytest.raises(FailedPrecondition) as caught:
        await store.delete(job.name, OWNER, remove=lambda _, gone: removed.append(gone.name))
    assert caught.value.reason is Reason.JOB_STATE_UNSUITABLE
    await store.append(job.name, [SUCCEEDED])
    await store.delete(job.name, OWNER, remove=lambda _, gone: removed.append(gone.name))
    assert removed == [job.name]
    assert await store.events(job.name, 0) == []
    with pytest.raises(NotFound) as missing:
        await store.get(job.name, OWNER)
    assert missing.value.reason is Reason.JOB_EXPIRED
    assert missing.value.message == f"{job.name} was deleted"
    with pytest.raises(NotFound) as foreign:
        await store.get(job.name, "another")
    assert foreign.value.reason is Reason.RESOURCE_NOT_FOUND
    again, deduplicated = await store.create(asked, policy=InterruptionPolicy.AUTO, add=add_nothing)
    assert (again.name, again.state, deduplicated) == (job.name, JobState.EXPIRED, True)


async def test_purge_takes_what_has_passed_its_retention(
    store: JobStore, clock: ManualClock
) -> None:
    ended, running = await create(store), await create(store)
    await store.append(ended.name, [SUCCEEDED])
    clock.advance(24 * 3600 - 1)
    assert await store.purge(remove=add_nothing) == 0
    clock.advance(1)
    assert await store.purge(remove=add_nothing) == 1
    with pytest.raises(NotFound) as missing:
        await store.get(ended.name, OWNER)
    assert missing.value.message == f"{ended.name} was removed after its retention"
    assert (await store.get(running.name, OWNER)).state is JobState.QUEUED


async def test_without_a_retention_jobs_stay(database: Database, clock: ManualClock) -> None:
    store = make_store(database, clock=clock)
    job = await create(store)
    assert (await store.append(job.name, [SUCCEEDED])).expire_time is None
    clock.advance(10 * 365 * 86_400)
    assert await store.purge(remove=add_nothing) == 0


async def test_pages_are_stable_while_jobs_come_and_go(store: JobStore, database: Database) -> None:
    names = [(await create(store)).name for _ in range(5)]

    async def page(token: str) -> tuple[list[str], str]:
        found = await database.read(
            lambda connection: store.select_page(connection, OWNER, size=2, token=token)
        )
        return [job.name for job in found.rows], found.next_page_token

    first, token = await page("")
    assert first == [names[4], names[3]]
    await create(store)
    await store.append(names[4], [SUCCEEDED])
    await store.delete(names[4], OWNER, remove=add_nothing)
    second, token = await page(token)
    third, end = await page(token)
    assert (second, third, end) == ([names[2], names[1]], [names[0]], "")


@pytest.mark.parametrize(("state", "allowed"), [("SUCCEEDED", False), ("CANCELLED", True)])
async def test_only_what_has_not_ended_can_be_cancelled(
    store: JobStore, state: str, allowed: bool
) -> None:
    job = await create(store)
    check_cancellable(job)
    ended = await store.append(job.name, [NewEvent(kind=state.lower())])
    if allowed:
        check_cancellable(ended)
        return
    with pytest.raises(FailedPrecondition) as caught:
        check_cancellable(ended)
    assert caught.value.details == {"state": state}


async def test_names_are_the_servers(store: JobStore) -> None:
    asked = request(request_id=str(uuid.uuid4()))
    job = await create(store, asked)
    assert job.name.startswith("task-")
    assert asked.request_id not in job.name
