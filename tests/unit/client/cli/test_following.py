"""Every kind of event has a look, and none breaks the screen."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator

import pytest
from google.protobuf.message import Message
from rich.console import Console

from sfumato.datasets.v1 import imports_pb2
from sfumato.generator.v1 import generator_pb2
from sfumato.job.v1 import job_pb2
from sfumato.trainer.v1 import trainer_pb2
from sfumato_client import Connection, Cursor, Event, Finished, Reconnecting
from sfumato_client.cli import datasets, generating, training
from sfumato_client.cli.following import JobView, Milestone, OnReconnecting, Position, follow
from sfumato_client.cli.session import RetryPolicies, Session
from sfumato_client.errors import ContractViolated, lost
from sfumato_client.watch import WatchItem

TERMINAL = {"succeeded", "failed", "cancelled"}


def kinds(event: type[Message]) -> list[str]:
    return [field.name for field in event.DESCRIPTOR.oneofs_by_name["event"].fields]


CASES = [
    (view, event, kind)
    for view, event in (
        (datasets.VIEW, imports_pb2.ImportEvent),
        (training.VIEW, trainer_pb2.TrainingRunEvent),
        (generating.VIEW, generator_pb2.GenerationEvent),
    )
    for kind in kinds(event)
]


@pytest.mark.parametrize(
    ("view", "event", "kind"), CASES, ids=[f"{event.__name__}-{kind}" for _, event, kind in CASES]
)
def test_every_event_but_the_last_is_shown(
    view: JobView[object, Message], event: type[Message], kind: str
) -> None:
    message = event()
    getattr(message, kind).SetInParent()
    sight = view.describe_event(message)
    # A saved image is printed with its path when its file is there.
    if kind in TERMINAL or kind == "image_saved":
        assert sight is None
    else:
        assert isinstance(sight, Milestone | Position)


def test_training_progress_shows_loss_rate_and_time_left() -> None:
    event = trainer_pb2.TrainingRunEvent()
    event.progress.step, event.progress.total_steps = 30, 500
    event.progress.loss, event.progress.learning_rate = 0.12345, 1e-4
    event.progress.eta.seconds = 83
    assert training.describe_event(event) == Position(
        stage="training", done=30, total=500, facts="loss 0.1235  lr 0.0001  1:23 left"
    )


@pytest.mark.parametrize(
    ("resumed", "text"),
    [
        (trainer_pb2.RunResumed(step=200, bitwise=True), "goes on from step 200"),
        (
            trainer_pb2.RunResumed(step=200),
            "goes on from step 200; the result will not be bitwise the same",
        ),
        (
            trainer_pb2.RunResumed(
                step=100, bitwise=True, damaged_checkpoints=["checkpoint-300", "checkpoint-200"]
            ),
            "goes on from step 100; damaged and passed over: checkpoint-300, checkpoint-200",
        ),
    ],
)
def test_resumption_says_what_is_lost(resumed: trainer_pb2.RunResumed, text: str) -> None:
    event = trainer_pb2.TrainingRunEvent(resumed=resumed)
    assert training.describe_event(event) == Milestone(text=text)


def test_refused_file_is_named() -> None:
    event = imports_pb2.ImportEvent()
    event.note.file_name, event.note.refused = "a.png", True
    event.note.reason, event.note.message = "IMAGE_TRUNCATED", "ends early"
    assert datasets.describe_event(event) == Milestone(
        text="refused: a.png: IMAGE_TRUNCATED: ends early"
    )


RunItem = WatchItem[trainer_pb2.TrainingRun, trainer_pb2.TrainingRunEvent]


def terminal_session() -> tuple[Session, io.StringIO]:
    """A session that takes a file for a terminal."""
    screen = io.StringIO()
    session = Session(
        connection=Connection(),
        retries=RetryPolicies(),
        as_json=False,
        trace=False,
        arguments=(),
        console=Console(file=screen, force_terminal=True, width=120, markup=False, highlight=False),
    )
    return session, screen


async def test_terminal_shows_bar_milestones_and_a_quiet_reconnection() -> None:
    session, screen = terminal_session()
    progress = trainer_pb2.TrainingProgress(step=30, total_steps=500, loss=0.125)
    warning = trainer_pb2.RunWarning(code="SMALL_IMAGE", message="a.png is small")

    async def watch(
        name: str, *, cursor: Cursor | None, on_reconnecting: OnReconnecting | None
    ) -> AsyncGenerator[RunItem, None]:
        yield Event(event=trainer_pb2.TrainingRunEvent(progress=progress))
        yield Event(event=trainer_pb2.TrainingRunEvent(warning=warning))
        assert on_reconnecting is not None
        on_reconnecting(Reconnecting(cause=lost("cut"), delay_seconds=1.0))
        yield Finished(resource=trainer_pb2.TrainingRun(name=name))

    run = await follow(session, training.VIEW, watch, "run-1")
    assert run.name == "run-1"
    text = screen.getvalue()
    for part in ("SMALL_IMAGE: a.png is small", "training", "30/500", "loss 0.1250"):
        assert part in text
    assert "cut" not in text


async def test_events_are_handed_on_and_an_end_without_result_is_a_fault() -> None:
    session, _ = terminal_session()
    queued = trainer_pb2.TrainingRunEvent(queued=job_pb2.Queued(position=2))
    seen: list[trainer_pb2.TrainingRunEvent] = []

    async def on_event(event: trainer_pb2.TrainingRunEvent) -> None:
        seen.append(event)

    async def watch(
        name: str, *, cursor: Cursor | None, on_reconnecting: OnReconnecting | None
    ) -> AsyncGenerator[RunItem, None]:
        yield Event(event=queued)

    with pytest.raises(ContractViolated):
        await follow(session, training.VIEW, watch, "run-1", on_event=on_event)
    assert seen == [queued]
