"""A tiny model, six pictures as blobs, and plans over them."""

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sfumato_diffusion.families.registry import family_info
from sfumato_trainer.events import Event
from sfumato_trainer.settings import (
    Lineage,
    ModelSource,
    TrainingPlan,
    TrainingSample,
    TrainingSettings,
)
from sfumato_trainer.stages.reporter import Command
from sfumato_trainer.stages.run import Outcome, run_training

EMOJI = Path(__file__).parents[3] / "examples" / "emoji"


class RecordingReporter:
    """Keeps events; answers `command` once the given step was reported."""

    def __init__(
        self,
        *,
        command: Command = "none",
        at_step: int = 0,
        failpoint: Callable[[str], None] = lambda name: None,
        may_publish: Callable[[], bool] = lambda: True,
    ) -> None:
        self.events: list[Event] = []
        self.failpoint = failpoint
        self.may_publish = may_publish
        self._command = command
        self._at_step = at_step
        self._step = 0

    def emit(self, event: Event) -> None:
        self.events.append(event)
        self._step = getattr(event, "step", self._step)

    def command(self) -> Command:
        return self._command if self._step >= self._at_step else "none"

    def of(self, kind: str) -> list[Any]:
        return [event for event in self.events if event.kind == kind]


class Studio:
    """One family's model, the pictures, and a folder for runs.

    Runs share a cache that outlives the test, so most of them start warm.
    """

    def __init__(self, family: str, model: Path, directory: Path) -> None:
        self.family = family
        self.shared = model.parent
        self.model = model
        self.directory = directory
        self.samples = []
        (directory / "blobs").mkdir(parents=True)
        for path in sorted(EMOJI.glob("*.png"))[:6]:
            data = path.read_bytes()
            digest = hashlib.sha256(data).hexdigest()
            self.blob_path(digest).write_bytes(data)
            caption = path.with_suffix(".txt").read_text().strip()
            sample = TrainingSample(
                file_name=path.name, image_digest=digest, width=64, height=64, caption=caption
            )
            self.samples.append(sample)

    def blob_path(self, digest: str) -> Path:
        return self.directory / "blobs" / digest

    def plan(
        self, work: str, *, plan_changes: dict[str, Any] | None = None, **changes: Any
    ) -> TrainingPlan:
        """Shuffling, a short tail, accumulation, dropouts, EMA, warm-up and cosine are all on."""
        settings: dict[str, Any] = {
            "base_model": ModelSource(reference=str(self.model)),
            "family": self.family,
            "resolution": 64,
            "train_steps": 6,
            "learning_rate": 1e-2,
            "rank": 4,
            "alpha": 4.0,
            "target_modules": family_info(self.family).adapter_targets,
            "learning_rate_scheduler": "cosine",
            "warmup_steps": 2,
            "batch_size": 4,
            "gradient_accumulation": 2,
            "adapter_dropout": 0.1,
            "caption_dropout": 0.3,
            "ema_decay": 0.9,
            "weighting_scheme": "bell",
            "cache_variants": 2,
            "save_steps": 2,
            "gradient_checkpointing": False,
        }
        fields: dict[str, Any] = {
            "run": "run",
            "attempt": 1,
            "fence": 1,
            "settings": TrainingSettings(**(settings | changes)),
            "samples": tuple(self.samples),
            "lineage": Lineage(dataset="emoji", dataset_digest="d" * 64),
            "work_directory": self.directory / work,
            "cache_directory": self.shared / "cache",
        }
        return TrainingPlan(**(fields | (plan_changes or {})))

    def run(self, plan: TrainingPlan, reporter: RecordingReporter | None = None) -> Outcome:
        return run_training(plan, reporter or RecordingReporter(), blob_path=self.blob_path)

    def straight(self, **changes: Any) -> tuple[bytes, bytes]:
        """Published bytes of a run that nothing interrupts; made once per test session."""
        plan = self.plan(f"straight-{sorted(changes.items())}", **changes)
        plan = dataclasses.replace(plan, work_directory=self.shared / plan.work_directory.name)
        if not (plan.work_directory / "published").exists():
            assert self.run(plan).result == "succeeded"
        return self.bytes_of(plan)

    def bytes_of(self, plan: TrainingPlan) -> tuple[bytes, bytes]:
        """Adapter and moving average as published."""
        published = plan.work_directory / "published"
        names = ("adapter.safetensors", "ema/adapter.safetensors")
        adapter, ema = ((published / name).read_bytes() for name in names)
        return adapter, ema


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def studio(tiny_model: Callable[[str], Path], tmp_path: Path) -> Studio:
    return Studio("z-image", tiny_model("z-image"), tmp_path)


@pytest.fixture(params=["z-image", "flux.1"])
def each_studio(
    request: pytest.FixtureRequest, tiny_model: Callable[[str], Path], tmp_path: Path
) -> Studio:
    return Studio(request.param, tiny_model(request.param), tmp_path)


@pytest.fixture
def reporter_of() -> type[RecordingReporter]:
    return RecordingReporter
