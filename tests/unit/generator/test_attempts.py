"""What follows when a worker is gone, and what counts as its death."""

import pytest

from sfumato_chassis.errors import Reason
from sfumato_chassis.job_control import cancel_job
from sfumato_chassis.jobs import InterruptionPolicy, JobState, NewEvent
from sfumato_generator.attempts import (
    MAX_DEATHS,
    SERVICE_DIED,
    SERVICE_STOPPED,
    WORKER_DIED,
    close_attempt,
)

AUTO, MANUAL = InterruptionPolicy.AUTO, InterruptionPolicy.MANUAL
STARTED = NewEvent(kind="started", data={"device": "cpu"})


@pytest.fixture
def closed(jobs):
    """Closes the attempt of a generation; answers what became of it."""

    async def close(job, failure):
        await close_attempt(jobs, job.name, job.owner, failure)
        return await jobs.get(job.name, job.owner)

    return close


@pytest.mark.parametrize(
    ("policy", "failure", "state", "reason"),
    [
        (MANUAL, WORKER_DIED, JobState.FAILED, Reason.WORKER_DIED),
        (AUTO, WORKER_DIED, JobState.QUEUED, Reason.WORKER_DIED),
        (MANUAL, SERVICE_DIED, JobState.INTERRUPTED, Reason.WORKER_DIED),
        (AUTO, SERVICE_DIED, JobState.QUEUED, Reason.WORKER_DIED),
        (MANUAL, SERVICE_STOPPED, JobState.INTERRUPTED, Reason.SERVER_DRAINING),
        (AUTO, SERVICE_STOPPED, JobState.QUEUED, Reason.SERVER_DRAINING),
    ],
)
async def test_the_end_follows_from_policy_and_cause(
    running, closed, policy, failure, state, reason
):
    job = await closed(await running(policy), failure)
    assert (job.state, job.failure.reason) == (state, reason)


@pytest.mark.parametrize("failure", [WORKER_DIED, SERVICE_DIED, SERVICE_STOPPED])
async def test_a_cancel_that_was_accepted_wins(jobs, running, closed, failure):
    job = await running(AUTO)
    await cancel_job(jobs, job.name, job.owner)
    assert (await closed(job, failure)).state is JobState.CANCELLED


@pytest.mark.parametrize("failure", [WORKER_DIED, SERVICE_DIED, SERVICE_STOPPED])
async def test_a_cancel_that_comes_at_the_last_moment_wins(jobs, running, closed, failure):
    """It is accepted between the look at the state and the event that would have followed from it."""
    job = await running(AUTO)
    append = jobs.append

    async def append_after_cancel(*arguments, **options):
        jobs.append = append
        await cancel_job(jobs, job.name, job.owner)
        return await append(*arguments, **options)

    jobs.append = append_after_cancel
    assert (await closed(job, failure)).state is JobState.CANCELLED


@pytest.mark.parametrize("failure", [WORKER_DIED, SERVICE_DIED])
async def test_workers_that_die_again_and_again(jobs, running, closed, failure):
    job = await closed(await running(AUTO), failure)
    for _ in range(MAX_DEATHS - 1):
        assert job.state is JobState.QUEUED
        job = await closed(await jobs.claim(job.name, STARTED), failure)

    assert job.state is JobState.FAILED
    assert job.failure.reason is Reason.WORKER_DIED_REPEATEDLY
    assert f"{MAX_DEATHS} times" in job.failure.message


async def test_a_service_that_is_stopped_often_is_no_death(jobs, running, closed):
    job = await closed(await running(AUTO), SERVICE_STOPPED)
    for _ in range(MAX_DEATHS):
        job = await closed(await jobs.claim(job.name, STARTED), SERVICE_STOPPED)
    job = await closed(await jobs.claim(job.name, STARTED), WORKER_DIED)

    assert job.attempt == MAX_DEATHS + 2
    assert (job.state, job.failure.reason) == (JobState.QUEUED, Reason.WORKER_DIED)


async def test_what_the_worker_ended_itself_stays_as_it_is(jobs, running, closed):
    job = await running()
    await jobs.append(job.name, [NewEvent(kind="succeeded", data={"num_images": 0, "seconds": 1})])
    assert (await closed(job, WORKER_DIED)).state is JobState.SUCCEEDED
