"""``sfumato.blobs.v1.BlobService``, mounted by every service over the one store."""

from collections.abc import AsyncIterator
from typing import Any

from sfumato.blobs.v1 import blobs_pb2, blobs_pb2_grpc
from sfumato_chassis.blobs import Blob, BlobStore
from sfumato_chassis.errors import OutOfRange, Reason
from sfumato_chassis.job_messages import timestamp
from sfumato_chassis.pipeline import current_principal
from sfumato_chassis.request_messages import request_of
from sfumato_chassis.uploads import Upload, UploadStore


class BlobServicer(blobs_pb2_grpc.BlobServiceServicer):
    """Uploads and downloads."""

    def __init__(self, blobs: BlobStore, uploads: UploadStore) -> None:
        self._blobs = blobs
        self._uploads = uploads

    async def CreateUpload(
        self, request: blobs_pb2.CreateUploadRequest, context: Any
    ) -> blobs_pb2.CreateUploadResponse:
        upload, deduplicated = await self._uploads.create(
            request_of(request, current_principal().name),
            digest=request.digest,
            size_bytes=request.size_bytes,
            media_type=request.media_type,
        )
        return blobs_pb2.CreateUploadResponse(
            upload=upload_message(upload), deduplicated=deduplicated
        )

    async def WriteChunk(
        self, request: blobs_pb2.WriteChunkRequest, context: Any
    ) -> blobs_pb2.WriteChunkResponse:
        committed = await self._uploads.write_chunk(
            request.upload,
            current_principal().name,
            offset=request.offset,
            data=request.data,
            crc32c=request.crc32c,
        )
        return blobs_pb2.WriteChunkResponse(committed_size_bytes=committed)

    async def GetUpload(
        self, request: blobs_pb2.GetUploadRequest, context: Any
    ) -> blobs_pb2.GetUploadResponse:
        upload = await self._uploads.get(request.name, current_principal().name)
        return blobs_pb2.GetUploadResponse(upload=upload_message(upload))

    async def CompleteUpload(
        self, request: blobs_pb2.CompleteUploadRequest, context: Any
    ) -> blobs_pb2.CompleteUploadResponse:
        blob = await self._uploads.complete(request.name, current_principal().name)
        return blobs_pb2.CompleteUploadResponse(blob=blob_message(blob))

    async def ReadBlob(
        self, request: blobs_pb2.ReadBlobRequest, context: Any
    ) -> AsyncIterator[blobs_pb2.ReadBlobResponse]:
        blob = await self._blobs.get(request.digest)
        if request.offset > blob.size_bytes:
            raise OutOfRange(
                Reason.OFFSET_OUT_OF_RANGE,
                f"the blob has {blob.size_bytes} bytes",
                details={"size_bytes": str(blob.size_bytes)},
            )
        yield blobs_pb2.ReadBlobResponse(blob=blob_message(blob))
        limit = request.limit if request.HasField("limit") else None
        async for chunk in self._blobs.read(blob, request.offset, limit):
            yield blobs_pb2.ReadBlobResponse(chunk=chunk)


def blob_message(blob: Blob) -> blobs_pb2.BlobRef:
    """A blob as a message."""
    return blobs_pb2.BlobRef(
        digest=blob.digest, size_bytes=blob.size_bytes, media_type=blob.media_type
    )


def upload_message(upload: Upload) -> blobs_pb2.Upload:
    """An upload as a message."""
    return blobs_pb2.Upload(
        name=upload.name,
        blob=blobs_pb2.BlobRef(
            digest=upload.digest, size_bytes=upload.size_bytes, media_type=upload.media_type
        ),
        committed_size_bytes=upload.committed_size_bytes,
        complete=upload.complete,
        create_time=timestamp(upload.create_time),
        expire_time=timestamp(upload.expire_time),
    )
