"""Uploads and downloads against a real server, with connections cut on the way."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import grpc
import pytest

from blob_server import READ_CHUNK_SIZE_BYTES, BlobServer
from cutting_proxy import CuttingProxy
from serving import quick_client, serving
from sfumato_client import (
    Addresses,
    Client,
    Connection,
    DataLoss,
    NotFound,
    OutOfRange,
    RetryPolicy,
    TransportLost,
    new_request_id,
)
from sfumato_client.blobs import CHUNK_SIZE_BYTES
from statuses import status

CONTENT = random.Random(7).randbytes(3 * CHUNK_SIZE_BYTES + 1234)
CHUNK_OFFSETS = [0, CHUNK_SIZE_BYTES, 2 * CHUNK_SIZE_BYTES, 3 * CHUNK_SIZE_BYTES]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "content.bin"
    path.write_bytes(CONTENT)
    return path


@pytest.mark.parametrize("size", [0, 1, CHUNK_SIZE_BYTES, CHUNK_SIZE_BYTES + 1])
async def test_what_is_uploaded_comes_back(tmp_path: Path, size: int) -> None:
    path, copy = tmp_path / "file", tmp_path / "copy"
    path.write_bytes(CONTENT[:size])
    async with (
        serving(blobs=BlobServer()) as port,
        quick_client(f"127.0.0.1:{port}") as client,
    ):
        blob = await client.blobs.upload(path)
        await client.blobs.download(blob.digest, copy)
    assert blob.size_bytes == size
    assert copy.read_bytes() == CONTENT[:size]
    assert {each.name for each in tmp_path.iterdir()} == {"file", "copy"}


async def test_known_bytes_are_not_sent(file: Path) -> None:
    blobs = BlobServer()
    digest = blobs.store(CONTENT)
    async with serving(blobs=blobs) as port, quick_client(f"127.0.0.1:{port}") as client:
        blob = await client.blobs.upload(file)
    assert blob.digest == digest
    assert blobs.offsets == []


async def test_upload_goes_on_after_lost_answers(file: Path) -> None:
    blobs = BlobServer()
    async with serving(blobs=blobs) as port, CuttingProxy(port) as proxy:
        cut_after = {1, 3}

        async def cut_before_the_answer() -> None:
            if len(blobs.offsets) in cut_after:
                proxy.cut()

        blobs.after_chunk = cut_before_the_answer
        async with quick_client(proxy.address) as client:
            blob = await client.blobs.upload(file)
    assert blobs.blobs[blob.digest] == CONTENT
    # The two chunks whose answers were lost came twice, no other did.
    assert blobs.offsets == sorted([*CHUNK_OFFSETS, 0, CHUNK_SIZE_BYTES])


async def test_upload_of_an_earlier_process_is_resumed_at_its_committed_size(file: Path) -> None:
    blobs = BlobServer()
    request_id = new_request_id()
    async with serving(blobs=blobs) as port, CuttingProxy(port) as proxy:

        async def break_for_good() -> None:
            if len(blobs.offsets) >= 2:
                proxy.cut()

        blobs.after_chunk = break_for_good
        async with quick_client(proxy.address, budget_seconds=0.01) as client:
            with pytest.raises(TransportLost):
                await client.blobs.upload(file, request_id=request_id)
        blobs.after_chunk = None
        blobs.offsets.clear()
        async with quick_client(f"127.0.0.1:{port}") as client:
            blob = await client.blobs.upload(file, request_id=request_id)
    assert blobs.blobs[blob.digest] == CONTENT
    assert blobs.offsets == CHUNK_OFFSETS[2:]


async def test_upload_follows_the_committed_size_of_the_server(file: Path) -> None:
    blobs = BlobServer()

    async def forget_the_second_chunk() -> None:
        if len(blobs.offsets) == 3:
            (committed,) = blobs.committed.values()
            del committed[CHUNK_SIZE_BYTES:]

    blobs.before_chunk = forget_the_second_chunk
    async with serving(blobs=blobs) as port, quick_client(f"127.0.0.1:{port}") as client:
        blob = await client.blobs.upload(file)
    assert blobs.blobs[blob.digest] == CONTENT
    assert blobs.offsets == [*CHUNK_OFFSETS[:3], *CHUNK_OFFSETS[1:]]


async def test_upload_refused_at_the_committed_size_is_raised(file: Path) -> None:
    class Refusing(BlobServer):
        async def WriteChunk(self, request, context):  # type: ignore[no-untyped-def]  # noqa: N802
            await context.abort_with_status(
                status(grpc.StatusCode.OUT_OF_RANGE, reason="OFFSET_OUT_OF_RANGE")
            )

    async with serving(blobs=Refusing()) as port, quick_client(f"127.0.0.1:{port}") as client:
        with pytest.raises(OutOfRange):
            await client.blobs.upload(file)


@pytest.mark.parametrize("seed", range(3))
async def test_download_resumes_at_its_offset(tmp_path: Path, seed: int) -> None:
    blobs = BlobServer()
    digest = blobs.store(CONTENT)
    async with (
        serving(blobs=blobs) as port,
        CuttingProxy(port, seed=seed, max_cuts=20, largest_offset=300_000) as proxy,
        quick_client(proxy.address, seed=seed, budget_seconds=30) as client,
    ):
        await client.blobs.download(digest, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == CONTENT
    assert proxy.num_cuts == 20
    assert blobs.read_offsets == sorted(blobs.read_offsets)
    assert blobs.read_offsets[-1] > 0


async def test_download_goes_on_with_what_an_earlier_process_left(tmp_path: Path) -> None:
    blobs = BlobServer()
    digest = blobs.store(CONTENT)
    copy = tmp_path / "copy"
    partial = copy.with_name(f".copy.{digest[-16:]}.part")
    partial.write_bytes(CONTENT[:100_000])
    async with serving(blobs=blobs) as port, quick_client(f"127.0.0.1:{port}") as client:
        await client.blobs.download(digest, copy)
    assert blobs.read_offsets == [100_000]
    assert copy.read_bytes() == CONTENT
    assert not partial.exists()


async def test_whole_leftover_is_not_fetched_again(tmp_path: Path) -> None:
    blobs = BlobServer()
    digest = blobs.store(CONTENT)
    copy = tmp_path / "copy"
    copy.with_name(f".copy.{digest[-16:]}.part").write_bytes(CONTENT)
    async with serving(blobs=blobs) as port, quick_client(f"127.0.0.1:{port}") as client:
        await client.blobs.download(digest, copy)
    assert blobs.read_offsets == []
    assert copy.read_bytes() == CONTENT


async def test_damaged_download_leaves_no_file(tmp_path: Path) -> None:
    blobs = BlobServer()
    digest = blobs.store(CONTENT)
    blobs.blobs[digest] = bytes([CONTENT[0] ^ 1]) + CONTENT[1:]
    async with serving(blobs=blobs) as port, quick_client(f"127.0.0.1:{port}") as client:
        with pytest.raises(DataLoss):
            await client.blobs.download(digest, tmp_path / "copy")
    assert list(tmp_path.iterdir()) == []


async def test_leftover_that_is_longer_than_the_blob_is_removed(tmp_path: Path) -> None:
    blobs = BlobServer()
    digest = blobs.store(CONTENT[:10])
    copy = tmp_path / "copy"
    copy.with_name(f".copy.{digest[-16:]}.part").write_bytes(CONTENT[:20])
    async with serving(blobs=blobs) as port, quick_client(f"127.0.0.1:{port}") as client:
        with pytest.raises(OutOfRange):
            await client.blobs.download(digest, copy)
        await client.blobs.download(digest, copy)
    assert copy.read_bytes() == CONTENT[:10]


async def test_download_follows_a_link_and_replaces_no_pipe(tmp_path: Path) -> None:
    blobs = BlobServer()
    digest = blobs.store(CONTENT)
    (tmp_path / "elsewhere").mkdir()
    real, link, pipe = tmp_path / "elsewhere" / "copy", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(real)
    os.mkfifo(pipe)
    async with serving(blobs=blobs) as port, quick_client(f"127.0.0.1:{port}") as client:
        await client.blobs.download(digest, str(link))
        with pytest.raises(OSError, match="no regular file"):
            await client.blobs.download(digest, pipe)
        with pytest.raises(IsADirectoryError):
            await client.blobs.download(digest, tmp_path)
    assert link.is_symlink()
    assert real.read_bytes() == CONTENT
    assert pipe.is_fifo()
    assert len(list(tmp_path.iterdir())) == 3


async def test_unknown_blob_is_refused_at_once(tmp_path: Path) -> None:
    blobs = BlobServer()
    async with serving(blobs=blobs) as port, quick_client(f"127.0.0.1:{port}") as client:
        with pytest.raises(NotFound):
            await client.blobs.download(f"sha256:{'0' * 64}", tmp_path / "copy")
    assert blobs.read_offsets == [0]
    assert list(tmp_path.iterdir()) == []


async def test_read_yields_from_an_offset() -> None:
    blobs = BlobServer()
    digest = blobs.store(CONTENT)
    async with serving(blobs=blobs) as port, quick_client(f"127.0.0.1:{port}") as client:
        chunks = [chunk async for chunk in client.blobs.read(digest, offset=len(CONTENT) - 20_000)]
    assert [len(chunk) for chunk in chunks] == [
        READ_CHUNK_SIZE_BYTES,
        20_000 - READ_CHUNK_SIZE_BYTES,
    ]
    assert b"".join(chunks) == CONTENT[-20_000:]


async def test_silent_download_ends_with_the_attempt(file: Path, tmp_path: Path) -> None:
    blobs = BlobServer()
    digest = blobs.store(CONTENT)
    policy = RetryPolicy(budget_seconds=0.1, attempt_timeout_seconds=0.1)
    async with serving(blobs=blobs) as port, CuttingProxy(port) as proxy:
        proxy.freeze()
        connection = Connection(addresses=Addresses.all_at(proxy.address))
        async with Client(connection, policy=policy) as client:
            with pytest.raises(TransportLost, match=r"nothing arrived for 0\.1 s"):
                await client.blobs.download(digest, tmp_path / "copy")


async def test_file_is_not_read_on_when_the_caller_has_left() -> None:
    async with quick_client("127.0.0.1:1") as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await client.blobs.upload(Path("/dev/zero"))
        async with asyncio.timeout(20):
            await asyncio.get_running_loop().shutdown_default_executor()
