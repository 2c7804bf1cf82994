"""The servers that benchmarks measure, each in a process of its own.

`datasets_server` starts the service as its users do. The two that `unary_and_watch` compares are here too:
``python -m benchmarks.servers ours DATA_DIR`` serves the datasets service with one ended import of a
long log and several whose logs are yet to grow. ``... bare FILE`` serves the messages that were recorded
in FILE, with nothing around them. Both print their address; ours also prints the names of its imports.
Each line on standard input names an import whose log then grows, durably, while it is watched.
"""

import asyncio
import gc
import os
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from PIL import Image

from sfumato.datasets.v1 import datasets_pb2_grpc, imports_pb2
from sfumato_chassis.clock import SystemClock
from sfumato_chassis.config import CHASSIS_SECTIONS, load_config
from sfumato_chassis.failpoints import Failpoints, parse
from sfumato_chassis.identifiers import random_name
from sfumato_chassis.job_store import JobStore
from sfumato_chassis.jobs import NewEvent
from sfumato_chassis.logging import configure_logging
from sfumato_chassis.metrics import Metrics
from sfumato_chassis.platform import open_platform
from sfumato_chassis.schema import CHASSIS_SCHEMA, prepare_database
from sfumato_chassis.server import Server
from sfumato_datasets import app
from sfumato_datasets.config import DatasetsConfig

NUM_EVENTS = 5_000
EVENTS_AN_APPEND = 250
NUM_GROWING = 5
GROWING = "growing"
"""The bare server's name of a log that grows."""


@contextmanager
def datasets_server(data_dir: Path, root: Path) -> Iterator[str]:
    """The datasets service, which may import what is under ``root``; its address."""
    # Nobody's own settings are measured; and a server refuses a variable of its prefix that is none.
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("SFUMATO_")
    }
    settings = {"SFUMATO_DATASETS_IMPORT_ROOTS": str(root), "SFUMATO_LOG_LEVEL": "warning"}
    with subprocess.Popen(
        [
            sys.executable,
            *("-m", "sfumato_datasets", "--port", "0", "--data-dir", str(data_dir)),
        ],
        cwd=data_dir.parent,
        env={**inherited, **settings},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            if not line:
                raise RuntimeError("the server did not start")
            yield line.rstrip().rpartition(" ")[2]
        finally:
            process.terminate()


async def serve_ours(data_dir: Path) -> None:
    configure_logging(level="warning", json_lines=False)
    folder, gate = data_dir / "root" / "folder", data_dir / "gate"
    folder.mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(folder / "picture.png")
    # One import is held at work, so that the one whose log is watched waits for its turn.
    holding = Failpoints(parse(f"blob.staged=hold:{gate}"))
    config = load_config(
        {**CHASSIS_SECTIONS, "datasets": DatasetsConfig},
        file=None,
        environment={},
        overrides={
            "storage.data_dir": data_dir,
            "server.port": 0,
            "datasets.import_roots": (data_dir / "root",),
            "datasets.max_concurrent_imports": 1,
        },
    )
    platform = open_platform(config, clock=SystemClock(), new_name=random_name, failpoint=holding)
    await prepare_database(platform.database, [CHASSIS_SCHEMA, app.SCHEMA])
    service = app.build(platform)
    server = Server(platform, [service], metrics=Metrics())
    address = await server.start()
    # As `sfumato serve` does once it is ready.
    gc.freeze()
    jobs = service._engine.jobs
    datasets = ["held", "ended", *(f"growing-{index}" for index in range(NUM_GROWING))]
    _, ended, *growing = [await create(address, name) for name in datasets]
    await grow(jobs, ended)
    print(address, ended, *growing, flush=True)
    while name := (await asyncio.to_thread(sys.stdin.readline)).strip():
        await grow(jobs, name)
    gate.touch()
    await server.stop()
    platform.database.close()


async def create(address: str, dataset: str) -> str:
    """A queued import."""
    async with grpc.aio.insecure_channel(address) as channel:
        created = await datasets_pb2_grpc.DatasetsServiceStub(channel).CreateImport(
            imports_pb2.CreateImportRequest(
                request_id=str(uuid.uuid4()),
                dataset=dataset,
                folder=imports_pb2.FolderSource(path="folder"),
            )
        )
    return created.import_job.name


async def grow(jobs: JobStore, name: str) -> None:
    """Appends a long log and ends the job."""
    for first in range(0, NUM_EVENTS, EVENTS_AN_APPEND):
        data = [
            {"num_files_done": index, "num_files": NUM_EVENTS, "num_bytes_done": index << 20}
            for index in range(first, first + EVENTS_AN_APPEND)
        ]
        await jobs.append(name, [NewEvent(kind="progress", data=each) for each in data])
    await jobs.append(name, [NewEvent(kind="cancelled")])


class Recorded(datasets_pb2_grpc.DatasetsServiceServicer):
    """Answers what was recorded; of a growing log, what was written so far."""

    def __init__(self, messages: list[imports_pb2.WatchImportResponse], database: Path) -> None:
        self._messages = messages
        self._answer = imports_pb2.GetImportResponse(import_job=messages[-1].finished)
        self._database = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.execute("CREATE TABLE log (sequence INTEGER PRIMARY KEY, message BLOB)")
        self._growing: asyncio.Queue[list[imports_pb2.WatchImportResponse]] = asyncio.Queue()

    async def GetImport(
        self, request: imports_pb2.GetImportRequest, context: Any
    ) -> imports_pb2.GetImportResponse:
        return self._answer

    async def WatchImport(
        self, request: imports_pb2.WatchImportRequest, context: Any
    ) -> AsyncIterator[imports_pb2.WatchImportResponse]:
        if request.name != GROWING:
            for message in self._messages:
                yield message
            return
        yield self._messages[0]
        left = len(self._messages) - 1
        while left:
            batch = await self._growing.get()
            left -= len(batch)
            for message in batch:
                yield message

    async def grow(self) -> None:
        """Writes the recorded log, batch by batch, and hands each over once it is on the disk."""
        for first in range(1, len(self._messages), EVENTS_AN_APPEND):
            batch = self._messages[first : first + EVENTS_AN_APPEND]
            await asyncio.to_thread(self._append, [(each.SerializeToString(),) for each in batch])
            self._growing.put_nowait(batch)

    def _append(self, rows: list[tuple[bytes]]) -> None:
        self._database.execute("BEGIN IMMEDIATE")
        self._database.executemany("INSERT INTO log (message) VALUES (?)", rows)
        self._database.execute("COMMIT")


async def serve_bare(recording: Path) -> None:
    data, messages = recording.read_bytes(), []
    while data:
        size = int.from_bytes(data[:4], "big")
        messages.append(imports_pb2.WatchImportResponse.FromString(data[4 : 4 + size]))
        data = data[4 + size :]
    server = grpc.aio.server()
    servicer = Recorded(messages, recording.with_suffix(".sqlite3"))
    datasets_pb2_grpc.add_DatasetsServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    while (await asyncio.to_thread(sys.stdin.readline)).strip():
        await servicer.grow()
    await server.stop(None)


if __name__ == "__main__":
    serve = {"ours": serve_ours, "bare": serve_bare}[sys.argv[1]]
    asyncio.run(serve(Path(sys.argv[2])))
