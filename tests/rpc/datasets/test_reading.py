import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest

from datasets_server import Running, import_request, imported, running
from deployment import client_of
from pictures import write_pictures
from refusals import refusal_of
from sfumato.datasets.v1 import datasets_pb2 as pb
from sfumato.datasets.v1 import imports_pb2, versions_pb2
from sfumato_chassis.clock import ManualClock
from sfumato_datasets import tables

NUM_PICTURES = 7


class FrozenClock(ManualClock):
    """Stands still for records, but sleepers sleep as usual."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock(datetime.now(UTC))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_pictures(tmp_path / "root" / "cats", NUM_PICTURES)
    return tmp_path / "root"


@pytest.fixture
async def server(tmp_path: Path, root: Path, clock: FrozenClock) -> AsyncIterator[Running]:
    overrides = {"datasets.import_roots": (root,)}
    async with running(tmp_path / "data", overrides=overrides, clock=clock) as started:
        yield started


def version(dataset: str = "cats", **fields: Any) -> versions_pb2.VersionRef:
    return versions_pb2.VersionRef(dataset=dataset, **fields)


async def streamed(server: Running) -> list[pb.StreamSamplesResponse]:
    request = pb.StreamSamplesRequest(version=version())
    return [message async for message in server.stubs.datasets.StreamSamples(request)]


async def pins_of(server: Running) -> list[tuple[str, int]]:
    rows = await server.platform.database.read(
        lambda connection: connection.execute(tables.pins.select()).all()
    )
    return sorted((row.holder, row.number) for row in rows)


async def test_samples_come_in_pages_by_name(server: Running) -> None:
    end = await imported(server.stubs, "cats")
    names, token, sizes = [], "", []
    while True:
        page = await server.stubs.datasets.ListSamples(
            pb.ListSamplesRequest(version=version(), page_size=3, page_token=token)
        )
        assert page.version == end.version
        names += [sample.file_name for sample in page.samples]
        sizes.append(len(page.samples))
        token = page.next_page_token
        if not token:
            break
    assert names == [f"picture_{index:04d}.png" for index in range(NUM_PICTURES)]
    assert sizes == [3, 3, 1]


async def test_pages_of_the_client_are_of_one_version(server: Running, root: Path) -> None:
    first = await imported(server.stubs, "cats")
    async with client_of(server.address) as client:
        samples = client.datasets.list_samples("cats", page_size=1)
        names = [(await anext(samples)).file_name]
        write_pictures(root / "more", 1, first=50)
        await imported(server.stubs, "more", mode=imports_pb2.IMPORT_MODE_ADD)
        names += [sample.file_name async for sample in samples]
        pinned = [s async for s in client.datasets.list_samples("cats", version=1)]
        latest = [s async for s in client.datasets.list_samples("cats")]
    assert names == [sample.file_name for sample in pinned]
    assert (len(pinned), len(latest)) == (first.version.num_samples, len(pinned) + 1)


async def test_the_stream_holds_every_sample_once(server: Running) -> None:
    end = await imported(server.stubs, "cats")
    first, *samples = await streamed(server)
    assert first.version == end.version
    assert [message.sample.caption for message in samples] == [
        f"picture number {index}" for index in range(NUM_PICTURES)
    ]
    assert {message.sample.image.media_type for message in samples} == {"image/png"}


async def test_a_page_with_long_captions_fits_a_message(server: Running, root: Path) -> None:
    folder = write_pictures(root / "wordy", 180)
    for path in folder.glob("*.txt"):
        path.write_text("\N{CAT FACE}" * 8192)
    await imported(server.stubs, "wordy", "wordy")
    names, token = [], ""
    while True:
        page = await server.stubs.datasets.ListSamples(
            pb.ListSamplesRequest(version=version("wordy"), page_size=200, page_token=token)
        )
        names += [sample.file_name for sample in page.samples]
        token = page.next_page_token
        if not token:
            break
    assert names == [f"picture_{index:04d}.png" for index in range(180)]


async def test_datasets_are_listed_by_name_whatever_comes_in_between(server: Running) -> None:
    for name in ("b", "d", "f"):
        await imported(server.stubs, "cats", name)

    async def page(token: str) -> tuple[list[str], str]:
        answer = await server.stubs.datasets.ListDatasets(
            pb.ListDatasetsRequest(page_size=2, page_token=token)
        )
        return [dataset.name for dataset in answer.datasets], answer.next_page_token

    first, token = await page("")
    for name in ("a", "e"):
        await imported(server.stubs, "cats", name)
    second, token = await page(token)
    assert (first, second, token) == (["b", "d"], ["e", "f"], "")


async def test_tokens_of_another_list_are_refused(server: Running) -> None:
    for name in ("a", "b"):
        await imported(server.stubs, "cats", name)
    token = (
        await server.stubs.datasets.ListDatasets(pb.ListDatasetsRequest(page_size=1))
    ).next_page_token
    for call in (
        server.stubs.datasets.ListImports(imports_pb2.ListImportsRequest(page_token=token)),
        server.stubs.datasets.ListSamples(
            pb.ListSamplesRequest(version=version("a"), page_token=token)
        ),
        server.stubs.datasets.ListDatasets(pb.ListDatasetsRequest(page_token="garbage")),
    ):
        refusal = await refusal_of(call)
        assert (refusal.code, refusal.reason) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "PAGE_TOKEN_INVALID",
        )


async def test_a_negative_page_is_refused_and_a_large_one_cut(server: Running) -> None:
    refusal = await refusal_of(
        server.stubs.datasets.ListDatasets(pb.ListDatasetsRequest(page_size=-1))
    )
    assert refusal.fields.keys() == {"page_size"}
    await server.stubs.datasets.ListDatasets(pb.ListDatasetsRequest(page_size=2**31 - 1))


async def test_what_is_not_there_is_named(server: Running) -> None:
    await imported(server.stubs, "cats")
    datasets = server.stubs.datasets
    absent, second = version("absent"), version(number=2)
    for call, resource in [
        (datasets.GetDataset(pb.GetDatasetRequest(name="absent")), ("dataset", "absent")),
        (datasets.ListSamples(pb.ListSamplesRequest(version=absent)), ("dataset", "absent")),
        (
            datasets.StreamSamples(pb.StreamSamplesRequest(version=second)),
            ("dataset version", "cats version 2"),
        ),
        (
            datasets.PinVersion(pb.PinVersionRequest(version=second, holder="run-1")),
            ("dataset version", "cats version 2"),
        ),
        (datasets.GetImport(imports_pb2.GetImportRequest(name="import-1")), ("import", "import-1")),
        (
            datasets.CancelImport(imports_pb2.CancelImportRequest(name="import-1")),
            ("import", "import-1"),
        ),
        (
            datasets.DeleteImport(imports_pb2.DeleteImportRequest(name="import-1")),
            ("import", "import-1"),
        ),
        (
            datasets.WaitImport(imports_pb2.WaitImportRequest(name="import-1")),
            ("import", "import-1"),
        ),
        (
            datasets.WatchImport(imports_pb2.WatchImportRequest(name="import-1")),
            ("import", "import-1"),
        ),
    ]:
        refusal = await refusal_of(call)
        assert (refusal.code, refusal.reason) == (
            grpc.StatusCode.NOT_FOUND,
            "RESOURCE_NOT_FOUND",
        )
        assert refusal.resource == resource


@pytest.mark.parametrize("fields", [{"after_sequence": 99}, {"log_id": "log-other"}])
async def test_a_cursor_of_another_log_is_refused(server: Running, fields: Any) -> None:
    end = await imported(server.stubs, "cats")
    refusal = await refusal_of(
        server.stubs.datasets.WatchImport(imports_pb2.WatchImportRequest(name=end.name, **fields))
    )
    assert (refusal.code, refusal.reason) == (
        grpc.StatusCode.OUT_OF_RANGE,
        "EVENT_LOG_CHANGED",
    )
    assert refusal.details["log_id"] == end.status.log_id


@pytest.mark.parametrize("damage", [b"{}", None])
async def test_a_damaged_manifest_is_data_loss(server: Running, damage: bytes | None) -> None:
    end = await imported(server.stubs, "cats")
    path = server.platform.blobs.folder.path(end.version.digest)
    path.unlink()
    if damage is not None:
        path.write_bytes(damage)
    for call in (
        server.stubs.datasets.ListSamples(pb.ListSamplesRequest(version=version())),
        server.stubs.datasets.StreamSamples(pb.StreamSamplesRequest(version=version())),
    ):
        refusal = await refusal_of(call)
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.DATA_LOSS, "BLOB_CORRUPT")
    added = await imported(server.stubs, "cats", mode=imports_pb2.IMPORT_MODE_ADD)
    assert added.status.error.message == "the manifest of cats version 1 is damaged"


async def test_pins_last_as_long_as_their_lease(server: Running, clock: FrozenClock) -> None:
    end = await imported(server.stubs, "cats")
    request = pb.PinVersionRequest(version=version(), holder="run-1")
    request.lease.seconds = 60
    pinned = await server.stubs.datasets.PinVersion(request)
    assert pinned.version == end.version
    expires = pinned.expire_time.ToDatetime(tzinfo=UTC)
    assert abs((expires - clock.now()).total_seconds() - 60) < 1e-3
    clock.advance(30)
    renewed = await server.stubs.datasets.PinVersion(request)
    assert renewed.expire_time.seconds - pinned.expire_time.seconds == 30
    assert await pins_of(server) == [("run-1", 1)]
    clock.advance(60)
    request.holder = "run-2"
    await server.stubs.datasets.PinVersion(request)
    assert await pins_of(server) == [("run-2", 1)]
    for _ in range(2):
        await server.stubs.datasets.UnpinVersion(
            pb.UnpinVersionRequest(version=version(number=1), holder="run-2")
        )
    assert await pins_of(server) == []


@pytest.mark.parametrize("seconds", [0, -1, 86_401, 2**62])
async def test_a_lease_that_cannot_be_is_refused(server: Running, seconds: int) -> None:
    await imported(server.stubs, "cats")
    request = pb.PinVersionRequest(version=version(), holder="run-1")
    request.lease.seconds = seconds
    refusal = await refusal_of(server.stubs.datasets.PinVersion(request))
    assert refusal.fields.keys() == {"lease"}


async def test_unpinning_needs_the_number(server: Running) -> None:
    refusal = await refusal_of(
        server.stubs.datasets.UnpinVersion(
            pb.UnpinVersionRequest(version=version(), holder="run-1")
        )
    )
    assert refusal.fields.keys() == {"version.number"}


@pytest.mark.parametrize("name", ["../x", "a..b", "a.", "CON", "-a", "a/b", "ä", " a", "a\nb"])
async def test_unsafe_names_of_datasets_are_refused(server: Running, name: str) -> None:
    refusal = await refusal_of(server.stubs.datasets.CreateImport(import_request("cats", name)))
    assert refusal.fields.keys() == {"dataset"}
