"""SIGKILL at every step of an import, into a new dataset and into one that holds something."""

import asyncio
import os
import random
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from datasets_server import Stubs, finished, import_request, imported, opened, server_process
from failpoint_places import all_places
from pictures import picture, write_pictures
from sfumato.blobs.v1 import blobs_pb2
from sfumato.datasets.v1 import datasets_pb2 as pb
from sfumato.datasets.v1 import imports_pb2, versions_pb2
from sfumato.job.v1 import job_pb2
from sfumato_chassis.blobs import STAGING, digest_of
from sfumato_chassis.clock import ManualClock, SystemClock
from sfumato_chassis.failpoints import VARIABLE

NUM_PUTS = 6
"""Of an import of one image: previews, image, manifest, statistics, duplicates, block."""
NUM_RANDOM = 10
LATEST_KILL_SECONDS = 0.6
OTHERS = ("edit.",)
"""Places that an import does not pass."""


def kills() -> list[str]:
    """Every passage of every place, as the variable names it."""
    passed = [place for place in all_places() if not place.startswith(OTHERS)]
    return [
        f"{place}=kill@{passage}"
        for place in passed
        for passage in range(1, NUM_PUTS + 1 if place.startswith("blob.") else 2)
    ]


async def contents(stubs: Stubs) -> dict[str, bytes] | None:
    """Names and bytes in the latest version, checked against its manifest; None without dataset."""
    listed = await stubs.datasets.ListDatasets(pb.ListDatasetsRequest())
    if not listed.datasets:
        return None
    request = pb.StreamSamplesRequest(version=versions_pb2.VersionRef(dataset="cats"))
    found = {}
    async for message in stubs.datasets.StreamSamples(request):
        if message.HasField("sample"):
            sample = message.sample
            read = blobs_pb2.ReadBlobRequest(digest=sample.image.digest)
            data = b"".join([part.chunk async for part in stubs.blobs.ReadBlob(read)])
            assert digest_of(data) == sample.image.digest
            assert len(data) == sample.image.size_bytes
            found[sample.file_name] = data
    assert found, "no dataset is empty"
    return found


def expected(*indices: int) -> dict[str, bytes]:
    return {f"picture_{index:04d}.png": picture(index) for index in indices}


async def prepared(tmp_path: Path, into_new: bool) -> dict[str, bytes] | None:
    """Folders to import from and what the dataset holds before."""
    root = tmp_path / "root"
    write_pictures(root / "first", 2)
    write_pictures(root / "second", 1, first=2)
    if into_new:
        return None
    async with server_process(tmp_path / "data", roots=(root,)) as (_, stubs):
        await imported(stubs, "first")
        return await contents(stubs)


async def check_after(tmp_path: Path, request: Any, old: dict[str, bytes] | None) -> None:
    """Restarts; the old version or the new one, then the new one, and nothing left behind."""
    new = expected(*([] if old is None else [0, 1]), 2)
    async with server_process(tmp_path / "data", roots=(tmp_path / "root",)) as (_, stubs):
        assert await contents(stubs) in (old, new)
        again = await stubs.datasets.CreateImport(request)
        end = await finished(stubs, again.import_job.name)
        assert end.status.state == job_pb2.JOB_STATE_SUCCEEDED
        assert end.version.number == (1 if old is None else 2)
        assert await contents(stubs) == new
    await check_nothing_left(tmp_path / "data", new)


async def check_nothing_left(data_dir: Path, new: dict[str, bytes]) -> None:
    """A day later nothing is staged, and what the version holds is there."""
    clock = ManualClock(SystemClock().now() + timedelta(hours=25))
    async with opened(data_dir, clock=clock) as platform:
        await platform.blobs.collect_unreferenced()
        staging = platform.blobs.folder.root / STAGING
        assert not staging.exists() or os.listdir(staging) == []
        assert all(platform.blobs.folder.holds(digest_of(data)) for data in new.values())


def add_request() -> Any:
    return import_request("second", mode=imports_pb2.IMPORT_MODE_ADD)


@pytest.mark.slow
@pytest.mark.parametrize("into_new", [True, False], ids=["new", "add"])
@pytest.mark.parametrize("kill", kills())
async def test_old_or_new_after_a_kill_at_every_step(
    tmp_path: Path, kill: str, into_new: bool
) -> None:
    old = await prepared(tmp_path, into_new)
    request, armed = add_request(), {VARIABLE: kill}
    settings = {"roots": (tmp_path / "root",), "environment": armed}
    async with server_process(tmp_path / "data", **settings) as (server, stubs):
        # Its answer is lost where the kill comes within the call.
        with suppress(grpc.aio.AioRpcError):
            await stubs.datasets.CreateImport(request)
        assert await server.ended() == -9
    await check_after(tmp_path, request, old)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(NUM_RANDOM))
async def test_old_or_new_after_a_kill_at_any_time(tmp_path: Path, seed: int) -> None:
    seconds = random.Random(seed).uniform(0.0, LATEST_KILL_SECONDS)
    old = await prepared(tmp_path, into_new=False)
    request = add_request()
    async with server_process(tmp_path / "data", roots=(tmp_path / "root",)) as (server, stubs):
        await stubs.datasets.CreateImport(request)
        # The moment of the kill is what is tried here; nothing is awaited.
        await asyncio.sleep(seconds)
        server.kill()
    await check_after(tmp_path, request, old)
