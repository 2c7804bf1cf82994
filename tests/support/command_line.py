"""The command line of the client against small servers of all services."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from blob_server import BlobServer
from import_server import ImportServer
from model_servers import GenerationServer, RunServer
from serving import serving
from sfumato_client.cli.main import main

PICTURE = b"\x89PNG picture"


@dataclass(frozen=True, kw_only=True)
class Services:
    """All services on one port."""

    port: int
    imports: ImportServer
    blobs: BlobServer
    runs: RunServer
    generations: GenerationServer

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@asynccontextmanager
async def all_services() -> AsyncIterator[Services]:
    """Serves an import, a run and a generation of one image, `PICTURE`."""
    blobs = BlobServer()
    imports = ImportServer()
    runs = RunServer()
    generations = GenerationServer(blobs.store(PICTURE))
    async with serving(imports=imports, blobs=blobs, runs=runs, generations=generations) as port:
        yield Services(port=port, imports=imports, blobs=blobs, runs=runs, generations=generations)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json_lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.out.splitlines()]


class CommandLine:
    """Runs commands in a thread, since each brings an event loop of its own."""

    def __init__(self, address: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._address = address
        self._capsys = capsys

    async def __call__(self, *words: str) -> Answer:
        arguments = ["--address", self._address, "--retry-seconds", "0.1", *words]
        code = await asyncio.to_thread(main, arguments)
        captured = self._capsys.readouterr()
        return Answer(code=code, out=captured.out, err=captured.err)
