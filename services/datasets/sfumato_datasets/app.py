"""The datasets service, put together."""

import os
from collections.abc import Sequence

import grpc

from sfumato.datasets.v1 import datasets_pb2, datasets_pb2_grpc
from sfumato_chassis.platform import Platform
from sfumato_chassis.schema import Schema
from sfumato_datasets import tables
from sfumato_datasets.config import DatasetsConfig
from sfumato_datasets.engine import ImportEngine
from sfumato_datasets.hub_settings import check_hub_settings
from sfumato_datasets.parts import Parts
from sfumato_datasets.servicer import DatasetsServicer

SCHEMA = Schema(
    name="datasets", metadata=tables.metadata, package="sfumato_datasets", revision="0002"
)

NEEDS: Sequence[str] = ()
WORKER_PACKAGES: Sequence[str] = ()


class DatasetsService:
    """Implements :class:`sfumato_chassis.platform.Service`."""

    proto_name = datasets_pb2.DESCRIPTOR.services_by_name["DatasetsService"].full_name
    device = "cpu"

    def __init__(self, platform: Platform) -> None:
        """Raises ConfigError where the settings cannot be used."""
        self._platform = platform
        config = platform.config.section(DatasetsConfig)
        check_hub_settings(config, os.environ)
        self._parts = Parts(platform, config)
        self._engine = ImportEngine(platform, config, self._parts)

    def mount(self, server: grpc.aio.Server) -> None:
        servicer = DatasetsServicer(self._platform, self._engine, self._parts)
        datasets_pb2_grpc.add_DatasetsServiceServicer_to_server(servicer, server)

    async def start(self) -> None:
        await self._engine.start()

    async def maintain(self) -> None:
        await self._engine.maintain()
        await self._parts.editor.maintain()

    async def drain(self) -> None:
        await self._engine.drain()

    async def stop(self) -> None:
        """Nothing is open after :meth:`drain`."""


def build(platform: Platform) -> DatasetsService:
    """The service on this platform."""
    return DatasetsService(platform)
