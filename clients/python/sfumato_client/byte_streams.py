"""Bytes that arrive in a stream and go on where it was cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

import grpc

from sfumato_client.calls import Backoff, Caller, pause_or_raise
from sfumato_client.errors import Loss, Refusal, RetryAfter, classify, lost

RequestT = TypeVar("RequestT")
MessageT = TypeVar("MessageT")


async def read_resumed(
    caller: Caller,
    open_at: Callable[[int], grpc.aio.UnaryStreamCall[RequestT, MessageT]],
    *,
    offset: int,
    size_of: Callable[[MessageT], int | None],
    chunk_of: Callable[[MessageT], bytes],
) -> AsyncGenerator[bytes, None]:
    """Yields bytes from `offset` to the end, across lost connections.

    Args:
        open_at: opens the stream at an offset.
        size_of: of the first message the number of bytes in all; None for one with a chunk.

    Raises:
        SfumatoError: a refusal, or TransportLost without progress for the budget.
    """
    timing, policy = caller.timing, caller.policy
    backoff = Backoff(policy, timing)
    size_bytes: int | None = None
    while size_bytes is None or offset < size_bytes:
        outcome: Refusal | Loss | RetryAfter = Loss(error=lost("the download ended too early"))
        began = timing.monotonic()
        stream = open_at(offset)
        try:
            async for message in _with_timeout(stream, policy.attempt_timeout_seconds):
                announced = size_of(message)
                if announced is not None:
                    size_bytes = announced
                else:
                    backoff.reset()
                    chunk = chunk_of(message)
                    offset += len(chunk)
                    yield chunk
                    began = timing.monotonic()
        except grpc.aio.AioRpcError as error:
            outcome = classify(error)
        except TimeoutError:
            silence = f"nothing arrived for {policy.attempt_timeout_seconds:g} s"
            outcome = Loss(error=lost(silence))
        finally:
            stream.cancel()
        if size_bytes is None or offset < size_bytes:
            backoff.spend(timing.monotonic() - began)
            await pause_or_raise(outcome, backoff, timing)


async def _with_timeout(
    stream: grpc.aio.UnaryStreamCall[RequestT, MessageT], timeout_seconds: float
) -> AsyncGenerator[MessageT, None]:
    messages = aiter(stream)
    while True:
        try:
            async with asyncio.timeout(timeout_seconds):
                message = await anext(messages)
        except StopAsyncIteration:
            return
        yield message
