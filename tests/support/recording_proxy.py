"""A gRPC proxy that forwards every call as bytes and records which methods passed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc

from grpc_proxy import GrpcProxy

# Made by each connection for itself; a proxy must not hand them on.
OWN_METADATA = ("user-agent", "content-type", "te")


class RecordingProxy(GrpcProxy):
    """Serves any method on a port of its own and forwards it to `target`.

    `methods` lists the full names of the methods in the order in which the calls began.
    """

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.methods: list[str] = []

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Treats every method as a stream of bytes both ways: on the wire a unary call is one too."""
        method = handler_call_details.method

        async def forward(
            requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
        ) -> AsyncIterator[bytes]:
            self.methods.append(method.lstrip("/").replace("/", "."))
            metadata = [
                (key, value)
                for key, value in context.invocation_metadata() or ()
                if key not in OWN_METADATA and not key.startswith("grpc-")
            ]
            call = self.channel.stream_stream(method)(
                requests, metadata=metadata, timeout=context.time_remaining()
            )
            try:
                async for response in call:
                    yield response
            except grpc.aio.AioRpcError as error:
                await context.abort(
                    error.code(), error.details() or "", tuple(error.trailing_metadata() or ())
                )
            finally:
                call.cancel()

        return grpc.stream_stream_rpc_method_handler(forward)
