"""The resolved configuration of a training run, and the plan a worker gets. No torch.

A worker receives one `TrainingPlan` as JSON; everything the caller left out has been resolved
by then. `BOUNDS` repeats those of the proto, which a worker does not know; a test compares them.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from sfumato_diffusion.families.info import Precision
from sfumato_diffusion.seeds import LARGEST_SEED

LearningRateScheduler = Literal["constant", "constant_with_warmup", "linear", "cosine"]
WeightingScheme = Literal["none", "bell"]

LEAST_GRADIENT_NORM = 1e-30
"""Gradients clipped to less would be 0 in float32."""


class SettingsError(ValueError):
    """One field is out of bounds or contradicts another. `field` names it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """Inclusive limits, unless `above` or `below` says otherwise."""

    minimum: float = -math.inf
    maximum: float = math.inf
    above: bool = False
    below: bool = False

    def problem(self, value: float) -> str | None:
        """What is wrong with the value; None when it is inside."""
        if not math.isfinite(value):
            return "must be a finite number"
        too_small = value <= self.minimum if self.above else value < self.minimum
        too_large = value >= self.maximum if self.below else value > self.maximum
        if not (too_small or too_large):
            return None
        left, right = "(" if self.above else "[", ")" if self.below else "]"
        return f"must be in {left}{self.minimum:g}, {self.maximum:g}{right}, is {value:g}"


BOUNDS: Mapping[str, Bound] = {
    "resolution": Bound(minimum=64, maximum=2048),
    "train_steps": Bound(minimum=1, maximum=100_000),
    "learning_rate": Bound(minimum=1e-30, maximum=1, below=True),
    "batch_size": Bound(minimum=1, maximum=64),
    "gradient_accumulation": Bound(minimum=1, maximum=256),
    "rank": Bound(minimum=1, maximum=320),
    "alpha": Bound(minimum=0.001, maximum=1024),
    "adapter_dropout": Bound(minimum=0, maximum=1, below=True),
    "adam_beta1": Bound(minimum=0, maximum=1, below=True),
    "adam_beta2": Bound(minimum=0, maximum=1, below=True),
    "adam_epsilon": Bound(minimum=1e-30, maximum=1, below=True),
    "weight_decay": Bound(minimum=0, maximum=1),
    "warmup_steps": Bound(minimum=0, maximum=100_000),
    "max_gradient_norm": Bound(minimum=0, maximum=1e30),
    "seed": Bound(minimum=0, maximum=LARGEST_SEED),
    "flow_shift": Bound(minimum=1e-6, maximum=1e6),
    "caption_dropout": Bound(minimum=0, maximum=1),
    "ema_decay": Bound(minimum=0, maximum=1, below=True),
    "cache_variants": Bound(minimum=1, maximum=16),
    "save_steps": Bound(minimum=1, maximum=100_000),
    "keep_last": Bound(minimum=1, maximum=100),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSource:
    """Base weights: a Hub id with its revision, or a local directory."""

    reference: str
    revision: str = "main"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSettings:
    """Everything that determines a run's result, except the pictures and captions.

    `flow_shift` None is the family's default; `target_modules` are names of the denoiser's linear
    layers; `max_gradient_norm` and `ema_decay` 0 are off. `train_steps` is the target total, also
    of a resumed run. Raises SettingsError on construction.
    """

    base_model: ModelSource
    family: str
    resolution: int
    train_steps: int
    learning_rate: float
    rank: int
    alpha: float
    target_modules: tuple[str, ...]
    learning_rate_scheduler: LearningRateScheduler
    warmup_steps: int = 0
    batch_size: int = 1
    gradient_accumulation: int = 1
    adapter_dropout: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    weight_decay: float = 0.01
    max_gradient_norm: float = 1.0
    seed: int = 42
    compute_precision: Precision = "fp32"
    gradient_checkpointing: bool = True
    flow_shift: float | Literal["auto"] | None = None
    weighting_scheme: WeightingScheme = "none"
    caption_dropout: float = 0.0
    ema_decay: float = 0.0
    instance_prompt: str = ""
    center_crop: bool = False
    random_flip: bool = True
    cache_variants: int = 4
    save_steps: int = 50
    keep_last: int = 2

    NOT_IDENTITY: ClassVar[frozenset[str]] = frozenset(
        {
            "learning_rate",
            "train_steps",
            "save_steps",
            "keep_last",
            "ema_decay",
            "gradient_checkpointing",
        }
    )

    def __post_init__(self) -> None:
        for name, bound in BOUNDS.items():
            value = getattr(self, name)
            if value is None or value == "auto":
                continue
            problem = bound.problem(value)
            if problem is not None:
                raise SettingsError(name, problem)
        self._check_choices()
        if self.warmup_steps > 0 and self.learning_rate_scheduler == "constant":
            raise SettingsError("warmup_steps", "the constant scheduler has no warm-up")
        if 0 < self.max_gradient_norm < LEAST_GRADIENT_NORM:
            raise SettingsError(
                "max_gradient_norm",
                f"must be 0, which is off, or at least {LEAST_GRADIENT_NORM:g}",
            )
        if not self.base_model.reference:
            raise SettingsError("base_model", "is empty")
        if not self.target_modules:
            raise SettingsError("target_modules", "is empty")

    def _check_choices(self) -> None:
        choices = {
            "learning_rate_scheduler": ("constant", "constant_with_warmup", "linear", "cosine"),
            "compute_precision": ("fp32", "bf16", "fp16"),
            "weighting_scheme": ("none", "bell"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise SettingsError(name, f"must be one of {', '.join(allowed)}")

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"target_modules": list(self.target_modules)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "TrainingSettings":
        """Raises SettingsError for an unknown or missing field."""
        values = _known_fields(cls, record)
        values["base_model"] = ModelSource(**values["base_model"])
        values["target_modules"] = tuple(values["target_modules"])
        return cls(**values)

    def identity(self) -> dict[str, Any]:
        """The fields in which a resumed run must equal its checkpoint, in order of comparison."""
        first = {"family": self.family, "base_model": dataclasses.asdict(self.base_model)}
        rest = {
            name: value for name, value in self.to_json().items() if name not in self.NOT_IDENTITY
        }
        return first | rest

    def digest(self) -> str:
        """SHA-256 of the canonical JSON, in hex."""
        canonical = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSample:
    """One picture of the pinned dataset version. Width and height are after EXIF rotation."""

    file_name: str
    image_digest: str
    width: int
    height: int
    caption: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Lineage:
    """What the adapter says about where it comes from; nothing that differs between equal runs."""

    dataset: str
    dataset_digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingPlan:
    """All a training worker needs. Paths are on the worker's machine.

    `work_directory` holds this run's checkpoints and its published adapter;
    `resume_checkpoint` names a bundle of another run, for a run made with resume_from (an
    interrupted run resumes from its own work directory by itself). `model_path` is where a base
    model given as a directory lies; a Hub id is found under `cache_roots`.
    """

    run: str
    attempt: int
    fence: int
    settings: TrainingSettings
    samples: tuple[TrainingSample, ...]
    lineage: Lineage
    work_directory: Path
    cache_directory: Path
    model_path: Path | None = None
    cache_roots: tuple[Path, ...] = ()
    resume_checkpoint: Path | None = None
    device: str = "cpu"
    allow_download: bool = False

    def __post_init__(self) -> None:
        if not self.samples:
            raise SettingsError("samples", "the dataset version holds no picture")

    @property
    def model_location(self) -> str:
        """What leads to the base model's files: a path, or a Hub id."""
        return str(self.model_path or self.settings.base_model.reference)

    def to_json(self) -> dict[str, Any]:
        record = dataclasses.asdict(self)
        record["settings"] = self.settings.to_json()
        record["samples"] = [dataclasses.asdict(sample) for sample in self.samples]
        record["work_directory"] = str(self.work_directory)
        record["cache_directory"] = str(self.cache_directory)
        record["cache_roots"] = [str(root) for root in self.cache_roots]
        for name in ("model_path", "resume_checkpoint"):
            path = getattr(self, name)
            record[name] = None if path is None else str(path)
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "TrainingPlan":
        """Raises SettingsError for an unknown or missing field."""
        values = _known_fields(cls, record)
        values["settings"] = TrainingSettings.from_json(values["settings"])
        values["samples"] = tuple(TrainingSample(**sample) for sample in values["samples"])
        values["lineage"] = Lineage(**values["lineage"])
        values["work_directory"] = Path(values["work_directory"])
        values["cache_directory"] = Path(values["cache_directory"])
        values["cache_roots"] = tuple(Path(root) for root in values.get("cache_roots", ()))
        for name in ("model_path", "resume_checkpoint"):
            if values.get(name) is not None:
                values[name] = Path(values[name])
        return cls(**values)


def _known_fields(cls: type, record: Mapping[str, Any]) -> dict[str, Any]:
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for name in record:
        if name not in fields:
            raise SettingsError(name, "is not a known field")
    for name, field in fields.items():
        if name not in record and field.default is dataclasses.MISSING:
            raise SettingsError(name, "is missing")
    return dict(record)
