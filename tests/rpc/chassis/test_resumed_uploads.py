"""A large upload through repeats, gaps, damage and a killed server: exact bytes at the end."""

import random
import uuid
from pathlib import Path
from typing import Any

import google_crc32c
import grpc

from datasets_server import Stubs, server_process
from refusals import refusal_of
from sfumato.blobs.v1 import blobs_pb2 as pb
from sfumato_chassis.blobs import CHUNK_BYTES, digest_of

SIZE_BYTES = 12_000_000
KILL_AFTER_BYTES = 5 * CHUNK_BYTES
MAX_ANNOUNCED_BYTES = 1 << 40


def chunk(name: str, data: bytes, offset: int, **fields: Any) -> pb.WriteChunkRequest:
    part = data[offset : offset + CHUNK_BYTES]
    fields.setdefault("crc32c", google_crc32c.value(part))
    return pb.WriteChunkRequest(upload=name, offset=offset, data=part, **fields)


async def write(stubs: Stubs, name: str, data: bytes, first: int, end: int) -> None:
    for offset in range(first, end, CHUNK_BYTES):
        for _ in range(2):
            answer = await stubs.blobs.WriteChunk(chunk(name, data, offset))
            assert answer.committed_size_bytes == min(offset + CHUNK_BYTES, len(data))


async def test_twelve_megabytes_through_everything(tmp_path: Path) -> None:
    data = random.Random(12).randbytes(SIZE_BYTES)
    request = pb.CreateUploadRequest(
        request_id=str(uuid.uuid4()), digest=digest_of(data), size_bytes=SIZE_BYTES
    )
    async with server_process(tmp_path / "data") as (server, stubs):
        name = (await stubs.blobs.CreateUpload(request)).upload.name
        await write(stubs, name, data, 0, KILL_AFTER_BYTES)
        gap = await refusal_of(
            stubs.blobs.WriteChunk(chunk(name, data, KILL_AFTER_BYTES + CHUNK_BYTES))
        )
        assert (gap.code, gap.reason) == (grpc.StatusCode.OUT_OF_RANGE, "OFFSET_OUT_OF_RANGE")
        assert gap.details == {"committed_size_bytes": str(KILL_AFTER_BYTES)}
        wrong = await refusal_of(
            stubs.blobs.WriteChunk(chunk(name, data, KILL_AFTER_BYTES, crc32c=1))
        )
        assert (wrong.code, wrong.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID")
        assert wrong.fields.keys() == {"crc32c"}
        server.kill()
    async with server_process(tmp_path / "data") as (_, stubs):
        found = (await stubs.blobs.GetUpload(pb.GetUploadRequest(name=name))).upload
        assert found.committed_size_bytes == KILL_AFTER_BYTES
        await write(stubs, name, data, found.committed_size_bytes, SIZE_BYTES)
        await stubs.blobs.CompleteUpload(pb.CompleteUploadRequest(name=name))
        read = stubs.blobs.ReadBlob(pb.ReadBlobRequest(digest=digest_of(data)))
        assert b"".join([message.chunk async for message in read]) == data


async def test_more_than_the_disk_holds_is_refused_before_a_byte(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "uploads"
    async with server_process(tmp_path / "data") as (_, stubs):
        for size_bytes, code, reason in [
            (MAX_ANNOUNCED_BYTES, grpc.StatusCode.RESOURCE_EXHAUSTED, "DISK_FULL"),
            (4 * 10**12, grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID"),
        ]:
            refusal = await refusal_of(
                stubs.blobs.CreateUpload(
                    pb.CreateUploadRequest(
                        request_id=str(uuid.uuid4()), digest=digest_of(b""), size_bytes=size_bytes
                    )
                )
            )
            assert (refusal.code, refusal.reason) == (code, reason)
        assert list(folder.iterdir()) == []
