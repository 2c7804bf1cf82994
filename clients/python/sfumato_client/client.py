"""The asyncio client of all three services."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from sfumato_client.calls import Caller, RetryPolicy, Timing
from sfumato_client.channel import ChannelInterceptors, ChannelPair, Connection
from sfumato_client.datasets import Datasets
from sfumato_client.generator import Generator
from sfumato_client.trainer import Trainer
from sfumato_client.watch import WATCH_POLICY


class Client:
    """Holds the connections; use it with `async with`.

    Attributes:
        datasets, trainer, generator: one facade for each service.
        blobs: uploads and downloads through the datasets service. Each facade has its own too.
    """

    def __init__(
        self,
        connection: Connection | None = None,
        *,
        policy: RetryPolicy | None = None,
        watch_policy: RetryPolicy = WATCH_POLICY,
        timing: Timing | None = None,
        interceptors: ChannelInterceptors | None = None,
    ) -> None:
        """Opens channels, which connect at the first call. Make it where an event loop runs.

        Args:
            connection: addresses and identity; by default those of the SFUMATO_* environment.
            policy: how unary calls, uploads and downloads are retried.
            watch_policy: how watches attach again; its budget is time without a stream.
            timing: clock, sleep and chance.
            interceptors: makes gRPC interceptors for the channels to an address.

        Raises:
            ValueError: The key would go to another machine unencrypted, or a variable cannot be used.
            OSError: A file of TLS cannot be read.
        """
        connection = connection or Connection.from_environment(os.environ)
        connection.check_secrecy()
        addresses = connection.addresses
        credentials = None if connection.tls is None else connection.tls.credentials()
        self._channels = {
            address: ChannelPair.open(address, interceptors, credentials=credentials)
            for address in addresses.all
        }
        caller = Caller(
            metadata=connection.metadata(),
            policy=policy or RetryPolicy(),
            timing=timing or Timing(),
        )
        self.datasets = Datasets(self._channels[addresses.datasets], caller, watch_policy)
        self.trainer = Trainer(self._channels[addresses.trainer], caller, watch_policy)
        self.generator = Generator(self._channels[addresses.generator], caller, watch_policy)
        self.blobs = self.datasets.blobs

    async def close(self) -> None:
        """Closes the connections; jobs go on."""
        async with AsyncExitStack() as stack:
            for channels in self._channels.values():
                stack.push_async_callback(channels.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
