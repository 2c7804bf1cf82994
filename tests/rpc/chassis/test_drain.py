"""Steps of a stop: one that hangs does not keep the others away."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import grpc

from sfumato_chassis.clock import SystemClock
from sfumato_chassis.config import load_config
from sfumato_chassis.failpoints import unarmed
from sfumato_chassis.identifiers import random_name
from sfumato_chassis.metrics import Metrics
from sfumato_chassis.platform import DrainLimits, open_platform
from sfumato_chassis.schema import CHASSIS_SCHEMA, prepare_database
from sfumato_chassis.serve import all_sections
from sfumato_chassis.server import Server

DRAIN_SECONDS = 1.0


class RecordingService:
    """Notes what it is told; its drain may hang."""

    device = "cpu"

    def __init__(self, name: str, told: list[str], *, hangs: bool) -> None:
        self.proto_name = name
        self._told = told
        self._hangs = hangs

    def mount(self, server: grpc.aio.Server) -> None:
        assert server is not None

    async def start(self) -> None:
        self._told.append(f"{self.proto_name} start")

    async def maintain(self) -> None:
        await asyncio.sleep(0)

    async def drain(self) -> None:
        if self._hangs:
            await asyncio.Event().wait()
        self._told.append(f"{self.proto_name} drain")

    async def stop(self) -> None:
        self._told.append(f"{self.proto_name} stop")


async def test_a_drain_that_hangs_is_given_up_and_every_later_step_is_done(tmp_path: Path) -> None:
    overrides = {
        "storage.data_dir": tmp_path,
        "server.port": 0,
        "server.drain_seconds": DRAIN_SECONDS,
    }
    config = load_config(all_sections(), file=None, environment={}, overrides=overrides)
    platform = open_platform(config, clock=SystemClock(), new_name=random_name, failpoint=unarmed)
    await prepare_database(platform.database, [CHASSIS_SCHEMA])
    told: list[str] = []
    services = [
        RecordingService("first", told, hangs=True),
        RecordingService("second", told, hangs=False),
    ]
    server = Server(platform, services, metrics=Metrics())
    await server.start()
    began = time.monotonic()
    await server.stop()
    took = time.monotonic() - began
    platform.database.close()

    assert told[2:] == ["second drain", "first stop", "second stop"]
    assert took < DRAIN_SECONDS


def test_the_parts_of_a_drain_fit_into_it() -> None:
    limits = DrainLimits.of(25.0)
    assert limits.rest_seconds < limits.service_seconds
    assert limits.service_seconds + limits.stream_seconds < 25.0
