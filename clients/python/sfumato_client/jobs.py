"""What the three kinds of job have in common on the client's side."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from google.protobuf.duration_pb2 import Duration

from sfumato.job.v1 import job_pb2
from sfumato_client.calls import Caller, RetryPolicy, Timing
from sfumato_client.watch import (
    Cursor,
    EventT,
    Reconnecting,
    ResourceT,
    ResponseStream,
    Watch,
    WatchItem,
    WatchResponse,
)

# The longest that a Wait method waits.
WAIT_SECONDS = 30.0

ItemT = TypeVar("ItemT")
AnswerT = TypeVar("AnswerT")
PageT = TypeVar("PageT", bound="Page")

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


class Page(Protocol):
    """What the List methods answer."""

    @property
    def next_page_token(self) -> str: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class JobCalls(Generic[ResourceT, EventT, AnswerT]):
    """Get, wait, watch and cancel of one kind of job; its service gives the messages.

    `AnswerT` is what Get, Wait and Cancel answer: messages with the job as one field.
    """

    caller: Caller
    watch_policy: RetryPolicy
    resource_of: Callable[[AnswerT], ResourceT]
    # Each takes a job's name; `ask_wait` also the seconds that the one call may wait.
    ask_get: Callable[[str], Awaitable[AnswerT]]
    ask_wait: Callable[[str, float], Awaitable[AnswerT]]
    ask_cancel: Callable[[str], Awaitable[AnswerT]]
    open_watch: Callable[[str, Cursor], ResponseStream[WatchResponse[ResourceT, EventT]]]

    async def get(self, name: str) -> ResourceT:
        """The job as it stands."""
        return self.resource_of(await self.ask_get(name))

    async def wait(self, name: str, timeout_seconds: float | None) -> ResourceT:
        """Waits until the job has ended or the time is up (`wait`)."""

        async def wait_once(seconds: float) -> ResourceT:
            return self.resource_of(await self.ask_wait(name, seconds))

        return await wait(wait_once, timeout_seconds=timeout_seconds, timing=self.caller.timing)

    def watch(
        self,
        name: str,
        cursor: Cursor | None,
        on_reconnecting: Callable[[Reconnecting], None] | None,
    ) -> AsyncGenerator[WatchItem[ResourceT, EventT], None]:
        """Follows the job across lost connections (`Watch.items`)."""
        watch: Watch[ResourceT, EventT] = Watch(
            open_stream=lambda at: self.open_watch(name, at),
            cursor=cursor or Cursor(),
            policy=self.watch_policy,
            timing=self.caller.timing,
            on_reconnecting=on_reconnecting,
        )
        return watch.items()

    async def cancel(self, name: str) -> ResourceT:
        """Asks for the job's end without a result."""
        return self.resource_of(await self.ask_cancel(name))


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
    fetch: Callable[[str], Awaitable[PageT]], items_of: Callable[[PageT], Iterable[ItemT]]
) -> AsyncGenerator[ItemT, None]:
    """Items of all pages. `fetch` takes a page token, empty for the first page."""
    page_token = ""
    while True:
        page = await fetch(page_token)
        for item in items_of(page):
            yield item
        page_token = page.next_page_token
        if not page_token:
            return
