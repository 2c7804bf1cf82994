"""Exports into files, against a real server: what an earlier one left, and what was damaged."""

from __future__ import annotations

import io
import random
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from PIL import Image

from datasets_server import Running, imported, running
from serving import quick_client
from sfumato.datasets.v1 import datasets_pb2 as pb
from sfumato.datasets.v1 import export_pb2, versions_pb2
from sfumato_chassis.blobs import key_of
from sfumato_client import Client, DataLoss
from sfumato_client.exports import COMPARED_SIZE_BYTES
from sfumato_datasets.exporter import Exporter

SIDE = 800
RANDOM = random.Random(11)
FORMATS = [export_pb2.EXPORT_FORMAT_ZIP, export_pb2.EXPORT_FORMAT_WEBDATASET]


def noise() -> bytes:
    """A picture of more bytes than a chunk, since nothing of it can be compressed."""
    encoded = io.BytesIO()
    Image.frombytes("RGB", (SIDE, SIDE), RANDOM.randbytes(3 * SIDE * SIDE)).save(encoded, "png")
    return encoded.getvalue()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Running]:
    root = tmp_path / "root"
    (root / "cats").mkdir(parents=True)
    for name in ("a.png", "b.png"):
        (root / "cats" / name).write_bytes(noise())
    async with running(tmp_path / "data", overrides={"datasets.import_roots": (root,)}) as started:
        await imported(started.stubs, "cats")
        yield started


@pytest.fixture
async def client(server: Running) -> AsyncIterator[Client]:
    async with quick_client(server.address) as started:
        yield started


@pytest.fixture
def offsets(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where the server began to read an archive, for each time that it did."""
    found: list[int] = []
    read = Exporter.read

    def noting(self: Exporter, export: object, offset: int) -> AsyncIterator[bytes]:
        found.append(offset)
        return read(self, export, offset)  # type: ignore[arg-type]

    monkeypatch.setattr(Exporter, "read", noting)
    return found


@pytest.fixture
def destination(tmp_path: Path) -> Path:
    folder = tmp_path / "exports"
    folder.mkdir()
    return folder / "cats.zip"


def part_of(destination: Path, archive: export_pb2.ExportedArchive) -> Path:
    return destination.with_name(f".{destination.name}.{archive.etag[:16]}.part")


async def exported(
    client: Client, destination: Path, format: export_pb2.ExportFormat.ValueType
) -> tuple[export_pb2.ExportedArchive, bytes]:
    """An archive and its bytes; nothing is left of it."""
    archive = await client.datasets.export_version("cats", destination, format=format)
    data = destination.read_bytes()
    destination.unlink()
    assert len(data) == archive.size_bytes > 2 * COMPARED_SIZE_BYTES
    return archive, data


@pytest.mark.parametrize("format", FORMATS)
async def test_what_is_longer_than_the_archive_begins_anew(
    client: Client, destination: Path, format: export_pb2.ExportFormat.ValueType
) -> None:
    archive, data = await exported(client, destination, format)
    for left in (data + b"\0", data + data):
        part_of(destination, archive).write_bytes(left)
        assert await client.datasets.export_version("cats", destination, format=format) == archive
        assert destination.read_bytes() == data
        assert list(destination.parent.iterdir()) == [destination]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("num_bytes", [1, COMPARED_SIZE_BYTES + 1, 2 * COMPARED_SIZE_BYTES, None])
async def test_the_bytes_of_something_else_begin_anew(
    client: Client,
    destination: Path,
    num_bytes: int | None,
    format: export_pb2.ExportFormat.ValueType,
) -> None:
    archive, data = await exported(client, destination, format)
    foreign = bytes(byte ^ 1 for byte in data[:num_bytes])
    part_of(destination, archive).write_bytes(foreign)
    await client.datasets.export_version("cats", destination, format=format)
    assert destination.read_bytes() == data
    assert list(destination.parent.iterdir()) == [destination]


async def test_a_chunk_that_was_written_twice_begins_anew(
    client: Client, destination: Path
) -> None:
    archive, data = await exported(client, destination, export_pb2.EXPORT_FORMAT_ZIP)
    once = data[:COMPARED_SIZE_BYTES]
    part_of(destination, archive).write_bytes(once + once)
    await client.datasets.export_version("cats", destination)
    assert destination.read_bytes() == data


@pytest.mark.parametrize(
    ("num_left", "begin"),
    [
        (1000, 0),
        (COMPARED_SIZE_BYTES, 0),
        (2 * COMPARED_SIZE_BYTES + 5, COMPARED_SIZE_BYTES + 5),
        (None, None),
    ],
)
async def test_what_an_earlier_export_left_goes_on(
    client: Client,
    destination: Path,
    offsets: list[int],
    num_left: int | None,
    begin: int | None,
) -> None:
    archive, data = await exported(client, destination, export_pb2.EXPORT_FORMAT_ZIP)
    part_of(destination, archive).write_bytes(data[:num_left])
    offsets.clear()
    await client.datasets.export_version("cats", destination)
    assert destination.read_bytes() == data
    # What the archive is asked for first, then for what is compared and what follows it.
    assert offsets[1:] == [len(data) - COMPARED_SIZE_BYTES if begin is None else begin]


async def test_what_exports_of_other_versions_left_goes(client: Client, destination: Path) -> None:
    others = [f".cats.zip.{digits}.part" for digits in ("0123456789abcdef", "f" * 16)]
    kept = [".cats.zip.notes.part", ".dogs.zip.0123456789abcdef.part", "cats.zip.part"]
    for name in (*others, *kept):
        destination.with_name(name).write_bytes(b"left")
    await client.datasets.export_version("cats", destination)
    names = {path.name for path in destination.parent.iterdir()}
    assert names == {*kept, "cats.zip"}


@pytest.mark.parametrize("format", FORMATS)
async def test_damaged_bytes_that_arrived_are_not_gone_on_from(
    server: Running,
    client: Client,
    destination: Path,
    format: export_pb2.ExportFormat.ValueType,
) -> None:
    _, data = await exported(client, destination, format)
    listed = await server.stubs.datasets.ListSamples(
        pb.ListSamplesRequest(version=versions_pb2.VersionRef(dataset="cats"))
    )
    path = server.platform.blobs.folder.root / key_of(listed.samples[1].image.digest)
    whole = path.read_bytes()
    # The first chunk of the image is sent before its last one shows that it is damaged.
    path.write_bytes(whole[:100] + b"damaged" + whole[107:])
    with pytest.raises(DataLoss):
        await client.datasets.export_version("cats", destination, format=format)
    assert list(destination.parent.iterdir()) == []
    path.write_bytes(whole)
    await client.datasets.export_version("cats", destination, format=format)
    assert destination.read_bytes() == data


async def test_an_image_that_is_entered_midway_is_checked_whole(server: Running) -> None:
    version = versions_pb2.VersionRef(dataset="cats")
    listed = await server.stubs.datasets.ListSamples(pb.ListSamplesRequest(version=version))
    image = listed.samples[0].image
    path = server.platform.blobs.folder.root / key_of(image.digest)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100] + bytes(100))
    # Behind the image's first bytes and before its last, whatever the archive puts in front.
    request = export_pb2.ExportVersionRequest(version=version, offset=image.size_bytes // 2)
    call = server.stubs.datasets.ExportVersion(request)
    assert (await call.read()).HasField("archive")
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await call.read()
    assert refusal.value.code() is grpc.StatusCode.DATA_LOSS
