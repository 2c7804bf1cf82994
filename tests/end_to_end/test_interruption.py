"""A run that loses its processes ends with the same bytes, and its watcher misses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from cutting_proxy import CuttingProxy
from deployment import (
    ServeProcess,
    check_numbers,
    client_of,
    follow_run,
    kinds,
    training_request,
)
from sfumato.job.v1 import job_pb2
from sfumato.trainer.v1 import trainer_pb2
from sfumato_client import Client

STEPS = 90
SAVE_STEPS = 15
KILL_AFTER = 25

Action = Callable[[], Awaitable[None]]


def request(family: str = "z-image") -> trainer_pb2.CreateTrainingRunRequest:
    return training_request(
        model=f"tiny-{family}",
        steps=STEPS,
        save_steps=SAVE_STEPS,
        gradient_accumulation=2,
        caption_dropout=0.2,
        ema_decay=0.99,
    )


def once_past(
    step: int, action: Action
) -> Callable[[trainer_pb2.TrainingRunEvent], Awaitable[None]]:
    """Does `action` at the first progress past `step`."""
    done = False

    async def on_event(event: trainer_pb2.TrainingRunEvent) -> None:
        nonlocal done
        if not done and event.progress.step > step:
            done = True
            await action()

    return on_event


async def train(client: Client, on_event=None) -> tuple[list, trainer_pb2.TrainingRun]:
    created = await client.trainer.create_training_run(request())
    events, run = await follow_run(client, created.training_run.name, on_event)
    check_numbers(events)
    assert run.status.state == job_pb2.JOB_STATE_SUCCEEDED, run.status
    assert run.progress.step == STEPS
    return events, run


def same_files(left: trainer_pb2.TrainingRun, right: trainer_pb2.TrainingRun) -> bool:
    return (
        left.adapter.file.digest == right.adapter.file.digest
        and left.ema_adapter.file.digest == right.ema_adapter.file.digest
    )


@pytest.mark.slow
async def test_kills_leave_no_trace_in_the_adapter(serve: ServeProcess, client: Client) -> None:
    async def kill_worker() -> None:
        serve.kill_workers("trainer")

    async def restart_service() -> None:
        await asyncio.to_thread(serve.kill)
        await asyncio.to_thread(serve.start)

    async def kill_both() -> None:
        serve.kill_workers("trainer")
        await restart_service()

    _, unkilled = await train(client)
    assert unkilled.num_steps_computed == STEPS

    events, adopted = await train(client, once_past(KILL_AFTER, restart_service))
    assert adopted.status.attempt == 1, "the worker went on and was adopted"
    assert kinds(events)["interrupted"] == 0
    assert same_files(adopted, unkilled)

    for action in (kill_worker, kill_both):
        events, resumed = await train(client, once_past(KILL_AFTER, action))
        assert resumed.status.attempt == 2
        counts = kinds(events)
        assert (counts["interrupted"], counts["resumed"]) == (1, 1)
        begun_at = [
            event.resumed.step for event in events if event.WhichOneof("event") == "resumed"
        ]
        assert SAVE_STEPS <= begun_at[0] < STEPS
        # None where the kill came right after a checkpoint.
        num_repeated = resumed.num_steps_computed - STEPS
        assert 0 <= num_repeated <= SAVE_STEPS, "what came after the checkpoint ran again"
        assert same_files(resumed, unkilled)


@pytest.mark.slow
async def test_a_watch_survives_fifty_cuts(serve: ServeProcess, client: Client) -> None:
    created = await client.trainer.create_training_run(request())
    port = int(serve.address.rpartition(":")[2])
    async with (
        CuttingProxy(port, seed=3, max_cuts=50, largest_offset=1500) as proxy,
        client_of(proxy.address) as watcher,
    ):
        while proxy.num_cuts < 50:
            events, run = await follow_run(watcher, created.training_run.name)
            check_numbers(events)
            assert run.status.state == job_pb2.JOB_STATE_SUCCEEDED
            assert len(events) == run.status.last_sequence


async def test_drain_keeps_the_run(serve: ServeProcess, client: Client) -> None:
    async def stop_and_start() -> None:
        assert await asyncio.to_thread(serve.stop) == 0
        await asyncio.to_thread(serve.start)

    events, run = await train(client, once_past(KILL_AFTER, stop_and_start))
    assert kinds(events)["interrupted"] == 1
    assert run.num_steps_computed == STEPS, "the drain saved a checkpoint; no step ran twice"
