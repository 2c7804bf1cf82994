"""Workers that die, services that stop and start, a queue that survives both."""

import asyncio
import os
import signal
import sqlite3
import sys
import time
from contextlib import asynccontextmanager, closing
from pathlib import Path

from sfumato.job.v1 import job_pb2
from sfumato_chassis.failpoints import VARIABLE
from sfumato_chassis.leases import device_key
from sfumato_chassis.process import identify, is_alive

LONG = {"steps": 100, "count": 3, "width": 128, "height": 128}
AUTO = {"interruption_policy": "INTERRUPTION_POLICY_AUTO"}
DISK_FULL, SERVER_DRAINING, WORKER_DIED = 82, 90, 130
POLL_SECONDS = 0.05
DEVICE_FREE_SECONDS = 10


def stepped(event):
    """Whether a step was taken."""
    return event.HasField("step")


async def kill_worker(studio):
    os.kill(await studio.worker_pid(), signal.SIGKILL)


async def halt(pid):
    """Stops a process; returns when none of its threads runs any more."""
    os.kill(pid, signal.SIGSTOP)
    async with asyncio.timeout(10):
        while any(state != "T" for state in thread_states(pid)):  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(POLL_SECONDS)


def thread_states(pid):
    """A letter for each thread, as ``ps`` shows it."""
    files = list(Path(f"/proc/{pid}/task").glob("*/stat"))
    return [file.read_text().rpartition(") ")[2][0] for file in files]


async def test_killed_workers(studio_of):
    """The first one's generation fails; the second one's goes on with the images that are missing."""
    async with studio_of() as studio:
        manual = await studio.create(**LONG)
        automatic = await studio.create(seed=11, **LONG, **AUTO)
        await studio.until(manual.name, stepped)
        await kill_worker(studio)
        failed = await studio.ended(manual.name)
        await studio.until(automatic.name, lambda event: event.HasField("image_saved"))
        await kill_worker(studio)
        resumed = await studio.ended(automatic.name)
        events = await studio.events(automatic.name)
        undisturbed = await studio.make(seed=11, **LONG)

    assert failed.status.state == job_pb2.JOB_STATE_FAILED
    assert failed.status.error.reason == WORKER_DIED
    assert resumed.status.state == job_pb2.JOB_STATE_SUCCEEDED
    assert resumed.status.attempt == 2
    assert [image.file for image in resumed.images] == [image.file for image in undisturbed.images]
    interrupted = [event.interrupted for event in events if event.HasField("interrupted")]
    assert [(entry.attempt, entry.retrying) for entry in interrupted] == [(1, True)]
    assert [event.header.sequence for event in events] == list(range(1, len(events) + 1))


async def test_an_image_that_finds_no_space(studio_of, monkeypatch):
    """Its generation fails with that reason; the next one is done by the same worker."""
    monkeypatch.setenv(VARIABLE, "blob.staged=full@1")
    async with studio_of() as studio:
        failed = await studio.make()
        worker = await studio.worker_pid()
        done = await studio.make()
        assert await studio.worker_pid() == worker

    assert failed.status.state == job_pb2.JOB_STATE_FAILED
    assert failed.status.error.reason == DISK_FULL
    assert failed.status.error.message == "the server's disk is full"
    assert failed.status.error.error_id
    assert done.status.state == job_pb2.JOB_STATE_SUCCEEDED


async def test_a_cancel_that_a_hung_worker_does_not_hear(studio_of):
    """It is CANCELLED all the same, the device is free in time, and the next one is done."""
    async with studio_of() as studio:
        hung = await studio.create(**LONG)
        waiting = await studio.create(seed=3)
        await studio.until(hung.name, stepped)
        worker = identify(await studio.worker_pid())
        await halt(worker.pid)
        began = time.monotonic()
        await studio.client.generator.cancel_generation(hung.name)
        cancelled = await studio.ended(hung.name)
        took = time.monotonic() - began
        alive = is_alive(worker)
        done = await studio.ended(waiting.name)

    assert cancelled.status.state == job_pb2.JOB_STATE_CANCELLED
    assert took < DEVICE_FREE_SECONDS
    assert not alive
    assert done.status.state == job_pb2.JOB_STATE_SUCCEEDED


async def test_a_restarted_service_ends_what_ran_and_does_what_waited(studio_of):
    async with studio_of() as first:
        data_dir = first.platform.data_dir
        manual = await first.create(**LONG)
        waiting = await first.create(seed=3)
        await first.until(manual.name, stepped)
        worker = identify(await first.worker_pid())
    assert not is_alive(worker)
    async with studio_of(data_dir=data_dir) as second:
        interrupted = await second.ended(manual.name)
        done = await second.ended(waiting.name)
        events = await second.events(manual.name)

    assert interrupted.status.state == job_pb2.JOB_STATE_INTERRUPTED
    assert interrupted.status.error.reason == SERVER_DRAINING
    assert not events[-1].interrupted.retrying
    assert done.status.state == job_pb2.JOB_STATE_SUCCEEDED


async def test_what_a_killed_service_left_is_ended_at_the_next_start(
    studio_of, tiny_models, tmp_path
):
    """Its generation was at work, its device was leased, its worker hangs and cannot end itself."""
    async with other_process(tmp_path, tiny_models) as (service, address):
        studio = studio_of(data_dir=tmp_path)
        studio.connect(address)
        running = await studio.create(**LONG)
        await studio.until(running.name, stepped)
        worker = identify(worker_in(tmp_path))
        await halt(worker.pid)
        service.kill()
        await studio.client.close()
    assert is_alive(worker)
    async with studio_of(data_dir=tmp_path) as next_life:
        assert not is_alive(worker)
        ended = await next_life.ended(running.name)
        assert await next_life.platform.leases.get(device_key("cpu")) is None

    assert ended.status.state == job_pb2.JOB_STATE_INTERRUPTED
    assert ended.status.error.reason == WORKER_DIED


@asynccontextmanager
async def other_process(data_dir, models):
    """The service as a user starts it; yields the process and its address."""
    service = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sfumato_generator", "--port", "0", "--data-dir", str(data_dir)),
        env={
            **os.environ,
            "SFUMATO_GENERATOR_MODEL_ROOTS": str(models),
            "SFUMATO_ADDRESSES_TRAINER": "127.0.0.1:1",
        },
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        ready = (await service.stdout.readline()).decode()
        yield service, ready.split()[-1]
    finally:
        if service.returncode is None:
            service.kill()
        await service.wait()


def worker_in(data_dir):
    """The worker process in the store of another service."""
    with closing(sqlite3.connect(data_dir / "sfumato.sqlite3")) as store:
        return store.execute("SELECT pid FROM chassis_workers").fetchone()[0]
