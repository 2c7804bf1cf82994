"""Both ends of the worker channel, with a real worker process."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from job_stores import OWNER, create, make_store, opened_database
from sfumato.job.v1 import worker_pb2, worker_pb2_grpc
from sfumato_chassis.clock import SystemClock
from sfumato_chassis.database import Database
from sfumato_chassis.errors import JobFailure, Reason
from sfumato_chassis.executor import LocalExecutor
from sfumato_chassis.identifiers import random_name
from sfumato_chassis.job_store import JobStore
from sfumato_chassis.jobs import Job, NewEvent, interrupted_event
from sfumato_chassis.process import is_alive, kill
from sfumato_chassis.worker_channel import WorkerChannel, WorkerHandle, write_whole
from sfumato_chassis.worker_session import EXIT_BROKEN, EXIT_LAPSED
from tiny_worker import EXIT_DRAINED, EXIT_FENCED

LEASE_SECONDS = 20.0
SUPPORT = Path(__file__).parents[2] / "support"
STARTED = NewEvent(kind="started")
OpenChannel = Callable[..., Awaitable[tuple[WorkerChannel, Sequence[WorkerHandle]]]]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT), prepend=os.pathsep)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with opened_database(tmp_path) as opened:
        yield opened


@pytest.fixture
def store(database: Database) -> JobStore:
    return make_store(database)


@pytest.fixture
def executor() -> LocalExecutor:
    return LocalExecutor(threads=1)


class Reports:
    """How reports are taken: as they should be, or not at all while `broken`."""

    def __init__(self) -> None:
        self.broken = False
        self.num_failed = asyncio.Semaphore(0)


@pytest.fixture
def reports() -> Reports:
    return Reports()


@pytest.fixture
async def open_channel(
    database: Database,
    store: JobStore,
    executor: LocalExecutor,
    reports: Reports,
    tmp_path: Path,
) -> AsyncIterator[OpenChannel]:
    """Opens channels as one life of the service after another would."""
    channels: list[WorkerChannel] = []
    handles: list[WorkerHandle] = []

    async def on_report(job: str, fence: int, numbered: Sequence[tuple[int, NewEvent]]) -> int:
        if reports.broken:
            reports.num_failed.release()
            raise RuntimeError("the store is away")
        return (await store.append_from_worker(job, fence, numbered))[1]

    async def start(
        lease_seconds: float = LEASE_SECONDS, rest_seconds: float = LEASE_SECONDS
    ) -> tuple[WorkerChannel, Sequence[WorkerHandle]]:
        channel = WorkerChannel(
            "tests",
            database,
            executor,
            clock=SystemClock(),
            new_name=random_name,
            run_folder=tmp_path / "run",
            lease_seconds=lease_seconds,
            rest_seconds=rest_seconds,
            on_report=on_report,
        )
        channels.append(channel)
        survivors = await channel.start()
        handles.extend(survivors)
        return channel, survivors

    yield start
    for channel in channels:
        handles.extend(vars(channel)["_handles"].values())
        await channel.stop()
    for handle in handles:
        kill(handle.process)
        await executor.wait(handle.process)


async def launch(
    channel: WorkerChannel,
    tmp_path: Path,
    part: str,
    job: Job | None = None,
    *,
    outlives_service: bool = True,
    **settings: Any,
) -> WorkerHandle:
    name, fence = (job.name, job.fence) if job else ("", 0)
    return await channel.launch(
        "tiny_worker",
        {
            "part": part,
            "outlives_service": outlives_service,
            "job": name,
            "fence": fence,
            **settings,
        },
        log_folder=tmp_path / "workers",
        job=name or None,
        fence=fence,
    )


async def running_job(store: JobStore) -> Job:
    return await store.claim((await create(store)).name, STARTED)


async def data_of(store: JobStore, job: Job, kind: str) -> list[Any]:
    events, after = [], 0
    while found := await store.events(job.name, after):
        events += [event.data for event in found if event.kind == kind]
        after = found[-1].sequence
    return events


async def seen(store: JobStore, job: Job, kind: str, count: int) -> list[Any]:
    """The data of events of a kind, once there are so many."""
    async with asyncio.timeout(20):
        while True:
            wakeup = store.wakeups.take(job.name)
            data = await data_of(store, job, kind)
            if len(data) >= count:
                store.wakeups.drop(job.name, wakeup)
                return data
            await wakeup.wait()


def exit_code(handle: WorkerHandle, executor: LocalExecutor) -> int:
    return vars(executor)["_children"][handle.process.pid].wait(20)


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


async def test_a_worker_that_is_stopped_loses_its_lease_and_is_ended(
    store: JobStore, open_channel: OpenChannel, tmp_path: Path
) -> None:
    job = await running_job(store)
    channel, _ = await open_channel(lease_seconds=1.0)
    handle = await launch(
        channel, tmp_path, "emit_steps", job, num_steps=10_000, step_seconds=0.002
    )
    await seen(store, job, "step", 10)
    waiting = asyncio.ensure_future(channel.wait_gone(handle))
    done, _ = await asyncio.wait([waiting], timeout=1.5)
    assert not done, "a worker that answers keeps its lease"
    os.kill(handle.process.pid, signal.SIGSTOP)
    await asyncio.wait_for(waiting, 10)
    assert not is_alive(handle.process)


async def test_a_worker_that_need_not_outlive_its_service_ends_with_it(
    store: JobStore, open_channel: OpenChannel, executor: LocalExecutor, tmp_path: Path
) -> None:
    job = await running_job(store)
    channel, _ = await open_channel()
    handle = await launch(channel, tmp_path, "follow_orders", job, outlives_service=False)
    await seen(store, job, "ready", 1)
    await channel.stop()
    assert await asyncio.to_thread(exit_code, handle, executor) == 0


async def test_a_worker_alone_drains_when_its_lease_ends(
    store: JobStore, open_channel: OpenChannel, executor: LocalExecutor, tmp_path: Path
) -> None:
    job = await running_job(store)
    channel, _ = await open_channel(lease_seconds=1.0)
    handle = await launch(channel, tmp_path, "follow_orders", job)
    await seen(store, job, "ready", 1)
    await channel.stop()
    assert await asyncio.to_thread(exit_code, handle, executor) == EXIT_DRAINED


async def test_a_worker_that_does_not_come_to_rest_ends_itself(
    store: JobStore, open_channel: OpenChannel, executor: LocalExecutor, tmp_path: Path
) -> None:
    job = await running_job(store)
    channel, _ = await open_channel(lease_seconds=0.5, rest_seconds=0.2)
    handle = await launch(channel, tmp_path, "ignore_orders", job)
    await seen(store, job, "ready", 1)
    await channel.stop()
    assert await asyncio.to_thread(exit_code, handle, executor) == EXIT_LAPSED


async def test_a_worker_that_is_sent_away_and_does_not_go_is_ended(
    store: JobStore, open_channel: OpenChannel, executor: LocalExecutor, tmp_path: Path
) -> None:
    job = await running_job(store)
    channel, _ = await open_channel()
    handle = await launch(channel, tmp_path, "ignore_orders", job)
    await seen(store, job, "ready", 1)
    waiting = asyncio.ensure_future(channel.wait_gone(handle))
    done, _ = await asyncio.wait([waiting], timeout=0.1)
    assert not done
    channel.send_away(handle, "drain", within_seconds=0.1)
    channel.send_away(handle, "drain", within_seconds=LEASE_SECONDS)  # the shorter time counts
    await asyncio.wait_for(waiting, 10)
    assert not is_alive(handle.process)


async def test_a_service_that_cannot_take_a_report_is_still_there(
    store: JobStore, open_channel: OpenChannel, reports: Reports, tmp_path: Path
) -> None:
    """Also for a worker that would end with its service."""
    job = await running_job(store)
    channel, _ = await open_channel()
    reports.broken = True
    handle = await launch(channel, tmp_path, "follow_orders", job, outlives_service=False)
    async with asyncio.timeout(20):
        for _ in range(3):
            await reports.num_failed.acquire()
    reports.broken = False
    await seen(store, job, "ready", 1)
    assert is_alive(handle.process)


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


def test_a_file_that_cannot_be_replaced_leaves_nothing_staged(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    with pytest.raises(OSError, match="taken"):
        write_whole(taken, "text")
    assert list(tmp_path.iterdir()) == [taken]
