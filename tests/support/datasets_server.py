"""The real datasets service on a free port, in this process or in one of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import google_crc32c
import grpc

from sfumato.blobs.v1 import blobs_pb2, blobs_pb2_grpc
from sfumato.datasets.v1 import datasets_pb2_grpc, imports_pb2
from sfumato_chassis.blobs import digest_of
from sfumato_chassis.clock import Clock, SystemClock
from sfumato_chassis.config import CHASSIS_SECTIONS, load_config
from sfumato_chassis.failpoints import Failpoint, unarmed
from sfumato_chassis.identifiers import random_name
from sfumato_chassis.metrics import Metrics
from sfumato_chassis.platform import Platform, open_platform
from sfumato_chassis.schema import CHASSIS_SCHEMA, prepare_database
from sfumato_chassis.server import Server
from sfumato_datasets import app
from sfumato_datasets.config import DatasetsConfig


class Stubs:
    """Stubs of what the service mounts, on one channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.datasets = datasets_pb2_grpc.DatasetsServiceStub(channel)
        self.blobs = blobs_pb2_grpc.BlobServiceStub(channel)


@dataclass(frozen=True, kw_only=True)
class Running:
    """A server in this process."""

    platform: Platform
    service: app.DatasetsService
    server: Server
    metrics: Metrics
    address: str
    stubs: Stubs


@asynccontextmanager
async def opened(
    data_dir: Path,
    *,
    clock: Clock | None = None,
    failpoint: Failpoint = unarmed,
    overrides: Mapping[str, Any] | None = None,
) -> AsyncIterator[Platform]:
    """A platform with the tables of chassis and datasets service."""
    config = load_config(
        {**CHASSIS_SECTIONS, "datasets": DatasetsConfig},
        file=None,
        environment={},
        overrides={"storage.data_dir": data_dir, "server.port": 0, **(overrides or {})},
    )
    platform = open_platform(
        config, clock=clock or SystemClock(), new_name=random_name, failpoint=failpoint
    )
    await prepare_database(platform.database, [CHASSIS_SCHEMA, app.SCHEMA])
    try:
        yield platform
    finally:
        platform.database.close()


@asynccontextmanager
async def running(data_dir: Path, **settings: Any) -> AsyncIterator[Running]:
    """A server in this process; takes the arguments of `opened`."""
    async with opened(data_dir, **settings) as platform:
        service = app.build(platform)
        metrics = Metrics()
        server = Server(platform, [service], metrics=metrics)
        address = await server.start()
        try:
            async with grpc.aio.insecure_channel(address) as channel:
                yield Running(
                    platform=platform,
                    service=service,
                    server=server,
                    metrics=metrics,
                    address=address,
                    stubs=Stubs(channel),
                )
        finally:
            if not platform.draining.is_set():
                await server.stop()


class ServerProcess:
    """A server in a process of its own."""

    def __init__(
        self,
        data_dir: Path,
        *,
        roots: tuple[Path, ...] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
        stderr: int = subprocess.PIPE,
    ) -> None:
        settings = {
            "SFUMATO_DATASETS_IMPORT_ROOTS": ",".join(map(str, roots)),
            "SFUMATO_LOG_LEVEL": "warning",
        }
        self.process = subprocess.Popen(
            [
                sys.executable,
                *("-m", "sfumato_datasets", "--port", "0", "--data-dir", str(data_dir)),
            ],
            env={**os.environ, **settings, **environment},
            cwd=data_dir.parent,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    def wait_ready(self) -> str:
        """The address, once it listens; raises what it wrote when it ended instead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(self.process.communicate()[1])
        self.address = line.rstrip().rpartition(" ")[2]
        return self.address

    async def ready(self) -> str:
        """Like `wait_ready`, beside other tasks."""
        return await asyncio.to_thread(self.wait_ready)

    async def ended(self, timeout_seconds: float = 30.0) -> int:
        """The return code, once it has ended."""
        return await asyncio.to_thread(self.process.wait, timeout_seconds)

    def kill(self) -> None:
        """SIGKILL, and what it left is collected."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


@asynccontextmanager
async def server_process(
    data_dir: Path, **settings: Any
) -> AsyncIterator[tuple[ServerProcess, Stubs]]:
    """A server in a process of its own that is killed at the end if it still runs."""
    server = ServerProcess(data_dir, **settings)
    try:
        address = await server.ready()
        async with grpc.aio.insecure_channel(address) as channel:
            yield server, Stubs(channel)
    finally:
        server.kill()


def import_request(folder: str, dataset: str = "cats", **fields: Any) -> Any:
    """A CreateImport of a folder with a fresh request id."""
    fields.setdefault("request_id", str(uuid.uuid4()))
    return imports_pb2.CreateImportRequest(
        dataset=dataset, folder=imports_pb2.FolderSource(path=folder), **fields
    )


async def finished(stubs: Stubs, name: str) -> Any:
    """The import once it has ended."""
    while True:
        answer = await stubs.datasets.WaitImport(imports_pb2.WaitImportRequest(name=name))
        if answer.import_job.status.HasField("end_time"):
            return answer.import_job


async def imported(stubs: Stubs, folder: str, dataset: str = "cats", **fields: Any) -> Any:
    """Imports a folder and answers the import once it has ended."""
    created = await stubs.datasets.CreateImport(import_request(folder, dataset, **fields))
    return await finished(stubs, created.import_job.name)


async def upload(stubs: Stubs, data: bytes) -> str:
    """Uploads bytes in one chunk; answers their digest."""
    opened_upload = await stubs.blobs.CreateUpload(
        blobs_pb2.CreateUploadRequest(
            request_id=str(uuid.uuid4()), digest=digest_of(data), size_bytes=len(data)
        )
    )
    name = opened_upload.upload.name
    if not opened_upload.upload.complete:
        await stubs.blobs.WriteChunk(
            blobs_pb2.WriteChunkRequest(
                upload=name, offset=0, data=data, crc32c=google_crc32c.value(data)
            )
        )
        await stubs.blobs.CompleteUpload(blobs_pb2.CompleteUploadRequest(name=name))
    return digest_of(data)


async def watched(
    server: Running, name: str, **fields: Any
) -> list[imports_pb2.WatchImportResponse]:
    """Every message of a watch."""
    return [
        message
        async for message in server.stubs.datasets.WatchImport(
            imports_pb2.WatchImportRequest(name=name, **fields)
        )
    ]


async def begun(server: Running, name: str) -> None:
    """Returns once an attempt has begun."""
    async for message in server.stubs.datasets.WatchImport(
        imports_pb2.WatchImportRequest(name=name, replay=True)
    ):
        if message.event.HasField("started"):
            return
