"""Training workers that are stopped in the middle of a step and hear nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from deployment import ServeProcess, client_of, follow_run, import_emoji, kinds, training_request
from sfumato.job.v1 import job_pb2
from sfumato.trainer.v1 import trainer_pb2
from sfumato_chassis.process import identify, is_alive
from sfumato_client import Client

DRAIN_SECONDS = 8.0
DEVICE_FREE_SECONDS = 10.0
STEPS = 40


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny-z-image"
    command = [sys.executable, "-m", "sfumato_client.cli.main", "tiny", "z-image", str(folder)]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture
async def server(tmp_path: Path, model: Path) -> AsyncIterator[ServeProcess]:
    shutil.copytree(model, tmp_path / "models" / model.name, copy_function=shutil.copy2)
    process = ServeProcess(
        tmp_path,
        only=("datasets", "trainer"),
        environment={"SFUMATO_SERVER_DRAIN_SECONDS": str(DRAIN_SECONDS)},
    )
    await asyncio.to_thread(process.start)
    yield process
    await asyncio.to_thread(process.stop)


async def run_in_which(
    server: ServeProcess, client: Client, act: Callable[[str, int], Awaitable[None]]
) -> tuple[list[trainer_pb2.TrainingRunEvent], trainer_pb2.TrainingRun]:
    """A run to its end. Once it steps its worker is halted, and `act` gets the run and the worker."""
    await import_emoji(client)
    created = await client.trainer.create_training_run(
        training_request(model="tiny-z-image", steps=STEPS, save_steps=10)
    )
    name = created.training_run.name
    acted = False

    async def on_event(event: trainer_pb2.TrainingRunEvent) -> None:
        nonlocal acted
        if event.progress.step > 0 and not acted:
            acted = True
            [pid] = server.workers("trainer")
            os.kill(pid, signal.SIGSTOP)
            await act(name, pid)

    return await follow_run(client, name, on_event)


async def test_a_drain_ends_a_worker_that_is_halted_and_the_run_goes_on(
    server: ServeProcess,
) -> None:
    async def stop_and_start(name: str, pid: int) -> None:
        worker, began = identify(pid), time.monotonic()
        assert await asyncio.to_thread(server.stop) == 0
        assert time.monotonic() - began < DRAIN_SECONDS
        assert not is_alive(worker)
        await asyncio.to_thread(server.start)

    async with client_of(server.address) as client:
        events, run = await run_in_which(server, client, stop_and_start)
    assert run.status.state == job_pb2.JOB_STATE_SUCCEEDED, run.status
    assert run.status.attempt == 2
    [interrupted] = [event.interrupted for event in events if event.HasField("interrupted")]
    assert interrupted.retrying
    assert run.progress.step == STEPS


async def test_a_cancel_ends_a_worker_that_is_halted(server: ServeProcess) -> None:
    told: list[float] = []

    async with client_of(server.address) as client:

        async def cancel(name: str, pid: int) -> None:
            await client.trainer.cancel_training_run(name)
            told.append(time.monotonic())

        events, run = await run_in_which(server, client, cancel)
    assert run.status.state == job_pb2.JOB_STATE_CANCELLED, run.status
    assert time.monotonic() - told[0] < DEVICE_FREE_SECONDS
    assert kinds(events)["cancelled"] == 1
    assert server.workers("trainer") == []
