"""A TCP proxy that cuts connections at random byte offsets, or on command."""

from __future__ import annotations

import asyncio
import random
from types import TracebackType
from typing import Self

READ_SIZE_BYTES = 65_536


class CuttingProxy:
    """Forwards a loopback port to another and cuts up to `max_cuts` connections.

    A connection is cut, both ways and without a farewell, after a number of bytes from the server
    that is drawn between 1 and `largest_offset` for each connection. With `max_cuts` 0 only `cut`
    and `freeze` do harm.
    """

    def __init__(
        self, target_port: int, *, seed: int = 0, max_cuts: int = 0, largest_offset: int = 1_000
    ) -> None:
        self._target_port = target_port
        self._random = random.Random(seed)
        self._max_cuts = max_cuts
        self._largest_offset = largest_offset
        self._connections: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.num_cuts = 0
        self.num_connections = 0

    @property
    def address(self) -> str:
        """Where clients connect."""
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    def cut(self) -> None:
        """Cuts every connection now."""
        for writer in self._writers:
            writer.transport.abort()

    def freeze(self) -> None:
        """Stops forwarding without closing anything, as a dead tunnel does."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Forwards again."""
        self._flowing.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.close()
        self.cut()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        self._writers.add(writer)
        self.num_connections += 1
        try:
            await self._forward_both(reader, writer)
        except ConnectionError:
            return  # one side is gone, and so is the other
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
            self._connections.discard(connection)

    async def _forward_both(
        self, client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter
    ) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        allowed = None
        if self.num_cuts < self._max_cuts:
            allowed = self._random.randint(1, self._largest_offset)
        try:
            upward = asyncio.create_task(self._forward(client_reader, server_writer, None))
            downward = asyncio.create_task(self._forward(server_reader, client_writer, allowed))
            try:
                await asyncio.wait((upward, downward), return_when=asyncio.FIRST_COMPLETED)
            finally:
                upward.cancel()
                downward.cancel()
                await asyncio.gather(upward, downward, return_exceptions=True)
        finally:
            server_writer.transport.abort()

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, allowed: int | None
    ) -> None:
        """Forwards until the end, or until `allowed` bytes were forwarded."""
        while data := await reader.read(READ_SIZE_BYTES):
            await self._flowing.wait()
            part = data if allowed is None else data[:allowed]
            writer.write(part)
            await writer.drain()
            if allowed is not None:
                allowed -= len(part)
                if allowed == 0:
                    self.num_cuts += 1
                    return
