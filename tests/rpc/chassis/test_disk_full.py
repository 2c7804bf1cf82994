"""No space where a call or a job writes: it says so, reads go on, and so does work once there is some."""

import asyncio
import errno
import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import google_crc32c
import grpc
import pytest
from sqlalchemy import Connection, text
from structlog.testing import capture_logs

from datasets_server import (
    Running,
    Stubs,
    begun,
    finished,
    import_request,
    imported,
    running,
    server_process,
    watched,
)
from pictures import write_pictures
from refusals import Refusal, refusal_of
from sfumato.blobs.v1 import blobs_pb2
from sfumato.datasets.v1 import imports_pb2
from sfumato.job.v1 import errors_pb2, job_pb2
from sfumato_chassis.blobs import digest_of
from sfumato_chassis.failpoints import Failpoints, parse

DATA = b"0123456789"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_pictures(tmp_path / "root" / "cats", 1)
    return tmp_path / "root"


@pytest.fixture
async def server(tmp_path: Path, root: Path) -> AsyncIterator[Running]:
    overrides = {"datasets.import_roots": (root,)}
    async with running(tmp_path / "data", overrides=overrides) as started:
        yield started


def assert_disk_full(refusal: Refusal) -> None:
    assert refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refusal.reason == "DISK_FULL"
    assert refusal.message == "the server's disk is full"
    assert refusal.details["error_id"]
    assert refusal.retry_after_seconds


async def limit_database(server: Running, num_pages: int) -> None:
    """SQLite refuses to grow past that many pages, as it does on a full disk."""
    await server.platform.database.write(
        lambda connection: connection.execute(text(f"PRAGMA max_page_count = {num_pages}")).all()
    )


def create_request(data: bytes) -> blobs_pb2.CreateUploadRequest:
    return blobs_pb2.CreateUploadRequest(
        request_id=str(uuid.uuid4()), digest=digest_of(data), size_bytes=len(data)
    )


def let_events_be_large(connection: Connection) -> None:
    """An event takes more space than the pages have that are there."""
    connection.execute(text("CREATE TABLE filler (data BLOB)"))
    connection.execute(
        text(
            "CREATE TRIGGER large BEFORE INSERT ON chassis_job_events "
            "BEGIN INSERT INTO filler VALUES (zeroblob(100000)); END"
        )
    )


async def touch_and_meet_the_full_disk(gate: Path) -> None:
    """Lets a held import go on; returns once it has found no space for its events."""
    with capture_logs() as lines:
        gate.touch()
        async with asyncio.timeout(10):
            while not any("no space for the events" in line["event"] for line in lines):  # noqa: ASYNC110 - only the log tells of it
                await asyncio.sleep(0.01)


async def opened_upload(stubs: Stubs) -> str:
    created = await stubs.blobs.CreateUpload(create_request(DATA))
    return created.upload.name


def chunk(name: str) -> blobs_pb2.WriteChunkRequest:
    return blobs_pb2.WriteChunkRequest(
        upload=name, offset=0, data=DATA, crc32c=google_crc32c.value(DATA)
    )


async def test_a_chunk_that_finds_no_space_is_not_committed(server: Running) -> None:
    name = await opened_upload(server.stubs)
    file = server.platform.data_dir / "uploads" / name
    file.symlink_to("/dev/full")
    assert_disk_full(await refusal_of(server.stubs.blobs.WriteChunk(chunk(name))))
    found = await server.stubs.blobs.GetUpload(blobs_pb2.GetUploadRequest(name=name))
    assert found.upload.committed_size_bytes == 0
    file.unlink()
    await server.stubs.blobs.WriteChunk(chunk(name))
    done = await server.stubs.blobs.CompleteUpload(blobs_pb2.CompleteUploadRequest(name=name))
    assert done.blob.digest == digest_of(DATA)


async def first_refused(server: Running) -> blobs_pb2.CreateUploadRequest:
    """Creates until the database's pages are full; answers what it took no more."""
    for number in range(1_000):
        request = create_request(str(number).encode())
        try:
            await server.stubs.blobs.CreateUpload(request)
        except grpc.aio.AioRpcError:
            return request
    raise AssertionError("the database took everything")


async def test_a_create_that_finds_no_space_can_be_repeated(server: Running) -> None:
    await limit_database(server, 1)
    request = await first_refused(server)
    assert_disk_full(await refusal_of(server.stubs.blobs.CreateUpload(request)))
    await server.stubs.datasets.ListImports(imports_pb2.ListImportsRequest())
    await limit_database(server, 1_000_000)
    created = await server.stubs.blobs.CreateUpload(request)
    assert not created.deduplicated


async def test_an_import_that_finds_no_space_fails_with_that_reason(
    tmp_path: Path, root: Path
) -> None:
    full = True

    def failpoint(name: str) -> None:
        if full and name == "blob.staged":
            raise OSError(errno.ENOSPC, "No space left on device", str(root))

    overrides = {"datasets.import_roots": (root,)}
    async with running(tmp_path / "data", overrides=overrides, failpoint=failpoint) as server:
        failed = await imported(server.stubs, "cats")
        assert failed.status.state == job_pb2.JOB_STATE_FAILED
        assert failed.status.error.reason == errors_pb2.ERROR_REASON_DISK_FULL
        assert failed.status.error.message == "the server's disk is full"
        assert failed.status.error.error_id
        full = False
        done = await imported(server.stubs, "cats")
        assert done.status.state == job_pb2.JOB_STATE_SUCCEEDED


async def test_an_import_ends_once_there_is_space_to_write_it(tmp_path: Path, root: Path) -> None:
    gate = tmp_path / "gate"
    overrides = {"datasets.import_roots": (root,)}
    failpoint = Failpoints(parse(f"import.before_publish=hold:{gate}"))
    async with running(tmp_path / "data", overrides=overrides, failpoint=failpoint) as server:
        created = await server.stubs.datasets.CreateImport(import_request("cats"))
        name = created.import_job.name
        async for message in server.stubs.datasets.WatchImport(
            imports_pb2.WatchImportRequest(name=name, replay=True)
        ):
            if message.event.progress.num_files_done == 1:
                break  # nothing is left to tell but its end
        await server.platform.database.write(let_events_be_large)
        await limit_database(server, 1)
        await touch_and_meet_the_full_disk(gate)
        await limit_database(server, 1_000_000)
        ended = await finished(server.stubs, name)
        assert ended.status.state == job_pb2.JOB_STATE_FAILED
        assert ended.status.error.reason == errors_pb2.ERROR_REASON_DISK_FULL
        again = await imported(server.stubs, "cats")
        assert again.status.state == job_pb2.JOB_STATE_SUCCEEDED


async def test_what_an_import_tells_waits_for_space_and_is_not_lost(
    tmp_path: Path, root: Path
) -> None:
    """The note is taken from the import while nothing can be written, and the import ends meanwhile."""
    (root / "cats" / "zebra.png").write_bytes(b"no picture")
    staged, published = tmp_path / "staged", tmp_path / "published"
    failpoint = Failpoints(
        parse(f"blob.staged=hold:{staged},import.before_publish=hold:{published}")
    )
    overrides = {"datasets.import_roots": (root,)}
    async with running(tmp_path / "data", overrides=overrides, failpoint=failpoint) as server:
        request = import_request("cats", refused_files=imports_pb2.REFUSED_FILE_POLICY_SKIP)
        created = await server.stubs.datasets.CreateImport(request)
        name = created.import_job.name
        await begun(server, name)
        await server.platform.database.write(let_events_be_large)
        await limit_database(server, 1)
        await touch_and_meet_the_full_disk(staged)
        published.touch()
        await limit_database(server, 1_000_000)
        ended = await finished(server.stubs, name)
        messages = await watched(server, name, replay=True)
    assert ended.status.state == job_pb2.JOB_STATE_SUCCEEDED
    notes = [message.event.note for message in messages if message.event.HasField("note")]
    assert [(note.file_name, note.refused) for note in notes] == [("zebra.png", True)]


async def test_a_cancel_that_finds_no_space_is_refused_and_the_import_goes_on(
    tmp_path: Path, root: Path
) -> None:
    """A cancel that was answered holds for ever; this one could not be written down."""
    gate = tmp_path / "gate"
    overrides = {"datasets.import_roots": (root,)}
    failpoint = Failpoints(parse(f"import.before_publish=hold:{gate}"))
    async with running(tmp_path / "data", overrides=overrides, failpoint=failpoint) as server:
        created = await server.stubs.datasets.CreateImport(import_request("cats"))
        cancel = imports_pb2.CancelImportRequest(name=created.import_job.name)
        await begun(server, cancel.name)
        await server.platform.database.write(let_events_be_large)
        await limit_database(server, 1)
        assert_disk_full(await refusal_of(server.stubs.datasets.CancelImport(cancel)))
        found = await server.stubs.datasets.GetImport(
            imports_pb2.GetImportRequest(name=cancel.name)
        )
        assert found.import_job.status.state == job_pb2.JOB_STATE_RUNNING
        await limit_database(server, 1_000_000)
        await server.stubs.datasets.CancelImport(cancel)
        gate.touch()
        ended = await finished(server.stubs, cancel.name)
    assert ended.status.state == job_pb2.JOB_STATE_CANCELLED


async def test_a_log_that_finds_no_space_changes_no_answer(tmp_path: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        async with server_process(tmp_path / "data", stderr=full) as (_, stubs):
            name = await opened_upload(stubs)
            (tmp_path / "data" / "uploads" / name).mkdir()
            refusal = await refusal_of(stubs.blobs.WriteChunk(chunk(name)))
    finally:
        os.close(full)
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    assert refusal.message == "internal error"
    assert refusal.details["error_id"]
