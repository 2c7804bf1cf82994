"""Unary calls that survive a lost answer."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from sfumato_client.channel import CallMetadata
from sfumato_client.errors import Loss, Refusal, RetryAfter, SfumatoError, classify

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """How long, and how often, a lost call is tried again.

    The delay is drawn evenly between 0 and a ceiling that doubles from the first delay to the
    largest ("full jitter", https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
    """

    first_delay_seconds: float = 0.2
    maximum_delay_seconds: float = 10.0
    # Time without any success after which the last error is raised.
    budget_seconds: float = 60.0
    # One attempt of a unary call, to which Wait calls add their own timeout; the silence after which
    # a download, or a watch that has not yet attached, is taken for lost.
    attempt_timeout_seconds: float = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Clock, sleep and chance, so that tests need not wait for them."""

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: random.Random = field(default_factory=random.Random)


class Backoff:
    """Delays of one series of attempts, within a time budget."""

    def __init__(self, policy: RetryPolicy, timing: Timing) -> None:
        self._policy = policy
        self._timing = timing
        self._num_losses = 0
        self._spent_seconds = 0.0

    def reset(self) -> None:
        """Progress was made: the budget and the delays begin anew."""
        self._num_losses = 0
        self._spent_seconds = 0.0

    def spend(self, seconds: float) -> None:
        """Counts time against the budget that was spent on an attempt without result."""
        self._spent_seconds += seconds

    def next_delay(self, *, at_least_seconds: float | None) -> float | None:
        """Seconds to wait before the next attempt; None when they would break the budget."""
        policy = self._policy
        # Two to the 60th is past every ceiling; the exponent stops before floats overflow.
        ceiling = policy.first_delay_seconds * 2.0 ** min(self._num_losses, 60)
        jitter = self._timing.random.uniform(0.0, min(ceiling, policy.maximum_delay_seconds))
        delay = (at_least_seconds or 0.0) + jitter
        if self._spent_seconds + delay > policy.budget_seconds:
            return None
        self._num_losses += 1
        self._spent_seconds += delay
        return delay


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Makes unary calls with the metadata, retry policy and clock of one client."""

    metadata: CallMetadata = ()
    policy: RetryPolicy = RetryPolicy()
    timing: Timing = field(default_factory=Timing)

    async def once(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT],
        request: RequestT,
        *,
        additional_timeout_seconds: float = 0.0,
    ) -> ResponseT:
        """Calls once. For methods that must not be repeated blindly.

        Raises:
            SfumatoError: the refusal, or TransportLost.
        """
        try:
            return await method(
                request,
                timeout=self.policy.attempt_timeout_seconds + additional_timeout_seconds,
                metadata=self.metadata,
            )
        except grpc.aio.AioRpcError as error:
            raise classify(error).error from error

    async def repeatable(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT],
        request: RequestT,
        *,
        additional_timeout_seconds: float = 0.0,
    ) -> ResponseT:
        """Calls until an answer arrives, within the budget.

        For reads, waits, creates with a request id and other methods that the contract calls safe
        to repeat. After a loss, SERVER_DRAINING or SERVER_STARTING it tries again.

        Raises:
            SfumatoError: any other refusal, at once; when the budget is used up, the last error.
        """

        async def attempt() -> ResponseT:
            return await method(
                request,
                timeout=self.policy.attempt_timeout_seconds + additional_timeout_seconds,
                metadata=self.metadata,
            )

        return await self.repeat(attempt)

    async def repeat(self, attempt: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Repeats an attempt that raises grpc.aio.AioRpcError, as `repeatable` does."""
        backoff = Backoff(self.policy, self.timing)
        while True:
            began = self.timing.monotonic()
            try:
                return await attempt()
            except grpc.aio.AioRpcError as error:
                backoff.spend(self.timing.monotonic() - began)
                await pause_or_raise(classify(error), backoff, self.timing, cause=error)


async def pause_or_raise(
    outcome: Refusal | Loss | RetryAfter,
    backoff: Backoff,
    timing: Timing,
    *,
    cause: BaseException | None = None,
    before_pause: Callable[[SfumatoError, float], None] | None = None,
) -> None:
    """Sleeps before the next attempt, or raises where there must be none.

    `before_pause` is told the error and the delay in seconds.
    """
    if isinstance(outcome, Refusal):
        raise outcome.error from cause
    delay = backoff.next_delay(at_least_seconds=outcome.error.retry_delay_seconds)
    if delay is None:
        raise outcome.error from cause
    if before_pause is not None:
        before_pause(outcome.error, delay)
    await timing.sleep(delay)


def with_request_id(request: RequestT) -> RequestT:
    """A copy of a create request, with a new request id if it had none."""
    copy = type(request)()
    copy.CopyFrom(request)
    if not getattr(copy, "request_id"):  # noqa: B009  # every create has it; the base class does not
        setattr(copy, "request_id", new_request_id())  # noqa: B010
    return copy


def new_request_id() -> str:
    """A random UUID. Repeat a create with the same one to get the same job."""
    return str(uuid.uuid4())
