"""A real server with its real worker process and tiny models, shared by the tests of a module."""

import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from sqlalchemy import select

from sfumato.generator.v1 import generator_pb2
from sfumato_chassis.clock import SystemClock
from sfumato_chassis.config import load_config
from sfumato_chassis.failpoints import unarmed
from sfumato_chassis.identifiers import random_name
from sfumato_chassis.metrics import Metrics
from sfumato_chassis.platform import Platform, open_platform
from sfumato_chassis.schema import CHASSIS_SCHEMA, prepare_database
from sfumato_chassis.serve import all_sections
from sfumato_chassis.server import Server
from sfumato_chassis.tables import workers
from sfumato_client import Addresses, Client, Connection, Cursor, Event, Finished, RetryPolicy
from sfumato_diffusion.families.registry import build_tiny
from sfumato_generator import app

FAMILIES = ("z-image", "flux.1")


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory) -> Path:
    """A folder with a tiny model of each family."""
    root = tmp_path_factory.mktemp("tiny-models")
    for family in FAMILIES:
        build_tiny(family, root / family)
    return root


class Studio:
    """The generator service in this process, and a client of it."""

    def __init__(self, models: Path, data_dir: Path, settings: dict[str, Any]) -> None:
        self._overrides = {
            "server.port": 0,
            "storage.data_dir": data_dir,
            "workers.threads": 1,
            "generator.model_roots": (models,),
            "generator.max_resident_models": 2,
            **settings,
        }
        self.platform: Platform
        self.client: Client
        self._stopped = False

    async def __aenter__(self) -> "Studio":
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> "Studio":
        config = load_config(all_sections(), file=None, environment={}, overrides=self._overrides)
        self.platform = open_platform(
            config, clock=SystemClock(), new_name=random_name, failpoint=unarmed
        )
        await prepare_database(self.platform.database, [CHASSIS_SCHEMA, app.SCHEMA])
        self._server = Server(self.platform, [app.build(self.platform)], metrics=Metrics())
        self.connect(await self._server.start())
        return self

    def connect(self, address: str) -> None:
        """Makes the client, of this server or of one in another process."""
        self.client = Client(
            Connection(addresses=Addresses.all_at(address)), policy=RetryPolicy(budget_seconds=10)
        )

    async def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        await self.client.close()
        await self._server.stop()
        self.platform.database.close()

    def request(self, family: str = "z-image", **fields: Any):
        """A request for a small picture; ``fields`` are of the configuration or of the request."""
        configuration = {
            "model": {"directory": {"path": family}},
            "prompt": "a red fox in the snow",
            "width": 64,
            "height": 64,
            "steps": 2,
            "text_to_image": {},
        }
        own = generator_pb2.CreateGenerationRequest.DESCRIPTOR.fields_by_name
        outside = {name: value for name, value in fields.items() if name in own}
        inside = {name: value for name, value in fields.items() if name not in own}
        message = {
            "request_id": str(uuid.uuid4()),
            **outside,
            "configuration": {**configuration, **inside},
        }
        return json_format.ParseDict(message, generator_pb2.CreateGenerationRequest())

    async def create(self, family: str = "z-image", **fields: Any):
        """Asks for pictures; answers the queued generation."""
        request = self.request(family, **fields)
        return (await self.client.generator.create_generation(request)).generation

    async def make(self, family: str = "z-image", **fields: Any):
        """Asks for pictures and waits for the end."""
        generation = await self.create(family, **fields)
        return await self.ended(generation.name)

    async def ended(self, name: str):
        return await self.client.generator.wait_generation(name, timeout_seconds=60)

    async def events(self, name: str) -> Sequence[Any]:
        """The whole log of a generation, to its end."""
        items = self.client.generator.watch_generation(name, cursor=Cursor(replay=True))
        return [item.event async for item in items if isinstance(item, Event)]

    async def until(self, name: str, happened: Callable[[Any], bool]):
        """Follows a generation to the first event of which ``happened`` is true."""
        items = self.client.generator.watch_generation(name, cursor=Cursor(replay=True))
        async for item in items:
            if isinstance(item, Event) and happened(item.event):
                await items.aclose()
                return item.event
            assert not isinstance(item, Finished), item.resource.status
        raise AssertionError("the watch ended")

    async def picture(self, image) -> bytes:
        """An image's file."""
        chunks = [chunk async for chunk in self.client.blobs.read(image.file.digest)]
        return b"".join(chunks)

    async def worker_pid(self) -> int:
        """The process that makes pictures."""
        return await self.platform.database.read(
            lambda connection: connection.execute(select(workers.c.pid)).scalar_one()
        )


@pytest.fixture(scope="session")
def studio_of(tiny_models, tmp_path_factory) -> Callable[..., Studio]:
    """Makes studios, each on a data folder of its own unless one is given."""
    os.environ["HF_HUB_OFFLINE"] = "1"

    def make(*, data_dir: Path | None = None, **settings: Any) -> Studio:
        dotted = {name.replace("__", "."): value for name, value in settings.items()}
        return Studio(tiny_models, data_dir or tmp_path_factory.mktemp("data"), dotted)

    return make


@pytest.fixture
def hub_snapshot(tiny_models, tmp_path, monkeypatch) -> Callable[[str, str], str]:
    """Lays a tiny model into a Hub cache of the test's own; answers its commit."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))

    def lay(repository: str, model: str) -> str:
        folder = tmp_path / f"models--{repository.replace('/', '--')}"
        commit = hashlib.sha1(repository.encode()).hexdigest()
        shutil.copytree(tiny_models / model, folder / "snapshots" / commit)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(commit)
        return commit

    return lay
