"""What happens around every call, outermost first: request id and log, metrics, error guard, drain
gate, authentication, deadline; then the request is parsed and checked and the method runs.

The stages are written once and serve unary and streaming methods alike. The deserialiser is taken out
of gRPC's hands, which would answer its exception text as UNKNOWN.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

import grpc
from google.protobuf.message import DecodeError, Message

from sfumato_chassis import unexpected_errors
from sfumato_chassis.errors import (
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    Reason,
    SfumatoError,
    Unimplemented,
    server_draining,
)
from sfumato_chassis.logging import get_logger, log_context
from sfumato_chassis.metrics import Metrics
from sfumato_chassis.principals import Authenticator, Principal
from sfumato_chassis.status import to_status
from sfumato_chassis.validation import check_request

REQUEST_ID_HEADER = "x-request-id"
MAX_REQUEST_ID_CHARACTERS = 128

log = get_logger(__name__)
_principal: ContextVar[Principal] = ContextVar("principal")


def current_principal() -> Principal:
    """Who makes the call that is being served."""
    return _principal.get()


@dataclass(kw_only=True, slots=True)
class Call:
    """One call on its way through the stages."""

    method: str
    metadata: Mapping[str, str]
    streaming: bool
    request_id: str
    outcome: str = "OK"
    began: float = field(default_factory=time.perf_counter)

    @property
    def name(self) -> str:
        """The last part of the method's name, e.g. ``CreateImport``."""
        return self.method.rpartition("/")[2]

    @property
    def creates(self) -> bool:
        """Whether it asks for new work."""
        return self.name.startswith("Create")


class Pipeline(grpc.aio.ServerInterceptor):
    """The stages around every call of a server."""

    def __init__(
        self,
        *,
        metrics: Metrics,
        authenticator: Authenticator,
        draining: asyncio.Event,
        unary_deadline_seconds: float,
    ) -> None:
        self._metrics = metrics
        self._authenticator = authenticator
        self._draining = draining
        self._unary_deadline_seconds = unary_deadline_seconds
        self._wrapped: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        method = handler_call_details.method
        wrapped = self._wrapped.get(method)
        if wrapped is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return self._unknown(method)
            wrapped = self._wrapped[method] = self._wrap(method, handler)
        return wrapped

    def _wrap(
        self, method: str, handler: grpc.RpcMethodHandler[Any, Any]
    ) -> grpc.RpcMethodHandler[Any, Any]:
        if not method.startswith("/sfumato."):
            return handler
        parse = handler.request_deserializer
        if handler.unary_stream is not None:
            stream = cast(Callable[..., AsyncIterator[Any]], handler.unary_stream)

            async def serve_stream(body: bytes, context: Any) -> AsyncIterator[Any]:
                async with self._stages(method, context, streaming=True) as call:
                    async for response in stream(read_request(call, body, parse), context):
                        yield response

            return grpc.unary_stream_rpc_method_handler(
                serve_stream, response_serializer=handler.response_serializer
            )
        unary = handler.unary_unary
        assert unary is not None, "the public interface has no client streams"

        async def serve_unary(body: bytes, context: Any) -> Any:
            async with self._stages(method, context, streaming=False) as call:
                return await unary(read_request(call, body, parse), context)

        return grpc.unary_unary_rpc_method_handler(
            serve_unary, response_serializer=handler.response_serializer
        )

    def _unknown(self, method: str) -> grpc.RpcMethodHandler[Any, Any]:
        async def refuse(body: bytes, context: Any) -> None:
            del body
            error = Unimplemented(
                Reason.METHOD_UNKNOWN, f"this server has no {method[:200].removeprefix('/')}"
            )
            await context.abort_with_status(to_status(error))

        return grpc.unary_unary_rpc_method_handler(refuse)

    @asynccontextmanager
    async def _stages(self, method: str, context: Any, *, streaming: bool) -> AsyncIterator[Call]:
        metadata = {
            key: value for key, value in context.invocation_metadata() if isinstance(value, str)
        }
        request_id = metadata.get(REQUEST_ID_HEADER, "")[:MAX_REQUEST_ID_CHARACTERS]
        call = Call(
            method=method,
            metadata=metadata,
            streaming=streaming,
            request_id=request_id or uuid.uuid4().hex,
        )
        limit = asyncio.timeout(None if streaming else self._unary_deadline_seconds)
        with log_context(request_id=call.request_id):
            try:
                self._pass_drain_gate(call)
                _principal.set(await self._authenticator.authenticate(call.method, call.metadata))
                async with limit:
                    yield call
            except grpc.aio.AbortError:
                call.outcome = "ABORTED"
                raise
            except (asyncio.CancelledError, GeneratorExit):
                call.outcome = Reason.CALLER_CANCELLED.value
                raise
            except Exception as error:  # noqa: BLE001 - the boundary, where it is logged
                late = isinstance(error, TimeoutError) and limit.expired()
                told = took_too_long() if late else answer_to(error, call)
                call.outcome = told.reason.value
                await context.abort_with_status(to_status(told))
            finally:
                seconds = time.perf_counter() - call.began
                self._metrics.count(call.method, call.outcome, seconds)
                log.debug("call", method=call.name, outcome=call.outcome, seconds=round(seconds, 6))

    def _pass_drain_gate(self, call: Call) -> None:
        if self._draining.is_set() and call.creates:
            raise server_draining()


def took_too_long() -> DeadlineExceeded:
    """What the caller of a call is told that the server gave up."""
    return DeadlineExceeded(Reason.DEADLINE_EXCEEDED, "the call took longer than the server allows")


def answer_to(error: Exception, call: Call) -> SfumatoError:
    """What the caller is told of ``error``; the log is told what callers are not."""
    match error:
        case SfumatoError():
            if isinstance(error, Internal):
                log.error(
                    "internal error", method=call.name, error_id=error.error_id, **error.details
                )
            elif error.reason is Reason.SERVICE_UNREACHABLE:
                # The caller is not told where the other service is looked for.
                log.warning(error.message, method=call.name, cause=str(error.__cause__))
            return error
        case _:
            return unexpected_errors.report(error, "unexpected error", method=call.name)


def read_request(call: Call, body: bytes, parse: Callable[[bytes], Message] | None) -> Message:
    """Parses and checks the request of ``call``.

    Raises:
        InvalidArgument: MESSAGE_MALFORMED, or FIELD_INVALID with the fields.
    """
    assert parse is not None
    try:
        request = parse(body)
    except DecodeError as error:
        raise InvalidArgument(
            Reason.MESSAGE_MALFORMED, f"the bytes are not a request of {call.name}"
        ) from error
    check_request(request, refuse_unknown_fields=call.creates)
    return request
