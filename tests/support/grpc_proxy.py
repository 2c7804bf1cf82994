"""What gRPC proxies have in common: a server of any method, and a channel to the real one."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import grpc


class GrpcProxy(grpc.GenericRpcHandler):
    """Serves on a free loopback port, `address`. What becomes of a call is the subclass's to say.

    Attributes:
        channel: to the target.
    """

    def __init__(self, target: str) -> None:
        self._target = target

    async def __aenter__(self) -> Self:
        self.channel = grpc.aio.insecure_channel(self._target)
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
        await self.channel.close()
