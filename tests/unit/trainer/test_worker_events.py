"""What a worker reports, as the log and the public messages hold it."""

from __future__ import annotations

import ast
import dataclasses
from datetime import UTC, datetime
from pathlib import Path

import pytest

import sfumato_trainer.stages
from sfumato.trainer.v1 import trainer_pb2
from sfumato_chassis.jobs import Event as LogEvent
from sfumato_trainer import events
from sfumato_trainer.messages import event_message
from sfumato_trainer.worker import REASONS, event_data, is_between

STAGES = Path(sfumato_trainer.stages.__path__[0])

SAMPLES: list[events.Event] = [
    events.Preparing(stage="fetch_samples", done=1, total=2, size_bytes=10),
    events.Loaded(
        precision="fp32",
        encoders_loaded=2,
        compiled=False,
        base_revision="dir-0123456789abcdef",
        latent_hits=1,
        latent_misses=2,
        text_hits=3,
        text_misses=4,
    ),
    events.Resumed(step=5, checkpoint="checkpoint-5", skipped_damaged=("checkpoint-7",)),
    events.Progress(
        step=1,
        total=2,
        epoch=0,
        loss=1.5,
        average_loss=1.5,
        learning_rate=1e-3,
        gradient_norm=0.5,
        samples_per_second=3.0,
        peak_memory_bytes=1,
        eta_seconds=2.0,
    ),
    events.CheckpointSaved(step=2, size_bytes=3, digest="ab"),
    events.CheckpointFailed(step=2, message="no room"),
    events.Warned(code="FLOW_SHIFT_NOT_DYNAMIC", text="..."),
    events.Failed(code="LOSS_NOT_FINITE", message="...", step=3, samples=("a.png",)),
    events.Cancelled(step=4),
]


@pytest.mark.parametrize("event", SAMPLES, ids=lambda event: event.kind)
def test_every_event_has_its_message(event: events.Event) -> None:
    logged = LogEvent(
        sequence=1, time=datetime(2026, 1, 1, tzinfo=UTC), kind=event.kind, data=event_data(event)
    )
    message = event_message(logged)
    assert message.WhichOneof("event") == event.kind
    assert message.header.sequence == 1


def test_every_event_of_the_contract_can_be_told() -> None:
    told = {event.kind for event in SAMPLES} | {"succeeded"}
    by_the_service = {"queued", "started", "stop_requested", "cancel_requested", "interrupted"}
    contract = trainer_pb2.TrainingRunEvent.DESCRIPTOR.oneofs_by_name["event"].fields
    assert {field.name for field in contract} == told | by_the_service


def test_a_failure_names_step_and_samples() -> None:
    failed = events.Failed(
        code="LOSS_NOT_FINITE", message="m", step=3, samples=("a",), error_id="id-1"
    )
    data = event_data(failed)
    assert (data["reason"], data["error_id"]) == ("LOSS_NOT_FINITE", "id-1")
    assert data["details"] == {"code": "LOSS_NOT_FINITE", "step": "3", "samples": "a"}


def test_a_failure_without_samples_says_nothing_of_them() -> None:
    failed = events.Failed(code="OUT_OF_MEMORY", message="m", step=0)
    assert event_data(failed)["details"] == {"code": "OUT_OF_MEMORY", "step": "0"}


def test_every_failure_code_of_the_stages_has_a_reason() -> None:
    codes = set()
    for path in STAGES.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "TrainingError":
                first = node.args[0]
                if isinstance(first, ast.Constant):
                    codes.add(first.value)
            if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "_CODES":
                assert isinstance(node.value, ast.Tuple)
                codes |= {ast.literal_eval(pair.elts[1]) for pair in node.value.elts}  # type: ignore[attr-defined]
    assert {"SAMPLE_MISSING", "OUT_OF_MEMORY"} <= codes
    assert codes <= set(REASONS)


def test_only_events_on_the_way_are_left_out() -> None:
    def progress(step: int) -> events.Progress:
        return events.Progress(**{**events_fields(SAMPLES[3]), "step": step, "total": 2})

    assert is_between(progress(1))
    assert not is_between(progress(2))
    assert not is_between(events.Preparing(stage="fetch_samples", done=0, total=2))
    assert not is_between(SAMPLES[4])


def events_fields(event: events.Event) -> dict[str, object]:
    return dataclasses.asdict(event)
