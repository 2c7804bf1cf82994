"""The asyncio client of all three services."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from sfumato.blobs.v1 import blobs_pb2_grpc
from sfumato.datasets.v1 import datasets_pb2_grpc
from sfumato.generator.v1 import generator_pb2_grpc
from sfumato.trainer.v1 import trainer_pb2_grpc
from sfumato_client.blobs import Blobs
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
        """
        connection = connection or Connection.from_environment(os.environ)
        addresses = connection.addresses
        self._channels = {
            address: ChannelPair.open(address, interceptors)
            for address in (addresses.datasets, addresses.trainer, addresses.generator)
        }
        caller = Caller(
            metadata=connection.metadata(),
            policy=policy or RetryPolicy(),
            timing=timing or Timing(),
        )
        at_datasets = self._channels[addresses.datasets]
        at_trainer = self._channels[addresses.trainer]
        at_generator = self._channels[addresses.generator]
        self.datasets = Datasets(
            stub=datasets_pb2_grpc.DatasetsServiceStub(at_datasets.unary),
            watch_stub=datasets_pb2_grpc.DatasetsServiceStub(at_datasets.watch),
            caller=caller,
            watch_policy=watch_policy,
            blobs=_blobs(at_datasets, caller),
        )
        self.trainer = Trainer(
            stub=trainer_pb2_grpc.TrainerServiceStub(at_trainer.unary),
            watch_stub=trainer_pb2_grpc.TrainerServiceStub(at_trainer.watch),
            caller=caller,
            watch_policy=watch_policy,
            blobs=_blobs(at_trainer, caller),
        )
        self.generator = Generator(
            stub=generator_pb2_grpc.GeneratorServiceStub(at_generator.unary),
            watch_stub=generator_pb2_grpc.GeneratorServiceStub(at_generator.watch),
            caller=caller,
            watch_policy=watch_policy,
            blobs=_blobs(at_generator, caller),
        )
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


def _blobs(channels: ChannelPair, caller: Caller) -> Blobs:
    return Blobs(stub=blobs_pb2_grpc.BlobServiceStub(channels.unary), caller=caller)
