"""The generator service, put together."""

import os
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

import grpc

from sfumato.generator.v1 import generator_pb2, generator_pb2_grpc
from sfumato_chassis.platform import Platform
from sfumato_chassis.schema import Schema
from sfumato_chassis.threads import MAX_READERS, Threads
from sfumato_diffusion.packages import PACKAGES
from sfumato_generator import storage
from sfumato_generator.config import GeneratorConfig
from sfumato_generator.engine import GenerationEngine
from sfumato_generator.servicer import GeneratorServicer

if TYPE_CHECKING:
    from sfumato_generator.resolver import GenerationResolver

SCHEMA = Schema(
    name="generator", metadata=storage.metadata, package="sfumato_generator", revision="0001"
)
SEED_BITS = 32
"""Seeds that the server draws: short enough to be read out, as other tools draw them."""

NEEDS: Sequence[str] = ("trainer",)
WORKER_PACKAGES = PACKAGES


class GeneratorService:
    """Implements :class:`sfumato_chassis.platform.Service`."""

    proto_name = generator_pb2.DESCRIPTOR.services_by_name["GeneratorService"].full_name

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        config = platform.config.section(GeneratorConfig)
        self.device = config.device
        self._engine = GenerationEngine(platform, config, lambda: resolver_of(platform, config))

    def mount(self, server: grpc.aio.Server) -> None:
        servicer = GeneratorServicer(self._platform, self._engine)
        generator_pb2_grpc.add_GeneratorServiceServicer_to_server(servicer, server)

    async def start(self) -> None:
        await self._engine.start()

    async def maintain(self) -> None:
        await self._engine.maintain()

    async def drain(self) -> None:
        await self._engine.drain()

    async def stop(self) -> None:
        await self._engine.stop()


def resolver_of(platform: Platform, config: GeneratorConfig) -> "GenerationResolver":
    """Resolves generations against the models of this machine and the trainer's adapters."""
    from sfumato_diffusion.source_revision import hub_cache_roots
    from sfumato_generator.adapter_lookup import TrainerAdapters
    from sfumato_generator.resolver import GenerationResolver

    return GenerationResolver(
        roots=[platform.data_dir / "models", *config.model_roots],
        cache_roots=lambda: hub_cache_roots(None, os.environ),
        adapters=TrainerAdapters(lambda: platform.peer("trainer")),
        device=config.device,
        precision=config.precision,
        draw_seed=lambda: secrets.randbits(SEED_BITS),
        reading=Threads("read-model", limit=MAX_READERS),
    )


def build(platform: Platform) -> GeneratorService:
    """The service on this platform."""
    return GeneratorService(platform)
