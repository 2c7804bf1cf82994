"""Stops, and sources that hang."""

import asyncio
import threading
import uuid
from pathlib import Path
from typing import Any

import grpc
import pytest

from datasets_server import Running, finished, import_request, imported, running, upload
from pictures import picture
from refusals import refusal_of
from sfumato.datasets.v1 import datasets_pb2 as pb
from sfumato.datasets.v1 import imports_pb2
from sfumato.job.v1 import job_pb2
from sfumato_chassis.job_store import JobStore
from sfumato_chassis.jobs import ACTIVE, Job, JobState, NewEvent
from sfumato_chassis.platform import DrainLimits, Platform
from sfumato_chassis.threads import MAX_READERS
from sfumato_datasets import engine
from sfumato_datasets.import_rows import ImportRecord
from sfumato_datasets.imports import Importer

LONG_SECONDS = 30.0


async def test_a_stop_finishes_the_step_of_the_queue_that_it_meets(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import is claimed, and not yet begun, when the stop comes."""
    claimed, go_on = asyncio.Event(), asyncio.Event()
    claim = JobStore.claim

    async def held(store: JobStore, name: str, started: NewEvent) -> Job:
        job = await claim(store, name, started)
        claimed.set()
        await go_on.wait()
        return job

    monkeypatch.setattr(JobStore, "claim", held)
    created = await server.stubs.datasets.CreateImport(import_request("cats"))
    await asyncio.wait_for(claimed.wait(), LONG_SECONDS)
    stopping = asyncio.create_task(server.server.stop())
    await asyncio.wait_for(server.platform.draining.wait(), LONG_SECONDS)
    go_on.set()
    await asyncio.wait_for(stopping, LONG_SECONDS)
    jobs = server.service._engine.jobs
    assert await jobs.in_states(*ACTIVE) == []
    ended = await jobs.get(created.import_job.name, "local")
    assert (ended.state, ended.failure.reason) == (JobState.QUEUED, "SERVER_DRAINING")


async def test_a_folder_that_hangs_does_not_keep_a_stop_waiting(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = DrainLimits(rest_seconds=0.2, service_seconds=LONG_SECONDS, stream_seconds=0.1)
    monkeypatch.setattr(Platform, "drain_limits", limits)
    begun, go_on = threading.Event(), threading.Event()

    def hang(*_: object) -> None:
        begun.set()
        go_on.wait(LONG_SECONDS)

    monkeypatch.setattr(Importer, "_ingest", hang)
    created = await server.stubs.datasets.CreateImport(import_request("cats"))
    assert await asyncio.to_thread(begun.wait, LONG_SECONDS)
    await asyncio.wait_for(server.server.stop(), LONG_SECONDS / 2)
    ended = await server.service._engine.jobs.get(created.import_job.name, "local")
    go_on.set()
    assert (ended.state, ended.failure.reason) == (JobState.QUEUED, "SERVER_DRAINING")


async def upload_request(server: Running) -> imports_pb2.CreateImportRequest:
    """An import of one picture that was uploaded."""
    file = imports_pb2.UploadedFile(
        file_name="a.png", digest=await upload(server.stubs, picture(1))
    )
    return imports_pb2.CreateImportRequest(
        request_id=str(uuid.uuid4()),
        dataset="uploaded",
        upload=imports_pb2.UploadSource(files=[file]),
    )


async def test_a_cancelled_import_whose_folder_hangs_is_left_behind(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And neither its dataset nor its place is kept from others."""
    monkeypatch.setattr(engine, "CANCEL_SECONDS", 0.2)
    overrides = {"datasets.import_roots": (root,), "datasets.max_concurrent_imports": 1}
    begun, go_on = threading.Event(), threading.Event()
    do_ingest = Importer._ingest

    def hang(importer: Importer, record: ImportRecord, *rest: Any) -> Any:
        if record.folder is not None:
            begun.set()
            go_on.wait(LONG_SECONDS)
        return do_ingest(importer, record, *rest)

    monkeypatch.setattr(Importer, "_ingest", hang)
    async with running(tmp_path / "data", overrides=overrides) as server:
        created = await server.stubs.datasets.CreateImport(import_request("cats", "uploaded"))
        assert await asyncio.to_thread(begun.wait, LONG_SECONDS)
        cancel = imports_pb2.CancelImportRequest(name=created.import_job.name)
        for _ in range(2):
            await server.stubs.datasets.CancelImport(cancel)
        ended = await asyncio.wait_for(
            finished(server.stubs, created.import_job.name), LONG_SECONDS / 2
        )
        assert ended.status.state == job_pb2.JOB_STATE_CANCELLED
        other = await server.stubs.datasets.CreateImport(await upload_request(server))
        done = await asyncio.wait_for(
            finished(server.stubs, other.import_job.name), LONG_SECONDS / 2
        )
        assert done.status.state == job_pb2.JOB_STATE_SUCCEEDED
        go_on.set()


async def test_folders_that_hang_stop_nothing_but_calls_that_name_folders(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = {"datasets.import_roots": (root,), "server.unary_deadline_seconds": 2.0}
    go_on = threading.Event()
    check_source = Importer.check_source

    def hang(importer: Importer, record: ImportRecord) -> None:
        if record.folder is not None:
            go_on.wait(LONG_SECONDS)
        check_source(importer, record)

    async with running(tmp_path / "data", overrides=overrides) as server:
        with monkeypatch.context() as patched:
            patched.setattr(Importer, "check_source", hang)
            refusals = await asyncio.gather(
                *(
                    refusal_of(server.stubs.datasets.CreateImport(import_request("cats", f"c{n}")))
                    for n in range(MAX_READERS + 20)
                )
            )
            assert {refusal.code for refusal in refusals} == {grpc.StatusCode.DEADLINE_EXCEEDED}
            await server.stubs.datasets.ListDatasets(pb.ListDatasetsRequest())
            await server.stubs.datasets.CreateImport(await upload_request(server))
            await asyncio.wait_for(asyncio.to_thread(int), LONG_SECONDS / 2)
        go_on.set()
        done = await imported(server.stubs, "cats")
        assert done.status.state == job_pb2.JOB_STATE_SUCCEEDED
