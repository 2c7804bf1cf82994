"""SIGKILL of the datasets service at every place of an import, and right after every answer."""

import uuid
from pathlib import Path
from typing import Any

import google_crc32c
import grpc
import pytest

from datasets_server import Stubs, finished, import_request, imported, server_process
from pictures import write_pictures
from sfumato.blobs.v1 import blobs_pb2
from sfumato.datasets.v1 import datasets_pb2 as pb
from sfumato.datasets.v1 import imports_pb2, versions_pb2
from sfumato.job.v1 import job_pb2
from sfumato_chassis.blobs import digest_of
from sfumato_chassis.failpoints import VARIABLE

NUM_FIRST = 2
NUM_ADDED = 3
NUM_CREATES = 50
PLACES = [
    *(f"{place}=kill@{passage}" for place in ("blob.staged", "blob.flushed") for passage in (1, 3)),
    # The last blob is the manifest.
    *(f"blob.renamed=kill@{passage}" for passage in (1, NUM_ADDED, NUM_ADDED + 1)),
    "import.before_publish=kill",
    "import.published=kill",
]


async def samples_of(stubs: Stubs, **reference: Any) -> list[str]:
    """File names in a version; every image is read whole, which checks its digest."""
    request = pb.StreamSamplesRequest(version=versions_pb2.VersionRef(dataset="cats", **reference))
    names = []
    async for message in stubs.datasets.StreamSamples(request):
        if message.HasField("sample"):
            names.append(message.sample.file_name)
            read = blobs_pb2.ReadBlobRequest(digest=message.sample.image.digest)
            chunks = [part.chunk async for part in stubs.blobs.ReadBlob(read)]
            assert digest_of(b"".join(chunks)) == message.sample.image.digest
    return names


async def watched(stubs: Stubs, name: str, after_sequence: int, log_id: str) -> list[Any]:
    request = imports_pb2.WatchImportRequest(
        name=name, after_sequence=after_sequence, log_id=log_id, replay=after_sequence == 0
    )
    return [message async for message in stubs.datasets.WatchImport(request)]


async def events_until_lost(stubs: Stubs, name: str) -> list[imports_pb2.ImportEvent]:
    events: list[imports_pb2.ImportEvent] = []
    stream = stubs.datasets.WatchImport(imports_pb2.WatchImportRequest(name=name, replay=True))
    try:
        async for message in stream:
            events += [message.event] if message.HasField("event") else []
    except grpc.aio.AioRpcError:
        return events
    raise AssertionError("the server was to be killed")


@pytest.mark.parametrize("place", PLACES)
async def test_killed_at_any_place_an_import_ends_as_if_it_was_not(
    tmp_path: Path, place: str
) -> None:
    root, data_dir = tmp_path / "root", tmp_path / "data"
    write_pictures(root / "first", NUM_FIRST)
    write_pictures(root / "second", NUM_ADDED, first=NUM_FIRST)
    async with server_process(data_dir, roots=(root,)) as (_, stubs):
        before = await imported(stubs, "first")
    async with server_process(data_dir, roots=(root,), environment={VARIABLE: place}) as (
        server,
        stubs,
    ):
        created = await stubs.datasets.CreateImport(
            import_request("second", mode=imports_pb2.IMPORT_MODE_ADD)
        )
        name, log_id = created.import_job.name, created.import_job.status.log_id
        delivered = await events_until_lost(stubs, name)
        assert await server.ended() == -9
    async with server_process(data_dir, roots=(root,)) as (_, stubs):
        old = [f"picture_{index:04d}.png" for index in range(NUM_FIRST)]
        new = [f"picture_{index:04d}.png" for index in range(NUM_FIRST + NUM_ADDED)]
        assert await samples_of(stubs) in (old, new)
        after = delivered[-1].header.sequence if delivered else 0
        messages = await watched(stubs, name, after, log_id)
        delivered += [message.event for message in messages if message.HasField("event")]
        sequences = [event.header.sequence for event in delivered]
        assert sequences == list(range(1, len(sequences) + 1))
        end = messages[-1].finished
        assert end.status.state == job_pb2.JOB_STATE_SUCCEEDED
        assert end.status.last_sequence == sequences[-1]
        assert end.status.attempt == (1 if place.startswith("import.published") else 2)
        assert end.version.number == 2
        assert await samples_of(stubs) == new
        assert await samples_of(stubs, number=1) == old
        assert before.version.num_samples == NUM_FIRST


async def test_a_manual_import_is_told_as_interrupted(tmp_path: Path) -> None:
    root, data_dir = tmp_path / "root", tmp_path / "data"
    write_pictures(root / "cats", 2)
    killing = {VARIABLE: "blob.staged=kill@2"}
    manual = job_pb2.INTERRUPTION_POLICY_MANUAL
    request = import_request("cats", interruption_policy=manual)
    async with server_process(data_dir, roots=(root,), environment=killing) as (server, stubs):
        created = await stubs.datasets.CreateImport(request)
        assert await server.ended() == -9
    async with server_process(data_dir, roots=(root,)) as (_, stubs):
        end = await finished(stubs, created.import_job.name)
        assert end.status.state == job_pb2.JOB_STATE_INTERRUPTED
        listed = await stubs.datasets.ListDatasets(pb.ListDatasetsRequest())
        assert not listed.datasets
        assert (await imported(stubs, "cats")).version.number == 1


async def test_every_acknowledged_create_is_there(tmp_path: Path) -> None:
    root, data_dir = tmp_path / "root", tmp_path / "data"
    write_pictures(root / "cats", 1)
    waiting = {VARIABLE: f"import.before_publish=hold:{tmp_path / 'never'}"}
    names: dict[str, str] = {}
    num_lives = 5
    for _ in range(num_lives):
        async with server_process(data_dir, roots=(root,), environment=waiting) as (
            server,
            stubs,
        ):
            for _ in range(NUM_CREATES // num_lives):
                request_id = str(uuid.uuid4())
                request = import_request("cats", f"set {len(names)}", request_id=request_id)
                created = await stubs.datasets.CreateImport(request)
                names[request_id] = created.import_job.name
            server.kill()
    async with server_process(data_dir, roots=(root,), environment=waiting) as (_, stubs):
        listed = await stubs.datasets.ListImports(imports_pb2.ListImportsRequest(page_size=200))
        assert {job.name for job in listed.imports} == set(names.values())
        for index, (request_id, name) in enumerate(names.items()):
            request = import_request("cats", f"set {index}", request_id=request_id)
            again = await stubs.datasets.CreateImport(request)
            assert again.deduplicated
            assert again.import_job.name == name


async def test_an_upload_goes_on_after_a_kill(tmp_path: Path) -> None:
    data = bytes(range(256)) * 64
    half = len(data) // 2

    def chunk(name: str, offset: int, part: bytes) -> blobs_pb2.WriteChunkRequest:
        return blobs_pb2.WriteChunkRequest(
            upload=name, offset=offset, data=part, crc32c=google_crc32c.value(part)
        )

    request = blobs_pb2.CreateUploadRequest(
        request_id=str(uuid.uuid4()), digest=digest_of(data), size_bytes=len(data)
    )
    async with server_process(tmp_path / "data") as (server, stubs):
        opened = await stubs.blobs.CreateUpload(request)
        await stubs.blobs.WriteChunk(chunk(opened.upload.name, 0, data[:half]))
        server.kill()
    async with server_process(tmp_path / "data") as (_, stubs):
        again = await stubs.blobs.CreateUpload(request)
        assert again.deduplicated
        assert again.upload.name == opened.upload.name
        assert again.upload.committed_size_bytes == half
        await stubs.blobs.WriteChunk(chunk(opened.upload.name, half, data[half:]))
        done = await stubs.blobs.CompleteUpload(
            blobs_pb2.CompleteUploadRequest(name=opened.upload.name)
        )
        assert done.blob.digest == digest_of(data)
