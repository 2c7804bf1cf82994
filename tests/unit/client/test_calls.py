"""Backoff: delays, budget, and what the server asks for."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import grpc
import pytest

from sfumato.datasets.v1 import imports_pb2
from sfumato_client.calls import Backoff, Caller, RetryPolicy, Timing, with_request_id
from sfumato_client.errors import FailedPrecondition, TransportLost, Unavailable
from statuses import rpc_error


class FakeTime:
    """A clock that moves only by sleeping, or by `attempt_seconds` for each attempt."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sleeps: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds

    def timing(self, seed: int = 0) -> Timing:
        return Timing(monotonic=lambda: self.now, sleep=self.sleep, random=random.Random(seed))


def failing(*outcomes: Exception | str) -> Callable[[], Awaitable[str]]:
    """An attempt that raises or answers one outcome after the other; the last one for ever."""
    left = list(outcomes)

    async def attempt() -> str:
        outcome = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return attempt


def lost() -> grpc.aio.AioRpcError:
    return rpc_error(grpc.StatusCode.UNAVAILABLE)


async def test_losses_are_repeated_until_an_answer_comes() -> None:
    time = FakeTime()
    caller = Caller(timing=time.timing())
    assert await caller.repeat(failing(lost(), lost(), lost(), "answer")) == "answer"
    assert len(time.sleeps) == 3


async def test_refusal_is_raised_at_once() -> None:
    time = FakeTime()
    caller = Caller(timing=time.timing())
    refusal = rpc_error(grpc.StatusCode.FAILED_PRECONDITION, reason="DATASET_EMPTY")
    with pytest.raises(FailedPrecondition):
        await caller.repeat(failing(refusal, "never"))
    assert time.sleeps == []


async def test_retry_info_is_the_least_delay() -> None:
    time = FakeTime()
    caller = Caller(timing=time.timing())
    draining = rpc_error(
        grpc.StatusCode.UNAVAILABLE, reason="SERVER_DRAINING", retry_delay_seconds=7
    )
    assert await caller.repeat(failing(draining, "answer")) == "answer"
    assert 7.0 <= time.sleeps[0] <= 7.2


async def test_last_error_is_raised_when_the_budget_is_used_up() -> None:
    time = FakeTime()
    caller = Caller(policy=RetryPolicy(budget_seconds=60), timing=time.timing())
    with pytest.raises(TransportLost):
        await caller.repeat(failing(lost()))
    assert 40 < time.now <= 60


async def test_a_delay_beyond_the_budget_is_not_begun() -> None:
    time = FakeTime()
    caller = Caller(policy=RetryPolicy(budget_seconds=60), timing=time.timing())
    starting = rpc_error(
        grpc.StatusCode.UNAVAILABLE, reason="SERVER_STARTING", retry_delay_seconds=61
    )
    with pytest.raises(Unavailable):
        await caller.repeat(failing(starting))
    assert time.sleeps == []


def test_delays_are_full_jitter_under_a_doubling_ceiling() -> None:
    policy = RetryPolicy(budget_seconds=1e9)
    ceilings = [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0]
    largest = [0.0] * len(ceilings)
    for seed in range(200):
        backoff = Backoff(policy, FakeTime().timing(seed))
        delays = [backoff.next_delay(at_least_seconds=None) or 0.0 for _ in ceilings]
        assert all(0.0 <= delay <= ceiling for delay, ceiling in zip(delays, ceilings, strict=True))
        largest = [max(pair) for pair in zip(largest, delays, strict=True)]
    assert all(seen > 0.9 * ceiling for seen, ceiling in zip(largest, ceilings, strict=True))


def test_progress_renews_budget_and_delays() -> None:
    backoff = Backoff(RetryPolicy(budget_seconds=1.0), FakeTime().timing())
    backoff.spend(1.0)
    assert backoff.next_delay(at_least_seconds=None) is None
    backoff.reset()
    delay = backoff.next_delay(at_least_seconds=None)
    assert delay is not None
    assert delay <= 0.2


def test_create_keeps_its_request_id_and_gets_one_if_it_has_none() -> None:
    request = imports_pb2.CreateImportRequest(dataset="cats")
    first, second = with_request_id(request), with_request_id(request)
    assert request.request_id == ""
    assert first.request_id != second.request_id
    assert with_request_id(first).request_id == first.request_id
