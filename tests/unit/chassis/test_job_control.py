"""Decisions that hold against whoever decides at the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection

from job_stores import OWNER, Projected, add_nothing, create, make_store, opened_database, request
from sfumato_chassis.errors import (
    FailedPrecondition,
    JobFailure,
    NotFound,
    Reason,
    ResourceExhausted,
)
from sfumato_chassis.job_control import cancel_job, check_queue, end_attempt
from sfumato_chassis.job_store import JobStore
from sfumato_chassis.jobs import (
    InterruptionPolicy,
    Job,
    JobState,
    NewEvent,
    failed_event,
    interrupted_event,
)

DIED = JobFailure(reason=Reason.WORKER_DIED, message="the worker died")
STARTED = NewEvent(kind="started")


@pytest.fixture
def projected() -> Projected:
    return Projected()


@pytest.fixture
async def store(tmp_path: Path, projected: Projected) -> AsyncIterator[JobStore]:
    async with opened_database(tmp_path) as database:
        yield make_store(database, project=projected)


async def running(store: JobStore) -> Job:
    return await store.claim((await create(store)).name, STARTED)


async def kinds(store: JobStore, job: Job) -> list[str]:
    return [event.kind for event in await store.events(job.name, 0)]


async def test_what_waits_is_cancelled_at_once(store: JobStore) -> None:
    job = await create(store)
    for _ in range(2):
        assert (await cancel_job(store, job.name, OWNER)).state is JobState.CANCELLED
    assert await kinds(store, job) == ["queued", "cancelled"]


async def test_what_is_held_is_asked_to_end_once(store: JobStore) -> None:
    job = await running(store)
    for _ in range(2):
        assert (await cancel_job(store, job.name, OWNER)).state is JobState.CANCELLING
    assert await kinds(store, job) == ["queued", "started", "cancel_requested"]


async def test_what_has_ended_in_another_way_is_not_cancelled(store: JobStore) -> None:
    job = await running(store)
    await store.append(job.name, [NewEvent(kind="succeeded")])
    with pytest.raises(FailedPrecondition) as refused:
        await cancel_job(store, job.name, OWNER)
    assert refused.value.details["state"] == "SUCCEEDED"
    with pytest.raises(NotFound):
        await cancel_job(store, job.name, "another")


async def test_what_is_refused_in_the_same_step_leaves_the_job_alone(store: JobStore) -> None:
    job = await running(store)

    def refuse(connection: Connection, job: Job) -> None:
        raise FailedPrecondition(Reason.JOB_STATE_UNSUITABLE, "it is being stopped")

    with pytest.raises(FailedPrecondition):
        await cancel_job(store, job.name, OWNER, also=refuse)
    assert (await store.get(job.name, OWNER)).state is JobState.RUNNING


class Overtaking:
    """A store in which something else happens to a job right after it was read, once."""

    def __init__(self, store: JobStore, event: NewEvent | None) -> None:
        self._store = store
        self._event = event
        self.append = store.append

    async def get(self, name: str, owner: str) -> Job:
        job = await self._store.get(name, owner)
        if self._event is not None:
            event, self._event = self._event, None
            if event.kind == "started":
                await self._store.claim(name, event)
            else:
                await self._store.append(name, [event])
        return job


async def test_a_cancel_that_is_overtaken_by_a_start_asks_for_the_end(store: JobStore) -> None:
    job = await create(store)
    cancelled = await cancel_job(Overtaking(store, STARTED), job.name, OWNER)
    assert cancelled.state is JobState.CANCELLING
    assert await kinds(store, job) == ["queued", "started", "cancel_requested"]


async def test_a_cancel_that_is_overtaken_by_the_end_says_so(store: JobStore) -> None:
    job = await running(store)
    with pytest.raises(FailedPrecondition):
        await cancel_job(Overtaking(store, NewEvent(kind="succeeded")), job.name, OWNER)


async def test_an_attempt_ends_as_is_decided_of_the_state_that_it_is_in(store: JobStore) -> None:
    job = await running(store)
    states = []

    def decide(current: Job) -> NewEvent:
        states.append(current.state)
        return interrupted_event(current, DIED)

    overtaking = Overtaking(store, NewEvent(kind="cancel_requested"))
    ended = await end_attempt(overtaking, job.name, OWNER, decide)
    assert states == [JobState.RUNNING, JobState.CANCELLING]
    assert ended.state is JobState.CANCELLED, "the cancel was acknowledged first"


async def test_an_attempt_that_has_ended_by_itself_is_left_alone(store: JobStore) -> None:
    job = await running(store)
    await store.append(job.name, [NewEvent(kind="succeeded")])
    ended = await end_attempt(store, job.name, OWNER, lambda job: failed_event(DIED))
    assert ended.state is JobState.SUCCEEDED
    waiting = await create(store)
    assert (await end_attempt(store, waiting.name, OWNER, failed_event)).state is JobState.QUEUED


async def test_one_of_many_cancels_and_ends_is_kept(store: JobStore) -> None:
    job = await running(store)
    await asyncio.gather(
        *(cancel_job(store, job.name, OWNER) for _ in range(5)),
        *(
            end_attempt(
                store, job.name, OWNER, lambda job: interrupted_event(job, DIED, retrying=False)
            )
            for _ in range(5)
        ),
        return_exceptions=True,
    )
    ended = await store.get(job.name, OWNER)
    assert ended.state in {JobState.CANCELLED, JobState.INTERRUPTED}
    told = await kinds(store, job)
    assert told.count("cancelled") + told.count("interrupted") == 1


@pytest.mark.parametrize(
    "end",
    [NewEvent(kind="succeeded"), failed_event(DIED), NewEvent(kind="cancelled", data={"step": 3})],
    ids=lambda end: end.kind,
)
async def test_what_ends_after_a_cancel_was_acknowledged_is_cancelled(
    store: JobStore, projected: Projected, end: NewEvent
) -> None:
    """The worker had not heard of it, or could not go on; nothing is published then."""
    job = await running(store)
    await store.append(job.name, [NewEvent(kind="cancel_requested")])
    reported = [(1, NewEvent(kind="note")), (2, end)]
    ended, known = await store.append_from_worker(job.name, job.fence, reported)
    again = await store.append_from_worker(job.name, job.fence, reported)

    assert (ended.state, ended.failure, known) == (JobState.CANCELLED, None, 2)
    assert again[1] == 2
    told = ["queued", "started", "cancel_requested", "note", "cancelled"]
    assert await kinds(store, job) == told
    assert [kind for _, _, kind in projected.events] == told


async def test_a_cancelled_job_is_neither_failed_nor_retried_by_the_service(
    store: JobStore,
) -> None:
    for end in (failed_event(DIED), NewEvent(kind="interrupted", data={"retrying": True})):
        job = await running(store)
        await store.append(job.name, [NewEvent(kind="cancel_requested")])
        assert (await store.append(job.name, [end])).state is JobState.CANCELLED


async def test_one_too_many_is_refused(store: JobStore) -> None:
    def add(connection: Connection, job: Job) -> None:
        add_nothing(connection, job)
        check_queue(job, 2)

    for _ in range(2):
        await store.create(request(), policy=InterruptionPolicy.AUTO, add=add)
    with pytest.raises(ResourceExhausted) as refused:
        await store.create(request(), policy=InterruptionPolicy.AUTO, add=add)
    assert refused.value.reason is Reason.QUEUE_FULL
    assert len(await store.in_states(JobState.QUEUED)) == 2
    check_queue(replace(await create(store), queue_position=3), 3)
