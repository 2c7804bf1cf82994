import asyncio
import uuid
from pathlib import Path

import grpc
import pytest

from datasets_server import (
    Running,
    begun,
    finished,
    import_request,
    imported,
    running,
    upload,
    watched,
)
from pictures import picture, write_pictures
from refusals import refusal_of
from sfumato.datasets.v1 import datasets_pb2 as pb
from sfumato.datasets.v1 import imports_pb2, versions_pb2
from sfumato.job.v1 import errors_pb2, job_pb2
from sfumato_chassis.failpoints import Failpoints, parse


async def test_an_import_holds_its_first_500_notes(server: Running, root: Path) -> None:
    for index in range(510):
        (root / "cats" / f"other_{index:03d}.dat").write_bytes(b"")
    end = await imported(server.stubs, "cats")
    messages = await watched(server, end.name, replay=True)
    notes = [message.event.note for message in messages if message.event.HasField("note")]
    assert len(notes) == 510
    assert list(end.notes) == notes[:500]


async def test_a_folder_becomes_a_version(server: Running) -> None:
    created = await server.stubs.datasets.CreateImport(import_request("cats"))
    job = created.import_job
    assert not created.deduplicated
    # The answer shows the job as it is: its turn may have come in between.
    assert job.status.state in {job_pb2.JOB_STATE_QUEUED, job_pb2.JOB_STATE_RUNNING}
    assert (job.dataset, job.owner) == ("cats", "local")
    assert job.mode == imports_pb2.IMPORT_MODE_REQUIRE_EMPTY
    assert job.refused_files == imports_pb2.REFUSED_FILE_POLICY_STOP
    end = await finished(server.stubs, job.name)
    assert end.status.state == job_pb2.JOB_STATE_SUCCEEDED
    assert end.status.attempt == 1
    assert (end.progress.num_files_done, end.progress.num_files) == (3, 3)
    assert (end.version.number, end.version.num_samples, end.version.num_captioned) == (1, 3, 3)
    assert end.version.size_bytes == sum(len(picture(index)) for index in range(3))


async def test_replay_gives_1_to_n_and_the_end(server: Running) -> None:
    end = await imported(server.stubs, "cats")
    messages = await watched(server, end.name, replay=True)
    assert messages[0].HasField("attached")
    assert messages[0].attached.heartbeat_interval.ToTimedelta().total_seconds() == 10
    sequences = [message.event.header.sequence for message in messages[1:-1]]
    assert sequences == list(range(1, end.status.last_sequence + 1))
    assert messages[-1].finished == end
    kinds = [message.event.WhichOneof("event") for message in messages[1:-1]]
    assert [kinds[0], kinds[1], kinds[-1]] == ["queued", "started", "succeeded"]
    assert messages[-2].event.succeeded == end.version


async def test_a_finished_import_gives_a_snapshot(server: Running) -> None:
    end = await imported(server.stubs, "cats")
    messages = await watched(server, end.name)
    assert [message.WhichOneof("message") for message in messages] == [
        "attached",
        "snapshot",
        "finished",
    ]
    assert messages[1].snapshot == messages[2].finished == end


async def test_fifty_watchers_see_the_same(held: tuple[Running, Path]) -> None:
    server, gate = held
    created = await server.stubs.datasets.CreateImport(import_request("cats"))
    name = created.import_job.name
    watchers = [asyncio.ensure_future(watched(server, name, replay=True)) for _ in range(50)]
    await begun(server, name)
    gate.touch()
    seen = await asyncio.gather(*watchers)
    last = seen[0][-1].finished.status.last_sequence
    for messages in seen:
        sequences = [m.event.header.sequence for m in messages if m.HasField("event")]
        assert sequences == list(range(1, last + 1))


async def test_uploads_become_a_version(server: Running) -> None:
    files = {"a.png": picture(1), "b.png": picture(2), "a.txt": b"first", "b.txt": b"second"}
    digests = {name: await upload(server.stubs, data) for name, data in files.items()}
    request = imports_pb2.CreateImportRequest(
        request_id=str(uuid.uuid4()),
        dataset="uploaded",
        upload=imports_pb2.UploadSource(
            files=[
                imports_pb2.UploadedFile(file_name=name, digest=digest)
                for name, digest in digests.items()
            ]
        ),
    )
    created = await server.stubs.datasets.CreateImport(request)
    end = await finished(server.stubs, created.import_job.name)
    assert end.status.state == job_pb2.JOB_STATE_SUCCEEDED
    listed = await server.stubs.datasets.ListSamples(
        pb.ListSamplesRequest(version=versions_pb2.VersionRef(dataset="uploaded"))
    )
    assert [(sample.file_name, sample.caption) for sample in listed.samples] == [
        ("a.png", "first"),
        ("b.png", "second"),
    ]
    assert [sample.image.digest for sample in listed.samples] == [
        digests["a.png"],
        digests["b.png"],
    ]


async def test_an_upload_damaged_on_the_disk_is_never_used(server: Running) -> None:
    digest = await upload(server.stubs, picture(1))
    path = server.platform.blobs.folder.path(digest)
    path.write_bytes(picture(2))
    created = await server.stubs.datasets.CreateImport(
        imports_pb2.CreateImportRequest(
            request_id=str(uuid.uuid4()),
            dataset="damaged",
            upload=imports_pb2.UploadSource(
                files=[imports_pb2.UploadedFile(file_name="a.png", digest=digest)]
            ),
        )
    )
    end = await finished(server.stubs, created.import_job.name)
    assert end.status.error.reason == errors_pb2.ERROR_REASON_FILES_REFUSED
    assert [note.reason for note in end.notes] == ["FILE_UNREADABLE"]


async def test_sixteen_identical_creates_make_one_import(server: Running) -> None:
    request = import_request("cats")
    answers = await asyncio.gather(
        *(server.stubs.datasets.CreateImport(request) for _ in range(16))
    )
    assert len({answer.import_job.name for answer in answers}) == 1
    assert sorted(answer.deduplicated for answer in answers) == [False] + [True] * 15
    end = await finished(server.stubs, answers[0].import_job.name)
    assert end.version.number == 1
    listed = await server.stubs.datasets.ListImports(imports_pb2.ListImportsRequest())
    assert len(listed.imports) == 1


async def test_a_repeated_create_needs_its_folder_no_more(server: Running, root: Path) -> None:
    request = import_request("cats")
    created = await server.stubs.datasets.CreateImport(request)
    await finished(server.stubs, created.import_job.name)
    (root / "cats").rename(root / "elsewhere")
    again = await server.stubs.datasets.CreateImport(request)
    assert again.deduplicated
    assert again.import_job.name == created.import_job.name
    assert again.import_job.status.state == job_pb2.JOB_STATE_SUCCEEDED


async def test_a_second_import_is_told_who_holds_the_dataset(held: tuple[Running, Path]) -> None:
    server, gate = held
    first = await server.stubs.datasets.CreateImport(import_request("cats"))
    refusal = await refusal_of(
        server.stubs.datasets.CreateImport(import_request("cats", mode=imports_pb2.IMPORT_MODE_ADD))
    )
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.ABORTED, "DATASET_BUSY")
    assert refusal.details["holder"] == first.import_job.name
    other = await server.stubs.datasets.CreateImport(import_request("cats", "other"))
    assert other.import_job.status.queue_position >= 1
    gate.touch()
    for created in (first, other):
        end = await finished(server.stubs, created.import_job.name)
        assert end.status.state == job_pb2.JOB_STATE_SUCCEEDED


async def test_a_dataset_that_holds_something_is_not_written_over(
    server: Running, root: Path
) -> None:
    await imported(server.stubs, "cats")
    refusal = await refusal_of(server.stubs.datasets.CreateImport(import_request("cats")))
    assert refusal.code is grpc.StatusCode.FAILED_PRECONDITION
    assert refusal.reason == "DATASET_NOT_EMPTY"
    write_pictures(root / "more", 2, first=10)
    added = await imported(server.stubs, "more", mode=imports_pb2.IMPORT_MODE_ADD)
    assert (added.version.number, added.version.num_samples) == (2, 5)
    versions = server.stubs.datasets.ListDatasetVersions
    first = await versions(pb.ListDatasetVersionsRequest(dataset="cats", page_size=1))
    second = await versions(
        pb.ListDatasetVersionsRequest(dataset="cats", page_size=1, page_token=first.next_page_token)
    )
    assert [page.versions[0].number for page in (first, second)] == [2, 1]
    assert second.next_page_token == ""
    found = await server.stubs.datasets.GetDataset(pb.GetDatasetRequest(name="cats"))
    assert found.dataset.latest_version == added.version


@pytest.mark.parametrize("path", ["absent", "/etc", "../data", "..", "cats/../../data", "cats/a"])
async def test_missing_and_forbidden_folders_answer_alike(server: Running, path: str) -> None:
    refusal = await refusal_of(server.stubs.datasets.CreateImport(import_request(path)))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.NOT_FOUND, "PATH_NOT_FOUND")
    assert refusal.message == f"no folder {path!r} under the allowed folders"


async def test_refused_files_stop_an_import_and_leave_nothing(server: Running, root: Path) -> None:
    (root / "cats" / "broken.png").write_bytes(b"\x89PNG\r\n")
    end = await imported(server.stubs, "cats")
    assert end.status.state == job_pb2.JOB_STATE_FAILED
    assert end.status.error.reason == errors_pb2.ERROR_REASON_FILES_REFUSED
    assert [(note.file_name, note.refused) for note in end.notes] == [("broken.png", True)]
    refusal = await refusal_of(server.stubs.datasets.GetDataset(pb.GetDatasetRequest(name="cats")))
    assert refusal.reason == "RESOURCE_NOT_FOUND"
    skipping = await imported(
        server.stubs, "cats", refused_files=imports_pb2.REFUSED_FILE_POLICY_SKIP
    )
    assert skipping.version.num_samples == 3
    listed = await server.stubs.datasets.ListImports(imports_pb2.ListImportsRequest())
    assert [len(job.notes) for job in listed.imports] == [0, 0]


async def test_an_empty_folder_makes_no_dataset(server: Running, root: Path) -> None:
    (root / "empty").mkdir()
    end = await imported(server.stubs, "empty")
    assert end.status.error.reason == errors_pb2.ERROR_REASON_DATASET_EMPTY


async def test_deleting_leaves_the_request_id_and_the_dataset(server: Running) -> None:
    request = import_request("cats")
    created = await server.stubs.datasets.CreateImport(request)
    name = created.import_job.name
    await finished(server.stubs, name)
    await server.stubs.datasets.DeleteImport(imports_pb2.DeleteImportRequest(name=name))
    for call in (
        server.stubs.datasets.GetImport(imports_pb2.GetImportRequest(name=name)),
        server.stubs.datasets.WatchImport(imports_pb2.WatchImportRequest(name=name)),
        server.stubs.datasets.DeleteImport(imports_pb2.DeleteImportRequest(name=name)),
    ):
        refusal = await refusal_of(call)
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.NOT_FOUND, "JOB_EXPIRED")
    again = await server.stubs.datasets.CreateImport(request)
    assert again.deduplicated
    assert again.import_job.name == name
    assert again.import_job.status.state == job_pb2.JOB_STATE_EXPIRED
    found = await server.stubs.datasets.GetDataset(pb.GetDatasetRequest(name="cats"))
    assert found.dataset.latest_version.number == 1


async def test_a_running_import_is_not_deleted(held: tuple[Running, Path]) -> None:
    server, gate = held
    created = await server.stubs.datasets.CreateImport(import_request("cats"))
    refusal = await refusal_of(
        server.stubs.datasets.DeleteImport(
            imports_pb2.DeleteImportRequest(name=created.import_job.name)
        )
    )
    assert refusal.reason == "JOB_STATE_UNSUITABLE"
    gate.touch()
    await finished(server.stubs, created.import_job.name)


async def test_validate_only_creates_nothing(server: Running) -> None:
    request = import_request("cats", validate_only=True)
    answer = await server.stubs.datasets.CreateImport(request)
    assert not answer.import_job.HasField("status")
    assert answer.import_job.mode == imports_pb2.IMPORT_MODE_REQUIRE_EMPTY
    assert not (await server.stubs.datasets.ListImports(imports_pb2.ListImportsRequest())).imports
    refusal = await refusal_of(
        server.stubs.datasets.CreateImport(import_request("absent", validate_only=True))
    )
    assert refusal.reason == "PATH_NOT_FOUND"
    request.validate_only = False
    assert not (await server.stubs.datasets.CreateImport(request)).deduplicated


async def test_a_full_queue_says_when_to_come_back(tmp_path: Path, root: Path) -> None:
    gate = tmp_path / "gate"
    holding = Failpoints(parse(f"import.before_publish=hold:{gate}"))
    overrides = {
        "datasets.import_roots": (root,),
        "datasets.max_concurrent_imports": 1,
        "datasets.max_queued_imports": 2,
    }
    async with running(tmp_path / "data", failpoint=holding, overrides=overrides) as server:
        first = await server.stubs.datasets.CreateImport(import_request("cats"))
        await begun(server, first.import_job.name)
        for index in range(2):
            await server.stubs.datasets.CreateImport(import_request("cats", f"c{index}"))
        refusal = await refusal_of(server.stubs.datasets.CreateImport(import_request("cats", "c2")))
        gate.touch()
    assert (refusal.code, refusal.reason) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "QUEUE_FULL",
    )
    assert refusal.retry_after_seconds == 10
