"""What a model family is, as data: no torch, so that services can read it.

Repositories, sampling and training defaults are the vendors' published values.
"""

from dataclasses import dataclass
from typing import Literal

Workflow = Literal[
    "text_to_image", "image_to_image", "inpaint", "control", "upscale", "edit", "reference", "video"
]
Precision = Literal["fp32", "bf16", "fp16"]


class UnsupportedPrecisionError(ValueError):
    """The family cannot run in the requested precision; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Guidance:
    """How one base model reacts to guidance, so that no value silently does nothing.

    `keyword` is the pipeline's argument, `acts_above` the value above which it changes the
    picture (None: this base ignores it), `negative_prompt` says when a negative prompt acts.
    """

    keyword: str
    default: float
    acts_above: float | None
    negative_prompt: Literal["never", "with_guidance", "with_true_cfg_scale"]


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseModel:
    """One published base model of a family.

    `deploys_on` lists the repositories an adapter trained on this base is meant to run on.
    """

    repository: str
    steps: int
    guidance: Guidance
    gated: bool = False
    deploys_on: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingDefaults:
    """What a training run gets where the caller says nothing.

    `flow_shift_mu` is the time shift that `auto` uses; None is the scheduler's `max_shift`.
    """

    rank: int
    learning_rate: float
    resolution: int
    learning_rate_scheduler: str
    warmup_steps: int
    flow_shift: float | Literal["auto"] = 1.0
    flow_shift_mu: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FamilyInfo:
    """One model family. `bases[0]` is the default base.

    `positions_setting` is the denoiser's setting that lists how many positions it has along the prompt
    (with 0 and the picture's own), down and across, the last two in units of `size_divisor` pixels;
    None where any number will do.
    """

    name: str
    aliases: tuple[str, ...]
    pipeline_class: str
    denoiser_class: str
    denoiser_component: str
    text_encoder_components: tuple[str, ...]
    bases: tuple[BaseModel, ...]
    training_base: str
    training: TrainingDefaults
    workflows: tuple[Workflow, ...]
    adapter_targets: tuple[str, ...]
    modelspec_architecture: str
    size_divisor: int
    prompt_length: int
    latents: Literal["posterior_sample", "posterior_mode"]
    prompt_template_version: int = 1
    refused_precisions: tuple[tuple[Precision, str], ...] = ()
    minimum_side: int = 64
    maximum_side: int = 4096
    positions_setting: str | None = None

    @property
    def default_base(self) -> BaseModel:
        return self.bases[0]

    def base(self, repository: str) -> BaseModel:
        """The base of that repository (any case); a local copy counts as the training base."""
        by_repository = {base.repository.lower(): base for base in self.bases}
        return by_repository.get(
            repository.lower(), by_repository.get(self.training_base.lower(), self.default_base)
        )

    def check_precision(self, precision: Precision) -> None:
        """Raises UnsupportedPrecisionError with the family's reason."""
        for refused, reason in self.refused_precisions:
            if refused == precision:
                raise UnsupportedPrecisionError(f"{self.name} cannot run in {precision}: {reason}")
