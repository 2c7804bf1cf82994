"""A server that is killed while it fetches from the Hub."""

import asyncio
import hashlib
import threading
from pathlib import Path
from typing import Any

import pytest

from datasets_server import Stubs, finished, server_process
from hub_imports import CATS, asking, keep_hub_alone, samples
from hub_server import hub_server
from pictures import picture
from sfumato.datasets.v1 import imports_pb2
from sfumato.job.v1 import job_pb2


def large_picture() -> bytes:
    """A PNG with a mebibyte of nothing behind its end."""
    return picture(1) + bytes(1 << 20)


@pytest.mark.timeout(120)
async def test_it_goes_on_at_its_commit_and_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_hub_alone(monkeypatch, tmp_path / "hf")
    content, held = large_picture(), 300_000
    asked, over = threading.Event(), threading.Event()
    partial = Path(f"sha256-{hashlib.sha256(content).hexdigest()}.part")

    def stall(handler: Any) -> None:
        handler.give_bytes(content, break_off_after=held)
        handler.wfile.flush()
        asked.set()
        over.wait(60)

    with hub_server() as hub:
        sha = hub.dataset(CATS).commit({"a.png": content, "a.txt": b"a cat"})
        settings = {"SFUMATO_DATASETS_HUB_ENDPOINT": hub.url}
        data = tmp_path / "data"
        hub.fault("/cdn/", stall)
        async with server_process(data, environment=settings) as (server, stubs):
            created = await stubs.datasets.CreateImport(asking())
            name = created.import_job.name
            part = data / "staging" / name / partial
            assert await asyncio.to_thread(asked.wait, 30)
            await fetched(stubs, name, held)
            assert part.stat().st_size == held
            server.kill()
        over.set()
        hub.dataset(CATS).commit({"other.png": picture(2)})
        async with server_process(data, environment=settings) as (_, stubs):
            end = await finished(stubs, name)
            assert end.status.state == job_pb2.JOB_STATE_SUCCEEDED, end.status.error
            assert (end.hub.revision, end.version.number) == (sha, 1)
            assert await samples(stubs) == {"a.png": "a cat"}
        ranges = [headers.get("Range") for path, headers in hub.requests if "/cdn/" in path]
        assert ranges == [None, f"bytes={held}-"]
        assert not part.parent.exists()


async def fetched(stubs: Stubs, name: str, num_bytes: int) -> None:
    """Returns once the import has said that so many bytes are here, and thus its commit before."""
    request = imports_pb2.WatchImportRequest(name=name, replay=True)
    async for message in stubs.datasets.WatchImport(request):
        if message.event.progress.num_bytes_fetched >= num_bytes:
            return
