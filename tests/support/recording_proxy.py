"""A gRPC proxy that forwards every call as bytes and records which methods passed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

import grpc

# Made by each connection for itself; a proxy must not hand them on.
OWN_METADATA = ("user-agent", "content-type", "te")


class RecordingProxy(grpc.GenericRpcHandler):
    """Serves any method on a port of its own and forwards it to `target`.

    `methods` lists the full names of the methods in the order in which the calls began.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self.methods: list[str] = []

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
            call = self._channel.stream_stream(method)(
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
