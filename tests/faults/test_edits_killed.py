"""SIGKILL at every step of an edit, and around deletions: what is there is old or new, never a mix."""

import asyncio
import os
import random
import uuid
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from datasets_server import Stubs, imported, opened, running, server_process
from failpoint_places import all_places
from pictures import write_pictures
from refusals import refusal_of
from sfumato.blobs.v1 import blobs_pb2
from sfumato.datasets.v1 import datasets_pb2 as pb
from sfumato.datasets.v1 import editing_pb2, selection_pb2, statistics_pb2, versions_pb2
from sfumato_chassis.blobs import STAGING, digest_of
from sfumato_chassis.clock import ManualClock, SystemClock
from sfumato_chassis.failpoints import VARIABLE

NUM_PUTS = 4
"""Of an edit of a small dataset: index, statistics, duplicates, block."""
NUM_RANDOM = 6
LATEST_KILL_SECONDS = 0.04
FIRST, SECOND, THIRD = (f"picture_{index:04d}.png" for index in range(3))


@dataclass(frozen=True)
class Contents:
    """A version: caption, tags and image of each sample, and how often its statistics have a tag."""

    samples: dict[str, tuple[str, tuple[str, ...], str]]
    tags: dict[str, int]


Versions = dict[int, Contents]


def edit_places() -> list[str]:
    """The places that only an edit passes, as the variable names them."""
    places = [place for place in all_places() if place.startswith("edit.")]
    assert places
    return [f"{place}=kill" for place in places]


def blob_places() -> list[str]:
    places = [place for place in all_places() if place.startswith("blob.")]
    assert places
    return [f"{place}=kill@{passage}" for place in places for passage in range(1, NUM_PUTS + 1)]


def named(*names: str) -> selection_pb2.SampleSelection:
    return selection_pb2.SampleSelection(names=selection_pb2.SampleNames(file_names=names))


def edit_request(etag: str) -> pb.EditDatasetRequest:
    """A caption, tags and a removal in one edit."""
    caption = editing_pb2.SetCaption(caption="another")
    edits = [
        editing_pb2.Edit(samples=named(FIRST), set_caption=caption),
        editing_pb2.Edit(samples=named(SECOND), set_tags=editing_pb2.TagList(tags=["indoor"])),
        editing_pb2.Edit(samples=named(THIRD), remove=editing_pb2.RemoveSamples()),
    ]
    return pb.EditDatasetRequest(
        request_id=str(uuid.uuid4()), dataset="cats", etag=etag, edits=edits
    )


def edited(old: Contents) -> Contents:
    """What `edit_request` makes of it."""
    (_, tags, first), (caption, _, second) = old.samples[FIRST], old.samples[SECOND]
    samples = {FIRST: ("another", tags, first), SECOND: (caption, ("indoor",), second)}
    return Contents(samples=samples, tags={"indoor": 1})


async def dataset(stubs: Stubs) -> pb.Dataset:
    return (await stubs.datasets.GetDataset(pb.GetDatasetRequest(name="cats"))).dataset


async def contents(stubs: Stubs, number: int) -> Contents:
    """A version, read whole: every image's bytes are checked against their digest."""
    version = versions_pb2.VersionRef(dataset="cats", number=number)
    samples = {}
    async for message in stubs.datasets.StreamSamples(pb.StreamSamplesRequest(version=version)):
        if message.HasField("sample"):
            sample = message.sample
            read = blobs_pb2.ReadBlobRequest(digest=sample.image.digest)
            data = b"".join([part.chunk async for part in stubs.blobs.ReadBlob(read)])
            assert digest_of(data) == sample.image.digest
            samples[sample.file_name] = (sample.caption, tuple(sample.tags), digest_of(data))
    answer = await stubs.datasets.GetVersionStatistics(
        statistics_pb2.GetVersionStatisticsRequest(version=version)
    )
    assert answer.statistics.width.count == len(samples)
    await stubs.datasets.ListDuplicates(statistics_pb2.ListDuplicatesRequest(version=version))
    return Contents(
        samples=samples, tags={each.tag: each.num_samples for each in answer.statistics.tags}
    )


async def all_versions(stubs: Stubs) -> Versions:
    """Every version that there is; none where there is no dataset."""
    listed = await stubs.datasets.ListDatasets(pb.ListDatasetsRequest())
    if not listed.datasets:
        return {}
    answer = await stubs.datasets.ListDatasetVersions(pb.ListDatasetVersionsRequest(dataset="cats"))
    found = {each.number: await contents(stubs, each.number) for each in answer.versions}
    assert (await dataset(stubs)).latest_version.number == max(found)
    return found


async def prepared(tmp_path: Path, *, num_edits: int) -> tuple[Versions, str]:
    """A dataset's versions before the kill, and its etag."""
    root = tmp_path / "root"
    write_pictures(root / "cats", 3)
    overrides = {"datasets.import_roots": (root,)}
    async with running(tmp_path / "data", overrides=overrides) as server:
        await imported(server.stubs, "cats")
        for _ in range(num_edits):
            etag = (await dataset(server.stubs)).etag
            await server.stubs.datasets.EditDataset(edit_request(etag))
        return await all_versions(server.stubs), (await dataset(server.stubs)).etag


async def check_nothing_left(data_dir: Path, kept: Versions) -> None:
    """A day later nothing is staged, and the images of every version are there, and no other."""
    clock = ManualClock(SystemClock().now() + timedelta(hours=25))
    async with opened(data_dir, clock=clock) as platform:
        await platform.blobs.collect_unreferenced()
        folder = platform.blobs.folder
        staging = folder.root / STAGING
        assert not staging.exists() or os.listdir(staging) == []
        images = {image for version in kept.values() for _, _, image in version.samples.values()}
        assert all(folder.holds(image) for image in images)
        if not kept:
            assert list((folder.root / "sha256").glob("*/*")) == []


async def check_edit(tmp_path: Path, kill: str) -> None:
    """Kills an edit; then the dataset is as before or edited, and the same edit again ends it."""
    data_dir = tmp_path / "data"
    before, etag = await prepared(tmp_path, num_edits=0)
    after = {**before, 2: edited(before[1])}
    request = edit_request(etag)
    async with server_process(data_dir, environment={VARIABLE: kill}) as (server, stubs):
        refusal = await refusal_of(stubs.datasets.EditDataset(request))
        assert refusal.code is grpc.StatusCode.UNAVAILABLE
        assert await server.ended() == -9
    async with server_process(data_dir) as (_, stubs):
        done = kill.startswith("edit.published")
        assert await all_versions(stubs) == (after if done else before)
        again = await stubs.datasets.EditDataset(request)
        assert (again.version.number, again.num_samples_changed) == (2, 3)
        assert again.deduplicated is done
        assert await all_versions(stubs) == after
        assert (await stubs.datasets.EditDataset(request)).deduplicated
    await check_nothing_left(data_dir, after)


@pytest.mark.parametrize("kill", edit_places())
async def test_an_edit_that_is_killed_is_done_or_was_not(tmp_path: Path, kill: str) -> None:
    await check_edit(tmp_path, kill)


@pytest.mark.slow
@pytest.mark.parametrize("kill", blob_places())
async def test_an_edit_that_is_killed_while_it_stores_was_not(tmp_path: Path, kill: str) -> None:
    await check_edit(tmp_path, kill)


@pytest.mark.parametrize("kill", edit_places())
async def test_after_a_kill_another_edit_takes_the_etag_there_is(tmp_path: Path, kill: str) -> None:
    data_dir = tmp_path / "data"
    before, etag = await prepared(tmp_path, num_edits=0)
    async with server_process(data_dir, environment={VARIABLE: kill}) as (server, stubs):
        await refusal_of(stubs.datasets.EditDataset(edit_request(etag)))
        assert await server.ended() == -9
    async with server_process(data_dir) as (_, stubs):
        found = await dataset(stubs)
        done = kill.startswith("edit.published")
        assert (found.etag != etag) is done
        caption = editing_pb2.SetCaption(caption="later")
        request = pb.EditDatasetRequest(
            request_id=str(uuid.uuid4()),
            dataset="cats",
            edits=[editing_pb2.Edit(samples=named(SECOND), set_caption=caption)],
            etag=found.etag,
        )
        answer = await stubs.datasets.EditDataset(request)
        assert answer.version.number == found.latest_version.number + 1 == (3 if done else 2)
        versions = await all_versions(stubs)
        last = versions.pop(answer.version.number)
        base = versions[found.latest_version.number]
        assert versions == ({1: before[1], 2: edited(before[1])} if done else before)
        _, tags, image = base.samples[SECOND]
        assert last.samples == {**base.samples, SECOND: ("later", tags, image)}


def deletion(stubs: Stubs, whole: bool, etag: str) -> Any:
    """The call that removes the dataset, or its first version."""
    if whole:
        return stubs.datasets.DeleteDataset(pb.DeleteDatasetRequest(name="cats", etag=etag))
    version = versions_pb2.VersionRef(dataset="cats", number=1)
    return stubs.datasets.DeleteDatasetVersion(
        versions_pb2.DeleteDatasetVersionRequest(version=version)
    )


async def check_deleted(data_dir: Path, stubs: Stubs, whole: bool, after: Versions) -> None:
    """It is gone, and to remove it again is told so."""
    assert await all_versions(stubs) == after
    refusal = await refusal_of(deletion(stubs, whole, ""))
    assert refusal.code is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("whole", [False, True], ids=["version", "dataset"])
async def test_a_deletion_that_was_answered_outlasts_a_kill(tmp_path: Path, whole: bool) -> None:
    data_dir = tmp_path / "data"
    before, etag = await prepared(tmp_path, num_edits=1)
    after = {} if whole else {2: before[2]}
    async with server_process(data_dir) as (server, stubs):
        await deletion(stubs, whole, etag)
        server.kill()
    async with server_process(data_dir) as (_, stubs):
        await check_deleted(data_dir, stubs, whole, after)
    await check_nothing_left(data_dir, after)


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True], ids=["version", "dataset"])
@pytest.mark.parametrize("seed", range(NUM_RANDOM))
async def test_a_deletion_that_is_killed_is_done_or_was_not(
    tmp_path: Path, seed: int, whole: bool
) -> None:
    data_dir = tmp_path / "data"
    seconds = random.Random(seed).uniform(0.0, LATEST_KILL_SECONDS)
    before, etag = await prepared(tmp_path, num_edits=1)
    after = {} if whole else {2: before[2]}
    async with server_process(data_dir) as (server, stubs):
        # So that the call itself is killed, not the connection's beginning.
        await dataset(stubs)
        call = deletion(stubs, whole, etag)
        sent = asyncio.ensure_future(call)
        # The moment of the kill is what is tried here; nothing is awaited.
        await asyncio.sleep(seconds)
        server.kill()
        with suppress(grpc.aio.AioRpcError):
            await sent
    async with server_process(data_dir) as (_, stubs):
        found = await all_versions(stubs)
        assert found in (before, after)
        if found == before:
            await deletion(stubs, whole, etag)
        await check_deleted(data_dir, stubs, whole, after)
    await check_nothing_left(data_dir, after)
