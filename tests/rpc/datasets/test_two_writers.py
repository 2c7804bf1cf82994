"""Sixteen clients and one dataset: one wins, nothing is merged, nothing is stored twice."""

import asyncio
import uuid
from collections import Counter
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from sqlalchemy import select

from datasets_server import (
    Running,
    Stubs,
    begun,
    finished,
    import_request,
    imported,
    server_process,
    upload,
)
from pictures import picture, write_pictures
from refusals import AioCall, Refusal, read_refusal, refusal_of
from sfumato.datasets.v1 import datasets_pb2 as pb
from sfumato.datasets.v1 import imports_pb2, versions_pb2
from sfumato.job.v1 import errors_pb2, job_pb2
from sfumato_chassis.blobs import FOLDER, digest_of
from sfumato_chassis.failpoints import VARIABLE
from sfumato_chassis.tables import blobs
from sfumato_datasets.engine import ImportEngine
from sfumato_datasets.locks import take_lock

NUM_CLIENTS = 16


async def file_names(server: Running, dataset: str) -> list[str]:
    version = versions_pb2.VersionRef(dataset=dataset)
    listed = await server.stubs.datasets.ListSamples(pb.ListSamplesRequest(version=version))
    return [sample.file_name for sample in listed.samples]


async def outcomes(calls: list[Any]) -> tuple[list[Any], list[Refusal]]:
    """What was answered and what was refused, of calls made at once."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    refused = [a for a in answers if isinstance(a, grpc.aio.AioRpcError)]
    return (
        [a for a in answers if not isinstance(a, BaseException)],
        [read_refusal(AioCall(error)) for error in refused],
    )


async def test_of_different_contents_one_wins_and_holds_exactly_its_files(
    held: tuple[Running, Path], root: Path
) -> None:
    server, gate = held
    for client in range(NUM_CLIENTS):
        write_pictures(root / f"client_{client}", 2, first=10 * client)
    requests = [import_request(f"client_{client}", "shared") for client in range(NUM_CLIENTS)]
    done, refused = await outcomes([server.stubs.datasets.CreateImport(r) for r in requests])
    assert (len(done), len(refused)) == (1, 15)
    winner = done[0].import_job
    assert {(r.code, r.reason) for r in refused} == {(grpc.StatusCode.ABORTED, "DATASET_BUSY")}
    assert {r.details["holder"] for r in refused} == {winner.name}
    gate.touch()
    end = await finished(server.stubs, winner.name)
    assert end.status.state == job_pb2.JOB_STATE_SUCCEEDED
    pictures = sorted(path.name for path in (root / winner.folder.path).glob("*.png"))
    assert await file_names(server, "shared") == pictures
    late = await refusal_of(server.stubs.datasets.CreateImport(import_request("cats", "shared")))
    assert (late.code, late.reason) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "DATASET_NOT_EMPTY",
    )


async def test_one_request_sixteen_times_is_one_version(server: Running) -> None:
    request = import_request("cats")
    done, refused = await outcomes(
        [server.stubs.datasets.CreateImport(request) for _ in range(NUM_CLIENTS)]
    )
    assert refused == []
    assert len({answer.import_job.name for answer in done}) == 1
    assert sorted(answer.deduplicated for answer in done) == [False, *[True] * 15]
    await finished(server.stubs, done[0].import_job.name)
    listed = await server.stubs.datasets.ListDatasetVersions(
        pb.ListDatasetVersionsRequest(dataset="cats")
    )
    assert [version.number for version in listed.versions] == [1]


async def test_the_same_content_in_sixteen_datasets_is_stored_once(
    server: Running, root: Path
) -> None:
    names = [f"dataset {number}" for number in range(NUM_CLIENTS)]
    ends = await asyncio.gather(*(imported(server.stubs, "cats", name) for name in names))
    assert {end.version.digest for end in ends} == {ends[0].version.digest}
    stored = [path.name for path in (server.platform.blobs.folder.root / FOLDER).glob("*/*")]
    images = [sample.image.digest for sample in await samples(server, names[0])]
    # Three images with their previews, the manifest and its blocks, statistics, duplicates.
    assert max(Counter(stored).values()) == 1
    assert {f"sha256:{name}" for name in stored} >= set(images)
    assert len(stored) <= 2 * 3 + 3 + 3
    rows = await server.platform.database.read(
        lambda connection: connection.execute(select(blobs.c.digest)).scalars().all()
    )
    assert sorted(rows) == sorted(f"sha256:{name}" for name in stored)


async def test_sixteen_clients_of_a_server_of_its_own(tmp_path: Path, root: Path) -> None:
    gate = tmp_path / "gate"
    for client in range(NUM_CLIENTS):
        write_pictures(root / f"client_{client}", 2, first=10 * client)
    requests = [import_request(f"client_{client}", "shared") for client in range(NUM_CLIENTS)]
    held = {VARIABLE: f"import.before_publish=hold:{gate}"}
    async with (
        server_process(tmp_path / "data", roots=(root,), environment=held) as (process, _),
        AsyncExitStack() as stack,
    ):
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(process.address))
            for _ in range(NUM_CLIENTS)
        ]
        clients = [Stubs(channel) for channel in channels]
        done, refused = await outcomes(
            [s.datasets.CreateImport(r) for s, r in zip(clients, requests, strict=True)]
        )
        winner = done[0].import_job
        told = [(r.code, r.reason, r.details["holder"]) for r in refused]
        assert told == [(grpc.StatusCode.ABORTED, "DATASET_BUSY", winner.name)] * 15
        gate.touch()
        await finished(clients[0], winner.name)
        version = versions_pb2.VersionRef(dataset="shared")
        listed = await clients[1].datasets.ListSamples(pb.ListSamplesRequest(version=version))
        pictures = sorted((root / winner.folder.path).glob("*.png"))
        assert [sample.file_name for sample in listed.samples] == [p.name for p in pictures]
        assert [sample.image.digest for sample in listed.samples] == [
            digest_of(path.read_bytes()) for path in pictures
        ]


async def samples(server: Running, dataset: str) -> Any:
    version = versions_pb2.VersionRef(dataset=dataset)
    listed = await server.stubs.datasets.ListSamples(pb.ListSamplesRequest(version=version))
    return listed.samples


async def test_a_refused_first_import_leaves_no_dataset(server: Running, root: Path) -> None:
    (root / "cats" / "broken.png").write_bytes(picture(5)[:-20])
    end = await imported(server.stubs, "cats")
    assert end.status.state == job_pb2.JOB_STATE_FAILED
    assert [note.file_name for note in end.notes] == ["broken.png"]
    refusal = await refusal_of(server.stubs.datasets.GetDataset(pb.GetDatasetRequest(name="cats")))
    assert refusal.code == grpc.StatusCode.NOT_FOUND
    listed = await server.stubs.datasets.ListDatasets(pb.ListDatasetsRequest())
    assert list(listed.datasets) == []


async def test_a_file_of_the_same_name_is_never_lost_to_an_import(
    server: Running, root: Path
) -> None:
    await imported(server.stubs, "cats")
    before = [sample.image.digest for sample in await samples(server, "cats")]
    other = write_pictures(root / "others", 2, first=1)
    (other / "picture_0001.png").write_bytes(picture(77))
    refused = await imported(server.stubs, "others", mode="IMPORT_MODE_ADD")
    assert refused.status.error.reason == errors_pb2.ERROR_REASON_FILES_REFUSED
    assert [sample.image.digest for sample in await samples(server, "cats")] == before
    skipped = await imported(
        server.stubs,
        "others",
        mode="IMPORT_MODE_ADD",
        refused_files="REFUSED_FILE_POLICY_SKIP",
    )
    assert {note.file_name: note.reason for note in skipped.notes} == {
        "picture_0001.png": "NAME_TAKEN",
        "picture_0002.png": "ALREADY_PRESENT",
    }


async def test_an_import_whose_dataset_was_taken_publishes_nothing(
    held: tuple[Running, Path],
) -> None:
    """As when its server had stood still for longer than its hold lasts."""
    server, gate = held
    created = await server.stubs.datasets.CreateImport(import_request("cats"))
    await begun(server, created.import_job.name)
    later = server.platform.clock.now() + timedelta(minutes=2)
    await server.platform.database.write(
        lambda connection: take_lock(connection, "local", "cats", holder="another", now=later)
    )
    gate.touch()
    end = await finished(server.stubs, created.import_job.name)
    assert end.status.error.reason == errors_pb2.ERROR_REASON_DATASET_BUSY
    assert end.status.error.details == {"holder": "another"}
    refusal = await refusal_of(server.stubs.datasets.GetDataset(pb.GetDatasetRequest(name="cats")))
    assert refusal.code == grpc.StatusCode.NOT_FOUND


async def test_a_hold_is_renewed_while_the_import_waits(
    held: tuple[Running, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _ = held
    created = await server.stubs.datasets.CreateImport(import_request("cats"))
    engine: ImportEngine = server.service._engine
    later = server.platform.clock.now() + timedelta(seconds=20)
    monkeypatch.setattr(engine._platform.clock, "now", lambda: later)
    await server.platform.database.write(engine._renew)
    much_later = later + timedelta(seconds=20)
    monkeypatch.setattr(engine._platform.clock, "now", lambda: much_later)
    refusal = await refusal_of(server.stubs.datasets.CreateImport(import_request("cats")))
    assert (refusal.reason, refusal.details["holder"]) == ("DATASET_BUSY", created.import_job.name)


async def test_uploads_that_come_second_are_refused_too(held: tuple[Running, Path]) -> None:
    server, _ = held
    created = await server.stubs.datasets.CreateImport(import_request("cats"))
    digest = await upload(server.stubs, picture(1))
    request = imports_pb2.CreateImportRequest(
        request_id=str(uuid.uuid4()),
        dataset="cats",
        upload=imports_pb2.UploadSource(
            files=[imports_pb2.UploadedFile(file_name="a.png", digest=digest)]
        ),
    )
    for validate_only in (True, False):
        request.validate_only = validate_only
        refusal = await refusal_of(server.stubs.datasets.CreateImport(request))
        assert refusal.details == {"holder": created.import_job.name}
