"""The trainer service, put together."""

from collections.abc import Sequence

import grpc

from sfumato.trainer.v1 import trainer_pb2, trainer_pb2_grpc
from sfumato_chassis.platform import Platform
from sfumato_chassis.schema import Schema
from sfumato_diffusion.packages import PACKAGES
from sfumato_trainer import storage
from sfumato_trainer.config import TrainerConfig
from sfumato_trainer.dataset_reader import DatasetReader
from sfumato_trainer.engine import TrainingEngine
from sfumato_trainer.servicer import TrainerServicer

SCHEMA = Schema(
    name="trainer", metadata=storage.metadata, package="sfumato_trainer", revision="0001"
)

NEEDS: Sequence[str] = ("datasets",)
WORKER_PACKAGES = PACKAGES


class TrainerService:
    """Implements :class:`sfumato_chassis.platform.Service`."""

    proto_name = trainer_pb2.DESCRIPTOR.services_by_name["TrainerService"].full_name

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        datasets = DatasetReader(lambda: platform.peer("datasets"))
        config = platform.config.section(TrainerConfig)
        self.device = config.device
        self._engine = TrainingEngine(platform, config, datasets)

    def mount(self, server: grpc.aio.Server) -> None:
        servicer = TrainerServicer(self._platform, self._engine)
        trainer_pb2_grpc.add_TrainerServiceServicer_to_server(servicer, server)

    async def start(self) -> None:
        await self._engine.start()

    async def maintain(self) -> None:
        """Runs and adapters are kept until they are deleted."""

    async def drain(self) -> None:
        await self._engine.drain()

    async def stop(self) -> None:
        await self._engine.stop()


def build(platform: Platform) -> TrainerService:
    """The service on this platform."""
    return TrainerService(platform)
