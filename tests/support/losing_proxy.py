"""A gRPC proxy that lets the first call of a method through and loses its answer."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import grpc


class LosingProxy(grpc.GenericRpcHandler):
    """Forwards unary calls to `target`. The first answer of the method `lose` never arrives."""

    def __init__(self, target: str, *, lose: str) -> None:
        self._target = target
        self._lose = lose
        self.num_lost = 0

    async def __aenter__(self) -> Self:
        self._channel = grpc.aio.insecure_channel(self._target)
        self._server = grpc.aio.server(handlers=[self])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._server.stop(None)
        await self._channel.close()

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any]:
        method = handler_call_details.method

        async def forward(request: bytes, context: Any) -> bytes:
            answer: bytes = await self._channel.unary_unary(method)(request)
            if method.endswith(f"/{self._lose}") and not self.num_lost:
                self.num_lost += 1
                # What a proxy answers when the connection behind it broke: no word from sfumato.
                await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
            return answer

        return grpc.unary_unary_rpc_method_handler(forward)
