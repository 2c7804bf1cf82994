"""A version of a dataset as an archive on this machine."""

from __future__ import annotations

import asyncio
import glob
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import BinaryIO

import grpc

from sfumato.datasets.v1 import datasets_pb2_grpc, export_pb2
from sfumato_client.blobs import regular_file
from sfumato_client.byte_streams import read_resumed
from sfumato_client.calls import Caller
from sfumato_client.errors import ContractViolated, DataLoss, OutOfRange, damaged, violated

# An archive has no digest. What an earlier export left is trusted where its end is right.
COMPARED_SIZE_BYTES = 1 << 20


async def fetch_export(
    stub: datasets_pb2_grpc.DatasetsServiceStub,
    caller: Caller,
    request: export_pb2.ExportVersionRequest,
    destination: str | os.PathLike[str],
) -> export_pb2.ExportedArchive:
    """Fetches an archive into a file, as `Datasets.export_version` says.

    What an earlier export left begins anew where it is longer than the archive or does not end with
    the archive's bytes. It is removed after an error that says that it is of no use.
    """
    path = await asyncio.to_thread(regular_file, destination)
    archive = await caller.repeat(lambda: _announced(stub, caller, request))
    # From here on it is one version, whatever becomes of the dataset.
    request.version.number = archive.version.number
    partial = path.with_name(f".{path.name}.{archive.etag[:16]}.part")
    try:
        with await asyncio.to_thread(partial.open, "a+b") as file:
            await _fill(file, stub, caller, request, archive)
    except (ContractViolated, DataLoss, OutOfRange):
        await asyncio.to_thread(partial.unlink, missing_ok=True)
        raise
    await asyncio.to_thread(os.replace, partial, path)
    await asyncio.to_thread(_remove_others, path)
    return archive


async def _fill(
    file: BinaryIO,
    stub: datasets_pb2_grpc.DatasetsServiceStub,
    caller: Caller,
    request: export_pb2.ExportVersionRequest,
    archive: export_pb2.ExportedArchive,
) -> None:
    """Adds what the file lacks. It is open for appending."""

    def chunks_from(offset: int) -> AsyncGenerator[bytes, None]:
        return read_resumed(
            caller,
            lambda at: _opened(stub, caller, request, at),
            offset=offset,
            size_of=lambda message: _size_of(message, archive),
            chunk_of=lambda message: message.chunk,
        )

    end = await asyncio.to_thread(_end_to_compare, file, archive.size_bytes)
    if not await _append(file, chunks_from(file.tell() - len(end)), end):
        await asyncio.to_thread(file.truncate, 0)
        await _append(file, chunks_from(0), b"")
    num_bytes = await asyncio.to_thread(file.seek, 0, os.SEEK_END)
    if num_bytes != archive.size_bytes:
        raise violated(f"{num_bytes} of {archive.size_bytes} bytes arrived")


async def _append(file: BinaryIO, chunks: AsyncGenerator[bytes, None], end: bytes) -> bool:
    """Whether the chunks begin with the end of the file; what follows it is written."""
    async with aclosing(chunks):
        async for chunk in chunks:
            known, end = end[: len(chunk)], end[len(chunk) :]
            if not chunk.startswith(known):
                return False
            await asyncio.to_thread(file.write, chunk[len(known) :])
    return True


def _end_to_compare(file: BinaryIO, size_bytes: int) -> bytes:
    """The last bytes of the file, which is left at its end; one over the size is emptied."""
    length = file.seek(0, os.SEEK_END)
    if length > size_bytes:
        file.truncate(0)
        length = 0
    file.seek(max(0, length - COMPARED_SIZE_BYTES))
    return file.read()


def _opened(
    stub: datasets_pb2_grpc.DatasetsServiceStub,
    caller: Caller,
    request: export_pb2.ExportVersionRequest,
    offset: int,
) -> grpc.aio.UnaryStreamCall[export_pb2.ExportVersionRequest, export_pb2.ExportVersionResponse]:
    asked = export_pb2.ExportVersionRequest()
    asked.CopyFrom(request)
    asked.offset = offset
    return stub.ExportVersion(asked, metadata=caller.metadata)


def _size_of(
    message: export_pb2.ExportVersionResponse, archive: export_pb2.ExportedArchive
) -> int | None:
    if message.WhichOneof("message") == "chunk":
        return None
    if message.archive.etag != archive.etag:
        raise damaged("the archive is made in another way now; begin anew")
    return message.archive.size_bytes


def _remove_others(path: Path) -> None:
    """Removes what exports of other versions into this file have left."""
    etag = "[0-9a-f]" * 16
    for partial in path.parent.glob(f".{glob.escape(path.name)}.{etag}.part"):
        partial.unlink(missing_ok=True)


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
