"""When a job has ended, and paging."""

from __future__ import annotations

import pytest

from sfumato.datasets.v1 import imports_pb2
from sfumato.job.v1 import job_pb2
from sfumato_client.calls import Timing
from sfumato_client.jobs import duration, has_ended, pages, wait

ENDED = {"SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED"}


@pytest.mark.parametrize("name", list(job_pb2.JobState.DESCRIPTOR.values_by_name))
@pytest.mark.parametrize("policy", ["AUTO", "MANUAL"])
def test_ended_states(name: str, policy: str) -> None:
    status = job_pb2.JobStatus(
        state=job_pb2.JobState.Value(name),
        interruption_policy=job_pb2.InterruptionPolicy.Value(f"INTERRUPTION_POLICY_{policy}"),
    )
    state = name.removeprefix("JOB_STATE_")
    assert has_ended(status) is (state in ENDED or (state, policy) == ("INTERRUPTED", "MANUAL"))


class Job:
    def __init__(self, state: job_pb2.JobState.ValueType) -> None:
        self.status = job_pb2.JobStatus(state=state)


async def test_long_waits_are_made_of_short_ones() -> None:
    now, asked = 0.0, []

    async def wait_once(seconds: float) -> Job:
        nonlocal now
        now += seconds
        asked.append(seconds)
        return Job(job_pb2.JOB_STATE_RUNNING)

    job = await wait(wait_once, timeout_seconds=70, timing=Timing(monotonic=lambda: now))
    assert job.status.state == job_pb2.JOB_STATE_RUNNING
    assert asked == [30, 30, 10]


async def test_wait_ends_with_the_job() -> None:
    states = [job_pb2.JOB_STATE_QUEUED, job_pb2.JOB_STATE_PAUSED, job_pb2.JOB_STATE_FAILED]

    async def wait_once(seconds: float) -> Job:
        return Job(states.pop(0))

    job = await wait(wait_once, timeout_seconds=None, timing=Timing())
    assert job.status.state == job_pb2.JOB_STATE_FAILED


async def test_pages_follow_the_token_until_it_is_empty() -> None:
    stored = {"": ("ab", "2"), "2": ("", "3"), "3": ("c", "")}

    async def fetch(page_token: str) -> imports_pb2.ListImportsResponse:
        names, next_page_token = stored[page_token]
        return imports_pb2.ListImportsResponse(
            imports=[imports_pb2.Import(name=name) for name in names],
            next_page_token=next_page_token,
        )

    listed = pages(fetch, lambda page: page.imports)
    assert [item.name async for item in listed] == ["a", "b", "c"]


def test_duration_keeps_fractions() -> None:
    assert duration(1.25).ToMilliseconds() == 1250
