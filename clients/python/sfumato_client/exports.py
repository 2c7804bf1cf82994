"""A version of a dataset as an archive on this machine."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing

import grpc

from sfumato.datasets.v1 import datasets_pb2_grpc, export_pb2
from sfumato_client.blobs import regular_file
from sfumato_client.byte_streams import read_resumed
from sfumato_client.calls import Caller
from sfumato_client.errors import damaged, violated


async def fetch_export(
    stub: datasets_pb2_grpc.DatasetsServiceStub,
    caller: Caller,
    request: export_pb2.ExportVersionRequest,
    destination: str | os.PathLike[str],
) -> export_pb2.ExportedArchive:
    """Fetches an archive into a file, as `Datasets.export_version` says."""
    path = await asyncio.to_thread(regular_file, destination)
    archive = await caller.repeat(lambda: _announced(stub, caller, request))
    # From here on it is one version, whatever becomes of the dataset.
    request.version.number = archive.version.number
    partial = path.with_name(f".{path.name}.{archive.etag[:16]}.part")

    def open_at(
        offset: int,
    ) -> grpc.aio.UnaryStreamCall[
        export_pb2.ExportVersionRequest, export_pb2.ExportVersionResponse
    ]:
        asked = export_pb2.ExportVersionRequest()
        asked.CopyFrom(request)
        asked.offset = offset
        return stub.ExportVersion(asked, metadata=caller.metadata)

    def size_of(message: export_pb2.ExportVersionResponse) -> int | None:
        if message.WhichOneof("message") == "chunk":
            return None
        if message.archive.etag != archive.etag:
            raise damaged("the archive is made in another way now; begin anew")
        return message.archive.size_bytes

    with await asyncio.to_thread(partial.open, "ab") as file:
        chunks = read_resumed(
            caller,
            open_at,
            offset=file.tell(),
            size_of=size_of,
            chunk_of=lambda message: message.chunk,
        )
        async with aclosing(chunks):
            async for chunk in chunks:
                await asyncio.to_thread(file.write, chunk)
        num_bytes = file.tell()
    if num_bytes != archive.size_bytes:
        await asyncio.to_thread(partial.unlink)
        raise violated(f"{num_bytes} of {archive.size_bytes} bytes arrived")
    await asyncio.to_thread(os.replace, partial, path)
    return archive


async def _announced(
    stub: datasets_pb2_grpc.DatasetsServiceStub,
    caller: Caller,
    request: export_pb2.ExportVersionRequest,
) -> export_pb2.ExportedArchive:
    stream = stub.ExportVersion(request, metadata=caller.metadata)
    try:
        async for message in stream:
            return message.archive
    finally:
        stream.cancel()
    raise violated("an export without its description")
