"""What a training worker reports, as frozen records that survive JSON. No torch.

Numbers that are not finite cannot be in an event: constructing one raises ValueError, and a
loss that is not finite is reported as `Failed`.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from sfumato_diffusion.families.info import Precision

Stage = Literal["fetch_samples", "cache_conditioning", "load_denoiser", "publish_adapter"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Base of all events. `kind` names the type on the wire."""

    kind: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{self.kind}.{field.name} is not finite: {value}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact:
    """A published file."""

    digest: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Preparing(Event):
    """`done` of `total` items of a stage; `size_bytes` moved or written so far."""

    kind: ClassVar[str] = "preparing"
    stage: Stage
    done: int
    total: int
    size_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded(Event):
    """The denoiser is ready. `encoders_loaded` counts text encoders and VAEs that were loaded.

    `base_revision` is the marker of the base weights; hits and misses are the conditioning cache's.
    """

    kind: ClassVar[str] = "loaded"
    precision: Precision
    encoders_loaded: int
    compiled: bool
    base_revision: str
    latent_hits: int
    latent_misses: int
    text_hits: int
    text_misses: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Resumed(Event):
    """Training continues after `step`; `skipped_damaged` names bundles that were walked past.

    `bitwise` is False when library versions, thread count or settings differ from the bundle's.
    """

    kind: ClassVar[str] = "resumed"
    step: int
    checkpoint: str
    skipped_damaged: tuple[str, ...] = ()
    bitwise: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress(Event):
    """One optimiser step. `gradient_norm` is before clipping, `peak_memory_bytes` the process's."""

    kind: ClassVar[str] = "progress"
    step: int
    total: int
    epoch: int
    loss: float
    average_loss: float
    learning_rate: float
    gradient_norm: float
    samples_per_second: float
    peak_memory_bytes: int
    eta_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointSaved(Event):
    """`digest` is the SHA-256 of the bundle's manifest."""

    kind: ClassVar[str] = "checkpoint_saved"
    step: int
    size_bytes: int
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointFailed(Event):
    kind: ClassVar[str] = "checkpoint_failed"
    step: int
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Warned(Event):
    """`code` is UPPER_SNAKE from a closed list, `text` is for people."""

    kind: ClassVar[str] = "warning"
    code: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Published(Event):
    kind: ClassVar[str] = "published"
    adapter: Artifact
    ema_adapter: Artifact | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Succeeded(Event):
    kind: ClassVar[str] = "succeeded"
    adapter: Artifact
    ema_adapter: Artifact | None
    steps: int
    seconds: float
    stopped_early: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed(Event):
    """`code` is UPPER_SNAKE; `samples` are file names of the batch in which it happened.

    `error_id` is under which the log has the rest; empty where it has nothing to add.
    """

    kind: ClassVar[str] = "failed"
    code: str
    message: str
    step: int
    samples: tuple[str, ...] = ()
    error_id: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cancelled(Event):
    kind: ClassVar[str] = "cancelled"
    step: int
