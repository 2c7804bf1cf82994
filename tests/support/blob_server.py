"""A small BlobService that keeps everything in memory."""

# ruff: noqa: N802  # methods are named by gRPC
from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable

import google_crc32c
import grpc

from sfumato.blobs.v1 import blobs_pb2, blobs_pb2_grpc
from statuses import status

# Smaller than the real service's, so that a download has many.
READ_CHUNK_SIZE_BYTES = 16_384


class BlobServer(blobs_pb2_grpc.BlobServiceServicer):
    """Verifies what it is sent as the contract says.

    Attributes:
        before_chunk: awaited when a chunk has arrived and before it is looked at.
        after_chunk: awaited after a chunk was committed and before it is answered.
        offsets: offset of every WriteChunk.
        read_offsets: offset of every ReadBlob.
    """

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.uploads: dict[str, blobs_pb2.CreateUploadRequest] = {}
        self.committed: dict[str, bytearray] = {}
        self.before_chunk: Callable[[], Awaitable[None]] | None = None
        self.after_chunk: Callable[[], Awaitable[None]] | None = None
        self.offsets: list[int] = []
        self.read_offsets: list[int] = []

    def store(self, data: bytes) -> str:
        """Stores a blob and answers its digest."""
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.blobs[digest] = data
        return digest

    async def CreateUpload(
        self,
        request: blobs_pb2.CreateUploadRequest,
        context: grpc.aio.ServicerContext[
            blobs_pb2.CreateUploadRequest, blobs_pb2.CreateUploadResponse
        ],
    ) -> blobs_pb2.CreateUploadResponse:
        name = f"upload-{request.request_id}"
        deduplicated = name in self.uploads
        self.uploads.setdefault(name, request)
        self.committed.setdefault(name, bytearray())
        return blobs_pb2.CreateUploadResponse(upload=self._upload(name), deduplicated=deduplicated)

    async def WriteChunk(
        self,
        request: blobs_pb2.WriteChunkRequest,
        context: grpc.aio.ServicerContext[
            blobs_pb2.WriteChunkRequest, blobs_pb2.WriteChunkResponse
        ],
    ) -> blobs_pb2.WriteChunkResponse:
        self.offsets.append(request.offset)
        if self.before_chunk is not None:
            await self.before_chunk()
        committed = self.committed[request.upload]
        assert google_crc32c.value(request.data) == request.crc32c
        assert len(request.data) <= 1 << 20
        end = request.offset + len(request.data)
        repeated = committed[request.offset : end] == request.data
        if not repeated and request.offset != len(committed):
            await context.abort_with_status(
                status(grpc.StatusCode.OUT_OF_RANGE, reason="OFFSET_OUT_OF_RANGE")
            )
        if not repeated:
            committed += request.data
        if self.after_chunk is not None:
            await self.after_chunk()
        return blobs_pb2.WriteChunkResponse(committed_size_bytes=len(committed))

    async def GetUpload(
        self,
        request: blobs_pb2.GetUploadRequest,
        context: grpc.aio.ServicerContext[blobs_pb2.GetUploadRequest, blobs_pb2.GetUploadResponse],
    ) -> blobs_pb2.GetUploadResponse:
        return blobs_pb2.GetUploadResponse(upload=self._upload(request.name))

    async def CompleteUpload(
        self,
        request: blobs_pb2.CompleteUploadRequest,
        context: grpc.aio.ServicerContext[
            blobs_pb2.CompleteUploadRequest, blobs_pb2.CompleteUploadResponse
        ],
    ) -> blobs_pb2.CompleteUploadResponse:
        data = bytes(self.committed[request.name])
        if self.store(data) != self.uploads[request.name].digest:
            await context.abort_with_status(
                status(grpc.StatusCode.DATA_LOSS, reason="BLOB_CORRUPT")
            )
        return blobs_pb2.CompleteUploadResponse(blob=self._upload(request.name).blob)

    async def ReadBlob(
        self,
        request: blobs_pb2.ReadBlobRequest,
        context: grpc.aio.ServicerContext[blobs_pb2.ReadBlobRequest, blobs_pb2.ReadBlobResponse],
    ) -> AsyncIterator[blobs_pb2.ReadBlobResponse]:
        self.read_offsets.append(request.offset)
        data = self.blobs.get(request.digest)
        if data is None:
            await context.abort_with_status(
                status(grpc.StatusCode.NOT_FOUND, reason="RESOURCE_NOT_FOUND")
            )
        if request.offset > len(data):
            await context.abort_with_status(
                status(grpc.StatusCode.OUT_OF_RANGE, reason="OFFSET_OUT_OF_RANGE")
            )
        yield blobs_pb2.ReadBlobResponse(
            blob=blobs_pb2.BlobRef(digest=request.digest, size_bytes=len(data))
        )
        for offset in range(request.offset, len(data), READ_CHUNK_SIZE_BYTES):
            yield blobs_pb2.ReadBlobResponse(chunk=data[offset : offset + READ_CHUNK_SIZE_BYTES])

    def _upload(self, name: str) -> blobs_pb2.Upload:
        request = self.uploads[name]
        complete = request.digest in self.blobs
        return blobs_pb2.Upload(
            name=name,
            blob=blobs_pb2.BlobRef(digest=request.digest, size_bytes=request.size_bytes),
            committed_size_bytes=request.size_bytes if complete else len(self.committed[name]),
            complete=complete,
        )
