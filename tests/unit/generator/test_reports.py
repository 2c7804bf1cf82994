"""How reports are appended: once each, and never to the harm of the generations that follow."""

import pytest

from sfumato_chassis.errors import NotFound
from sfumato_chassis.job_store import Fenced
from sfumato_chassis.jobs import InterruptionPolicy, JobState, NewEvent
from sfumato_generator import storage
from sfumato_generator.attempts import SERVICE_STOPPED, close_attempt
from sfumato_generator.reports import Reports, batches

DIGEST = f"sha256:{'0' * 64}"
SAVED = NewEvent(
    kind="image_saved",
    data={
        "digest": DIGEST,
        "size_bytes": 10,
        "width": 64,
        "height": 64,
        "seed": 1,
        "model_revision": "dir-0",
    },
)
SUCCEEDED = NewEvent(kind="succeeded", data={"num_images": 1, "seconds": 1.0})
LAST = [(1, SAVED), (2, SUCCEEDED)]


@pytest.fixture
def reports(platform, jobs, gallery):
    return Reports(platform.database, jobs, gallery)


async def kinds_of(jobs, job):
    return [event.kind for event in await jobs.events(job.name, 0)]


async def test_a_repeated_last_report_is_acknowledged_and_appended_once(jobs, running, reports):
    job = await running()
    first = await reports.append(job.name, job.fence, LAST)
    again = await reports.append(job.name, job.fence, LAST)

    assert (first, again) == (2, 2)
    assert await kinds_of(jobs, job) == ["queued", "started", "image_saved", "succeeded"]


async def test_a_last_report_repeated_after_a_delete_is_acknowledged(
    platform, jobs, running, reports
):
    job = await running()
    await reports.append(job.name, job.fence, LAST)
    now = platform.clock.now()
    await jobs.delete(
        job.name, job.owner, remove=lambda c, job: storage.remove_generation(c, job, now)
    )
    assert await reports.append(job.name, job.fence, LAST) == 2
    with pytest.raises(NotFound):
        await jobs.get(job.name, job.owner)


async def test_what_is_told_after_the_end_is_dropped(jobs, running, reports):
    job = await running()
    await close_attempt(jobs, job.name, job.owner, SERVICE_STOPPED)
    assert await reports.append(job.name, job.fence, LAST) == 2
    assert await kinds_of(jobs, job) == ["queued", "started", "interrupted"]


async def test_a_generation_that_another_worker_has_is_refused(jobs, running, reports):
    job = await running(InterruptionPolicy.AUTO)
    await close_attempt(jobs, job.name, job.owner, SERVICE_STOPPED)
    await jobs.claim(job.name, NewEvent(kind="started", data={"device": "cpu"}))
    with pytest.raises(Fenced):
        await reports.append(job.name, job.fence, LAST)
    assert (await jobs.get(job.name, job.owner)).state is JobState.RUNNING


def test_each_image_is_appended_on_its_own():
    kinds = ["step", "image_saved", "image_saved", "step", "image_saved", "succeeded"]
    events = [(number, NewEvent(kind=kind)) for number, kind in enumerate(kinds, start=1)]
    split = [[event.kind for _, event in batch] for batch in batches(events)]

    assert split == [
        ["step"],
        ["image_saved"],
        ["image_saved", "step"],
        ["image_saved", "succeeded"],
    ]
    assert batches([]) == [[]]
