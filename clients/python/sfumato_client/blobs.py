"""Files to and from the blob store, over connections that may be lost."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import google_crc32c

from sfumato.blobs.v1 import blobs_pb2, blobs_pb2_grpc
from sfumato_client.byte_streams import read_resumed
from sfumato_client.calls import Caller, new_request_id
from sfumato_client.errors import (
    OutOfRange,
    SfumatoError,
    TransportLost,
    damaged,
    violated,
)

# The largest chunk that WriteChunk takes.
CHUNK_SIZE_BYTES = 1 << 20
HASH_STEP_BYTES = 1 << 23


class Hash(Protocol):
    """What hashlib makes."""

    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Blobs:
    """Uploads and downloads through one service's BlobService; all services share one store."""

    stub: blobs_pb2_grpc.BlobServiceStub
    caller: Caller

    async def upload(
        self,
        path: str | os.PathLike[str],
        *,
        media_type: str = "",
        request_id: str | None = None,
    ) -> blobs_pb2.BlobRef:
        """Stores a file and answers its digest. Bytes that are stored already are not sent.

        Raises:
            DataLoss: the file changed while it was read.
            SfumatoError: as for WriteChunk, or TransportLost without progress for the budget.
        """
        path = Path(path)
        read = await _hash(path)
        digest, size_bytes = _named(read.digest), read.size_bytes
        request = blobs_pb2.CreateUploadRequest(
            request_id=request_id or new_request_id(),
            digest=digest,
            size_bytes=size_bytes,
            media_type=media_type,
        )
        created = await self.caller.repeatable(self.stub.CreateUpload, request)
        upload = created.upload
        if upload.complete:
            return upload.blob
        with await asyncio.to_thread(path.open, "rb") as file:
            await self._send(file, upload.name, upload.committed_size_bytes, size_bytes)
        completed = await self.caller.repeatable(
            self.stub.CompleteUpload, blobs_pb2.CompleteUploadRequest(name=upload.name)
        )
        return completed.blob

    async def _send(self, file: BinaryIO, name: str, offset: int, size_bytes: int) -> None:
        """Sends chunks from `offset` on; where the server has another size, goes on from that."""
        while offset < size_bytes:
            data = await asyncio.to_thread(_read_at, file, offset)
            if not data:
                raise damaged("the file became shorter while it was sent")
            request = blobs_pb2.WriteChunkRequest(
                upload=name, offset=offset, data=data, crc32c=google_crc32c.value(data)
            )
            try:
                response = await self.caller.repeatable(self.stub.WriteChunk, request)
                committed = response.committed_size_bytes
            except OutOfRange:
                committed = await self._committed(name)
                if committed == offset:
                    raise
            else:
                if committed <= offset:
                    raise violated(f"a chunk at {offset} was answered with {committed} committed")
            offset = committed

    async def _committed(self, name: str) -> int:
        response = await self.caller.repeatable(
            self.stub.GetUpload, blobs_pb2.GetUploadRequest(name=name)
        )
        return response.upload.committed_size_bytes

    async def download(self, digest: str, destination: str | os.PathLike[str]) -> None:
        """Fetches a blob into a file, which appears only when it is whole and its digest right.

        What an earlier, interrupted download left in `.<name>.<digest>.part` is not fetched again.

        A link is followed. What is there and no regular file, such as a device, is left alone.

        Raises:
            OSError: the file cannot be written.
            DataLoss: what arrived does not match the digest.
            SfumatoError: as for ReadBlob, or TransportLost without progress for the budget.
        """
        destination = await asyncio.to_thread(regular_file, destination)
        partial = destination.with_name(f".{destination.name}.{digest[-16:]}.part")
        received = (await _hash(partial)).digest if partial.exists() else hashlib.sha256()
        if not partial.exists() or _named(received) != digest:
            try:
                await self._append(digest, partial, received)
            except TransportLost:
                raise
            except SfumatoError:
                # The blob is not there, or shorter than what was left of it: a useless part.
                await asyncio.to_thread(partial.unlink)
                raise
        if _named(received) != digest:
            await asyncio.to_thread(partial.unlink)
            raise damaged(f"what arrived of {digest} has another digest")
        await asyncio.to_thread(os.replace, partial, destination)

    async def _append(self, digest: str, partial: Path, received: Hash) -> None:
        with await asyncio.to_thread(partial.open, "ab") as file:
            async with aclosing(self.read(digest, offset=file.tell())) as chunks:
                async for chunk in chunks:
                    received.update(chunk)
                    await asyncio.to_thread(file.write, chunk)

    def read(self, digest: str, *, offset: int = 0) -> AsyncGenerator[bytes, None]:
        """Yields the blob's bytes from `offset` on, across lost connections.

        The digest is the caller's to verify; `download` does.

        Raises:
            SfumatoError: as for ReadBlob, or TransportLost without progress for the budget.
        """
        return read_resumed(
            self.caller,
            lambda at: self.stub.ReadBlob(
                blobs_pb2.ReadBlobRequest(digest=digest, offset=at), metadata=self.caller.metadata
            ),
            offset=offset,
            size_of=lambda message: (
                message.blob.size_bytes if message.WhichOneof("message") == "blob" else None
            ),
            chunk_of=lambda message: message.chunk,
        )


def regular_file(path: str | os.PathLike[str]) -> Path:
    """The file to write where `path` is asked for: itself, or what it links to.

    Raises:
        OSError: what is there is no regular file.
    """
    real = Path(os.path.realpath(path))
    if real.is_dir():
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if os.path.lexists(real) and not real.is_file():
        raise OSError(errno.EINVAL, "is there already, and is no regular file", str(path))
    return real


@dataclass(frozen=True, kw_only=True, slots=True)
class _HashedFile:
    digest: Hash
    size_bytes: int


async def _hash(path: Path) -> _HashedFile:
    """Reads a file. In steps, since no thread can be called back: a caller may leave between two."""
    digest = hashlib.sha256()
    with await asyncio.to_thread(path.open, "rb") as file:
        while await asyncio.to_thread(_hash_step, file, digest):
            continue
        return _HashedFile(digest=digest, size_bytes=file.tell())


def _hash_step(file: BinaryIO, digest: Hash) -> bool:
    """Whether there may be more to hash."""
    data = file.read(HASH_STEP_BYTES)
    digest.update(data)
    return bool(data)


def _named(digest: Hash) -> str:
    return f"sha256:{digest.hexdigest()}"


def _read_at(file: BinaryIO, offset: int) -> bytes:
    file.seek(offset)
    return file.read(CHUNK_SIZE_BYTES)
