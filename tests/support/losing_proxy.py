"""A gRPC proxy that lets the first call of a method through and loses its answer."""

from __future__ import annotations

from typing import Any

import grpc

from grpc_proxy import GrpcProxy


class LosingProxy(GrpcProxy):
    """Forwards unary calls to `target`. The first answer of the method `lose` never arrives."""

    def __init__(self, target: str, *, lose: str) -> None:
        super().__init__(target)
        self._lose = lose
        self.num_lost = 0

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any]:
        method = handler_call_details.method

        async def forward(request: bytes, context: Any) -> bytes:
            answer: bytes = await self.channel.unary_unary(method)(request)
            if method.endswith(f"/{self._lose}") and not self.num_lost:
                self.num_lost += 1
                # What a proxy answers when the connection behind it broke: no word from sfumato.
                await context.abort(grpc.StatusCode.UNAVAILABLE, "connection reset")
            return answer

        return grpc.unary_unary_rpc_method_handler(forward)
