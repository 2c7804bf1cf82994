import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import google_crc32c
import grpc
import pytest

from datasets_server import Running, running, upload
from refusals import refusal_of
from sfumato.blobs.v1 import blobs_pb2 as pb
from sfumato_chassis.blobs import CHUNK_BYTES, digest_of

DATA = b"0123456789"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path / "data") as started:
        yield started


def create_request(data: bytes = DATA, **fields: Any) -> pb.CreateUploadRequest:
    return pb.CreateUploadRequest(
        **{
            "request_id": str(uuid.uuid4()),
            "digest": digest_of(data),
            "size_bytes": len(data),
            **fields,
        }
    )


def chunk(name: str, offset: int, data: bytes, **fields: Any) -> pb.WriteChunkRequest:
    values = {"crc32c": google_crc32c.value(data), **fields}
    return pb.WriteChunkRequest(upload=name, offset=offset, data=data, **values)


async def opened(server: Running, data: bytes = DATA, **fields: Any) -> str:
    created = await server.stubs.blobs.CreateUpload(create_request(data, **fields))
    return created.upload.name


async def read(server: Running, digest: str, **fields: Any) -> list[pb.ReadBlobResponse]:
    request = pb.ReadBlobRequest(digest=digest, **fields)
    return [message async for message in server.stubs.blobs.ReadBlob(request)]


async def test_an_upload_in_chunks_is_read_back(server: Running) -> None:
    data = os.urandom(2 * CHUNK_BYTES + 7)
    name = await opened(server, data, media_type="image/png")
    for offset in range(0, len(data), CHUNK_BYTES):
        part = data[offset : offset + CHUNK_BYTES]
        answer = await server.stubs.blobs.WriteChunk(chunk(name, offset, part))
        assert answer.committed_size_bytes == offset + len(part)
    for _ in range(2):
        done = await server.stubs.blobs.CompleteUpload(pb.CompleteUploadRequest(name=name))
        assert done.blob.media_type == "image/png"
    first, *chunks = await read(server, digest_of(data))
    assert first.blob == done.blob
    assert b"".join(message.chunk for message in chunks) == data
    assert max(len(message.chunk) for message in chunks) == CHUNK_BYTES


async def test_a_download_resumes(server: Running) -> None:
    digest = await upload(server.stubs, DATA)
    for offset in range(len(DATA) + 1):
        _, *chunks = await read(server, digest, offset=offset)
        assert b"".join(message.chunk for message in chunks) == DATA[offset:]
    _, part = await read(server, digest, offset=2, limit=3)
    assert part.chunk == b"234"


async def test_known_bytes_need_no_chunk(server: Running) -> None:
    await upload(server.stubs, DATA)
    created = await server.stubs.blobs.CreateUpload(create_request())
    assert created.upload.complete
    assert created.upload.committed_size_bytes == len(DATA)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (create_request(request_id="1"), "request_id"),
        (create_request(request_id=""), "request_id"),
        (create_request(digest="sha256:" + "A" * 64), "digest"),
        (create_request(digest="md5:" + "a" * 64), "digest"),
        (create_request(size_bytes=-1), "size_bytes"),
        (create_request(size_bytes=(1 << 40) + 1), "size_bytes"),
        (create_request(media_type="x" * 101), "media_type"),
        (create_request(media_type="a\0"), "media_type"),
    ],
)
async def test_a_wrong_create_names_its_field(
    server: Running, request_: pb.CreateUploadRequest, field: str
) -> None:
    refusal = await refusal_of(server.stubs.blobs.CreateUpload(request_))
    assert (refusal.code, refusal.reason) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "FIELD_INVALID",
    )
    assert refusal.fields.keys() == {field}


async def test_chunks_that_do_not_fit_are_refused(server: Running) -> None:
    name = await opened(server)
    await server.stubs.blobs.WriteChunk(chunk(name, 0, DATA[:4]))
    for request, reason, told in [
        (chunk(name, 6, b"6"), "OFFSET_OUT_OF_RANGE", {"committed_size_bytes": "4"}),
        (chunk(name, 2, b"2345"), "OFFSET_OUT_OF_RANGE", {"committed_size_bytes": "4"}),
        (chunk(name, 4, b"4", crc32c=0), "FIELD_INVALID", {}),
        (chunk(name, 4, DATA), "FIELD_INVALID", {}),
        (chunk(name, 4, b""), "FIELD_INVALID", {}),
        (chunk("upload-none", 0, b"0"), "RESOURCE_NOT_FOUND", {}),
    ]:
        refusal = await refusal_of(server.stubs.blobs.WriteChunk(request))
        assert (refusal.reason, refusal.details) == (reason, told)
    again = await server.stubs.blobs.WriteChunk(chunk(name, 0, DATA[:4]))
    assert again.committed_size_bytes == 4
    found = await server.stubs.blobs.GetUpload(pb.GetUploadRequest(name=name))
    assert (found.upload.committed_size_bytes, found.upload.complete) == (4, False)
    refusal = await refusal_of(
        server.stubs.blobs.CompleteUpload(pb.CompleteUploadRequest(name=name))
    )
    assert refusal.reason == "UPLOAD_INCOMPLETE"
    assert refusal.details == {"committed_size_bytes": "4"}


async def test_a_chunk_over_a_mebibyte_is_refused(server: Running) -> None:
    data = bytes(CHUNK_BYTES + 1)
    name = await opened(server, data)
    refusal = await refusal_of(server.stubs.blobs.WriteChunk(chunk(name, 0, data)))
    assert refusal.fields == {"data": "at most 1048576 bytes"}


async def test_another_digest_than_announced_is_told_and_forgotten(server: Running) -> None:
    request = create_request(digest=digest_of(b"others"))
    created = await server.stubs.blobs.CreateUpload(request)
    name = created.upload.name
    await server.stubs.blobs.WriteChunk(chunk(name, 0, DATA))
    refusal = await refusal_of(
        server.stubs.blobs.CompleteUpload(pb.CompleteUploadRequest(name=name))
    )
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.DATA_LOSS, "BLOB_CORRUPT")
    refusal = await refusal_of(server.stubs.blobs.GetUpload(pb.GetUploadRequest(name=name)))
    assert refusal.resource == ("upload", name)
    anew = await server.stubs.blobs.CreateUpload(request)
    assert (anew.deduplicated, anew.upload.committed_size_bytes) == (False, 0)


async def test_a_request_id_of_another_upload_is_refused(server: Running) -> None:
    first = create_request()
    await server.stubs.blobs.CreateUpload(first)
    second = create_request(b"others", request_id=first.request_id)
    refusal = await refusal_of(server.stubs.blobs.CreateUpload(second))
    assert (refusal.code, refusal.reason) == (
        grpc.StatusCode.ALREADY_EXISTS,
        "REQUEST_ID_REUSED",
    )
    assert refusal.resource == ("request_id", first.request_id)


async def test_reads_outside_a_blob_are_refused(server: Running) -> None:
    digest = await upload(server.stubs, DATA)
    for fields, reason in [
        ({"digest": digest_of(b"absent")}, "RESOURCE_NOT_FOUND"),
        ({"digest": digest, "offset": 11}, "OFFSET_OUT_OF_RANGE"),
        ({"digest": digest, "offset": -1}, "FIELD_INVALID"),
        ({"digest": digest, "limit": 0}, "FIELD_INVALID"),
        ({"digest": "../../etc/passwd"}, "FIELD_INVALID"),
    ]:
        refusal = await refusal_of(server.stubs.blobs.ReadBlob(pb.ReadBlobRequest(**fields)))
        assert refusal.reason == reason


@pytest.mark.parametrize("damage", [b"012345678X", b"012", None])
async def test_damage_on_the_disk_is_data_loss(server: Running, damage: bytes | None) -> None:
    digest = await upload(server.stubs, DATA)
    path = server.platform.blobs.folder.path(digest)
    path.unlink()
    if damage is not None:
        path.write_bytes(damage)
    received = []
    call = server.stubs.blobs.ReadBlob(pb.ReadBlobRequest(digest=digest))

    async def read_all() -> None:
        async for message in call:
            received[len(received) :] = [message]

    refusal = await refusal_of(read_all())
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.DATA_LOSS, "BLOB_CORRUPT")
    assert not any(message.chunk for message in received)
