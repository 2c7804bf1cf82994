"""What the three kinds of job have in common on the client's side."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration

from sfumato.job.v1 import job_pb2
from sfumato_client.calls import Timing
from sfumato_client.watch import ResourceT

# The longest that a Wait method waits.
WAIT_SECONDS = 30.0

ItemT = TypeVar("ItemT")

TERMINAL_STATES = frozenset(
    {
        job_pb2.JOB_STATE_SUCCEEDED,
        job_pb2.JOB_STATE_FAILED,
        job_pb2.JOB_STATE_CANCELLED,
        job_pb2.JOB_STATE_EXPIRED,
    }
)


def has_ended(status: job_pb2.JobStatus) -> bool:
    """Whether a job will never change again."""
    if status.state == job_pb2.JOB_STATE_INTERRUPTED:
        return status.interruption_policy == job_pb2.INTERRUPTION_POLICY_MANUAL
    return status.state in TERMINAL_STATES


async def wait(
    wait_once: Callable[[float], Awaitable[ResourceT]],
    *,
    timeout_seconds: float | None,
    timing: Timing,
) -> ResourceT:
    """Repeats a Wait method until the job has ended or the time is up; answers it as it stands.

    `wait_once` takes the seconds that one call may wait.
    """
    deadline = math.inf if timeout_seconds is None else timing.monotonic() + timeout_seconds
    while True:
        left_seconds = max(0.0, deadline - timing.monotonic())
        resource = await wait_once(min(left_seconds, WAIT_SECONDS))
        if has_ended(resource.status) or timing.monotonic() >= deadline:
            return resource


def duration(seconds: float) -> Duration:
    """Seconds as a message."""
    message = Duration()
    message.FromNanoseconds(int(seconds * 1e9))
    return message


async def pages(
    fetch: Callable[[str], Awaitable[tuple[Iterable[ItemT], str]]],
) -> AsyncGenerator[ItemT, None]:
    """Items of all pages. `fetch` takes a page token and answers the items and the next token."""
    page_token = ""
    while True:
        items, page_token = await fetch(page_token)
        for item in items:
            yield item
        if not page_token:
            return
