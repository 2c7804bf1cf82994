"""Sends hostile files to a datasets server, and collects what it answers."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import google_crc32c

from datasets_server import Stubs, finished
from sfumato.blobs.v1 import blobs_pb2
from sfumato.datasets.v1 import imports_pb2
from sfumato.job.v1 import errors_pb2, job_pb2
from sfumato_chassis.blobs import digest_of

CHUNK_BYTES = 1 << 20
SKIP = imports_pb2.REFUSED_FILE_POLICY_SKIP
STOP = imports_pb2.REFUSED_FILE_POLICY_STOP


async def send(stubs: Stubs, data: bytes) -> str:
    """Uploads bytes in as many chunks as it takes; answers their digest."""
    digest = digest_of(data)
    opened = await stubs.blobs.CreateUpload(
        blobs_pb2.CreateUploadRequest(
            request_id=str(uuid.uuid4()), digest=digest, size_bytes=len(data)
        )
    )
    if opened.upload.complete:
        return digest
    name = opened.upload.name
    for offset in range(0, len(data), CHUNK_BYTES):
        chunk = data[offset : offset + CHUNK_BYTES]
        await stubs.blobs.WriteChunk(
            blobs_pb2.WriteChunkRequest(
                upload=name, offset=offset, data=chunk, crc32c=google_crc32c.value(chunk)
            )
        )
    await stubs.blobs.CompleteUpload(blobs_pb2.CompleteUploadRequest(name=name))
    return digest


async def import_files(
    stubs: Stubs, dataset: str, files: Sequence[tuple[str, bytes]], *, policy: int = SKIP
) -> imports_pb2.Import:
    """Imports uploads; answers the import once it has ended."""
    listed = [
        imports_pb2.UploadedFile(file_name=name, digest=await send(stubs, data))
        for name, data in files
    ]
    source = {"upload": imports_pb2.UploadSource(files=listed)}
    return await _ended(stubs, dataset, policy, source)


async def import_archive(
    stubs: Stubs, dataset: str, data: bytes, *, policy: int = SKIP
) -> imports_pb2.Import:
    """Imports one archive; answers the import once it has ended."""
    file = imports_pb2.UploadedFile(file_name="pictures.bin", digest=await send(stubs, data))
    source = {"archive": imports_pb2.ArchiveSource(files=[file])}
    return await _ended(stubs, dataset, policy, source)


async def import_folder(
    stubs: Stubs, dataset: str, folder: str, *, policy: int = SKIP
) -> imports_pb2.Import:
    """Imports a folder of the server; answers the import once it has ended."""
    source = {"folder": imports_pb2.FolderSource(path=folder)}
    return await _ended(stubs, dataset, policy, source)


async def _ended(
    stubs: Stubs, dataset: str, policy: int, source: Mapping[str, object]
) -> imports_pb2.Import:
    request = imports_pb2.CreateImportRequest(
        request_id=str(uuid.uuid4()), dataset=dataset, refused_files=policy, **source
    )
    created = await stubs.datasets.CreateImport(request)
    return await finished(stubs, created.import_job.name)


def failure_of(ended: imports_pb2.Import) -> str:
    """The reason why an import failed; empty where it succeeded."""
    if ended.status.state == job_pb2.JOB_STATE_SUCCEEDED:
        return ""
    assert ended.status.state == job_pb2.JOB_STATE_FAILED, ended.status
    reason = errors_pb2.ErrorReason.Name(ended.status.error.reason)
    return reason.removeprefix("ERROR_REASON_")


def reasons_of(ended: imports_pb2.Import) -> dict[str, set[str]]:
    """File name to the reasons of its notes."""
    reasons: dict[str, set[str]] = defaultdict(set)
    for note in ended.notes:
        reasons[note.file_name].add(note.reason)
    return dict(reasons)


def listing(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Everything below a folder: size, time of its last change, digest."""
    found: dict[str, tuple[int, int, str]] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        digest = digest_of(path.read_bytes()) if path.is_file() else ""
        found[str(path.relative_to(folder))] = (status.st_size, status.st_mtime_ns, digest)
    return found
