"""Both ends of the worker channel, with a real worker process."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from job_stores import OWNER
from sfumato.job.v1 import worker_pb2, worker_pb2_grpc
from sfumato_chassis.errors import JobFailure, Reason
from sfumato_chassis.executor import LocalExecutor
from sfumato_chassis.job_store import JobStore
from sfumato_chassis.jobs import interrupted_event
from sfumato_chassis.worker_channel import write_whole
from sfumato_chassis.worker_session import EXIT_BROKEN
from tiny_worker import EXIT_FENCED
from worker_channels import (
    LEASE_SECONDS,
    STARTED,
    OpenChannel,
    data_of,
    exit_code,
    launch,
    running_job,
    seen,
)


async def test_events_arrive_once_each_while_the_service_comes_and_goes(
    store: JobStore, open_channel: OpenChannel, tmp_path: Path
) -> None:
    job = await running_job(store)
    channel, _ = await open_channel()
    handle = await launch(channel, tmp_path, "emit_steps", job, num_steps=400, step_seconds=0.004)
    for count in (20, 120, 240):
        await seen(store, job, "step", count)
        await channel.stop()
        channel, survivors = await open_channel()
        assert [(each.worker_id, each.job, each.fence) for each in survivors] == [
            (handle.worker_id, job.name, job.fence)
        ]
        assert survivors[0].process == handle.process
    await asyncio.wait_for(channel.wait_gone(survivors[0]), 20)
    steps = [data["number"] for data in await data_of(store, job, "step")]
    assert steps == list(range(1, 401))
    _, survivors = await open_channel()
    assert survivors == []


async def test_orders_arrive_even_when_they_came_before_the_worker(
    store: JobStore, open_channel: OpenChannel, tmp_path: Path
) -> None:
    job = await running_job(store)
    channel, _ = await open_channel()
    handle = await launch(channel, tmp_path, "follow_orders", job)
    handle.order("cancel", job.name)
    await seen(store, job, "ordered", 1)
    handle.order("stop", job.name)
    await asyncio.wait_for(channel.wait_gone(handle), 20)
    orders = [data["order"] for data in await data_of(store, job, "ordered")]
    assert orders == ["cancel", "stop"]


async def test_one_worker_does_one_job_after_another(
    store: JobStore, open_channel: OpenChannel, tmp_path: Path
) -> None:
    channel, _ = await open_channel()
    handle = await launch(channel, tmp_path, "take_work")
    for index in range(3):
        job = await running_job(store)
        handle.give(job.name, job.fence, {"index": index})
        assert await seen(store, job, "did", 1) == [{"index": index}]
    handle.order("stop")
    await asyncio.wait_for(channel.wait_gone(handle), 20)


async def test_a_worker_whose_job_another_attempt_holds_is_turned_away(
    store: JobStore, open_channel: OpenChannel, executor: LocalExecutor, tmp_path: Path
) -> None:
    job = await running_job(store)
    channel, _ = await open_channel()
    handle = await launch(
        channel, tmp_path, "emit_steps", job, num_steps=10_000, step_seconds=0.002
    )
    await seen(store, job, "step", 10)
    failure = JobFailure(reason=Reason.WORKER_DIED, message="given up")
    await store.append(job.name, [interrupted_event(job, failure)])
    second = await store.claim(job.name, STARTED)
    before = len(await data_of(store, job, "step"))
    assert await asyncio.to_thread(exit_code, handle, executor) == EXIT_FENCED
    assert len(await data_of(store, job, "step")) == before
    assert (await store.get(job.name, OWNER)).fence == second.fence


@pytest.mark.parametrize("worker_id", ["", "worker-unknown", None])
async def test_a_stranger_is_turned_away(
    store: JobStore, open_channel: OpenChannel, tmp_path: Path, worker_id: str | None
) -> None:
    job = await running_job(store)
    channel, _ = await open_channel()
    handle = await launch(channel, tmp_path, "follow_orders", job)
    credentials = {
        "worker_id": handle.worker_id if worker_id is None else worker_id,
        "token": "guessed",
    }
    async with grpc.aio.insecure_channel(channel.endpoint_file.read_text()) as line:
        stub = worker_pb2_grpc.WorkerServiceStub(line)
        with pytest.raises(grpc.aio.AioRpcError) as reported:
            await stub.Report(worker_pb2.ReportRequest(**credentials, job=job.name))
        with pytest.raises(grpc.aio.AioRpcError) as attached:
            await anext(aiter(stub.Attach(worker_pb2.AttachRequest(**credentials))))
    for caught in (reported, attached):
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_only_its_own_user_can_read_a_workers_token(
    store: JobStore, open_channel: OpenChannel, tmp_path: Path
) -> None:
    channel, _ = await open_channel()
    handle = await launch(channel, tmp_path, "take_work")
    configuration = tmp_path / "run" / "tests" / f"{handle.worker_id}.json"
    assert configuration.stat().st_mode & 0o077 == 0
    assert os.getsid(handle.process.pid) == handle.process.pid


async def test_a_workers_configuration_goes_when_the_worker_is_gone(
    store: JobStore, open_channel: OpenChannel, executor: LocalExecutor, tmp_path: Path
) -> None:
    """At once, or at the next start for one that ended while the service was away."""
    folder = tmp_path / "run" / "tests"
    channel, _ = await open_channel()
    first, second, third = [await launch(channel, tmp_path, "take_work") for _ in range(3)]
    channel.send_away(first, "stop", within_seconds=LEASE_SECONDS)
    await asyncio.wait_for(channel.wait_gone(first), 20)
    assert {file.stem for file in folder.iterdir()} == {second.worker_id, third.worker_id}
    await channel.stop()
    executor.kill(second.process)
    await executor.wait(second.process)
    await open_channel()
    assert {file.stem for file in folder.iterdir()} == {third.worker_id}


async def test_the_working_folder_holds_nothing_that_a_worker_imports(
    store: JobStore,
    open_channel: OpenChannel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "tiny_worker.py").write_text("raise SystemExit(99)")
    monkeypatch.chdir(elsewhere)
    job = await running_job(store)
    channel, _ = await open_channel()
    await launch(channel, tmp_path, "follow_orders", job)
    await seen(store, job, "ready", 1)


async def test_a_worker_whose_session_breaks_ends(
    store: JobStore, open_channel: OpenChannel, executor: LocalExecutor, tmp_path: Path
) -> None:
    job = await running_job(store)
    channel, _ = await open_channel()
    handle = await launch(channel, tmp_path, "ignore_orders", job)
    await seen(store, job, "ready", 1)
    handle.work = worker_pb2.WorkItem(job=job.name, configuration_json=b"{")
    handle.changed.set()
    assert await asyncio.to_thread(exit_code, handle, executor) == EXIT_BROKEN


SESSION_THAT_IS_CANCELLED = """
import asyncio, time
from pathlib import Path
from sfumato_chassis.worker_session import WorkerLink, WorkerSession

class Session(WorkerSession):
    async def _live(self):
        raise asyncio.CancelledError

link = WorkerLink(endpoint_file=Path(), worker_id="", token="", lease_seconds=60, rest_seconds=60,
                  deadline=time.monotonic() + 60)
Session(link, outlives_service=True).start()
time.sleep(60)
"""


def test_a_session_that_is_cancelled_ends_its_worker_too() -> None:
    ended = subprocess.run([sys.executable, "-c", SESSION_THAT_IS_CANCELLED], timeout=50)
    assert ended.returncode == EXIT_BROKEN


def test_a_file_that_cannot_be_replaced_leaves_nothing_staged(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    with pytest.raises(OSError, match="taken"):
        write_whole(taken, "text")
    assert list(tmp_path.iterdir()) == [taken]
