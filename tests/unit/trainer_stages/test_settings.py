import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from sfumato_diffusion.seeds import LARGEST_SEED
from sfumato_trainer import events
from sfumato_trainer.settings import (
    BOUNDS,
    Lineage,
    ModelSource,
    SettingsError,
    TrainingPlan,
    TrainingSample,
    TrainingSettings,
)

FIELDS: dict[str, Any] = {
    "base_model": ModelSource(reference="org/base", revision="v1"),
    "family": "z-image",
    "resolution": 64,
    "train_steps": 100,
    "learning_rate": 1e-4,
    "rank": 16,
    "alpha": 16.0,
    "target_modules": ("to_q", "to_k"),
    "learning_rate_scheduler": "cosine",
}


def _settings(**changes: Any) -> TrainingSettings:
    return TrainingSettings(**(FIELDS | changes))


def test_json_round_trip_is_lossless() -> None:
    settings = _settings(flow_shift="auto", learning_rate=0.1 + 0.2, seed=LARGEST_SEED)
    record = json.loads(json.dumps(settings.to_json()))
    assert TrainingSettings.from_json(record) == settings
    assert TrainingSettings.from_json(record).digest() == settings.digest()
    assert _settings().digest() != settings.digest()


def test_plan_round_trip(tmp_path: Path) -> None:
    sample = TrainingSample(file_name="a", image_digest="d", width=1, height=2, caption="ü")
    plan = TrainingPlan(
        run="r", attempt=2, fence=3, settings=_settings(), samples=(sample,),
        lineage=Lineage(dataset="d", dataset_digest="x"), work_directory=tmp_path,
        cache_directory=tmp_path / "c", cache_roots=(tmp_path,), resume_checkpoint=tmp_path / "k",
        model_path=tmp_path / "m",
    )  # fmt: skip
    assert TrainingPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    with pytest.raises(SettingsError, match="no picture"):
        dataclasses.replace(plan, samples=())


@pytest.mark.parametrize("name", BOUNDS)
def test_no_number_outside_its_bounds(name: str) -> None:
    bound = BOUNDS[name]
    bad = [math.nan, math.inf]
    bad += [math.nextafter(bound.minimum, -math.inf), math.nextafter(bound.maximum, math.inf)]
    bad += [bound.minimum] * bound.above + [bound.maximum] * bound.below
    for value in bad:
        with pytest.raises(SettingsError) as refusal:
            _settings(**{name: value})
        assert refusal.value.field == name


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"learning_rate_scheduler": "constant", "warmup_steps": 1}, "warmup_steps"),
        ({"learning_rate_scheduler": "step"}, "learning_rate_scheduler"),
        ({"compute_precision": "fp8"}, "compute_precision"),
        ({"weighting_scheme": "sine"}, "weighting_scheme"),
        ({"max_gradient_norm": 1e-31}, "max_gradient_norm"),
        ({"target_modules": ()}, "target_modules"),
        ({"base_model": ModelSource(reference="")}, "base_model"),
    ],
)
def test_contradictions_name_the_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        _settings(**changes)
    assert refusal.value.field == field


def test_unknown_and_missing_fields_are_refused() -> None:
    record = _settings().to_json()
    with pytest.raises(SettingsError, match="learning_rte"):
        TrainingSettings.from_json(record | {"learning_rte": 1})
    del record["rank"]
    with pytest.raises(SettingsError, match="rank"):
        TrainingSettings.from_json(record)


def test_what_is_identity_and_what_is_not() -> None:
    identity = _settings().identity()
    assert list(identity)[:2] == ["family", "base_model"]
    free = {"learning_rate": 1e-3, "train_steps": 7, "save_steps": 9, "ema_decay": 0.5}
    assert _settings(**free).identity() == identity
    for changes in ({"rank": 8}, {"seed": 1}, {"batch_size": 2}, {"flow_shift": 3.0}):
        assert _settings(**changes).identity() != identity


ARTIFACT = events.Artifact(digest="d", size_bytes=3)
EXAMPLES = [
    events.Preparing(stage="fetch_samples", done=1, total=2, size_bytes=9),
    events.Loaded(
        precision="fp32", encoders_loaded=0, compiled=False, base_revision="dir-0",
        latent_hits=1, latent_misses=2, text_hits=3, text_misses=4,
    ),
    events.Resumed(step=3, checkpoint="checkpoint-3", skipped_damaged=("checkpoint-4",)),
    events.Progress(
        step=1, total=2, epoch=1, loss=0.1 + 0.2, average_loss=0.5, learning_rate=1e-4,
        gradient_norm=1.0, samples_per_second=3.0, peak_memory_bytes=1, eta_seconds=2.0,
    ),
    events.CheckpointSaved(step=1, size_bytes=1, digest="d"),
    events.CheckpointFailed(step=1, message="full"),
    events.Warned(code="CODE", text="text"),
    events.Published(adapter=ARTIFACT, ema_adapter=ARTIFACT),
    events.Succeeded(
        adapter=ARTIFACT, ema_adapter=None, steps=1, seconds=1.5, stopped_early=True
    ),
    events.Failed(code="CODE", message="m", step=1, samples=("a.png",)),
    events.Cancelled(step=4),
]  # fmt: skip


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.kind)
def test_events_are_json(event: events.Event) -> None:
    fields = dataclasses.asdict(event)
    assert json.loads(json.dumps(fields, allow_nan=False)).keys() == fields.keys()


def test_an_event_holds_no_number_that_is_none() -> None:
    progress = next(event for event in EXAMPLES if event.kind == "progress")
    with pytest.raises(ValueError, match=r"progress\.loss"):
        dataclasses.replace(progress, loss=math.nan)
