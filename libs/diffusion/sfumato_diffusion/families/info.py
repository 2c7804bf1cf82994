"""What a model family is, as data: no torch, so that services can read it.

Repositories, sampling and training defaults are the vendors' published values.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

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
class NumberSetting:
    """A number in a component's configuration with which this project's or the pipeline's code computes.

    It lies above `above`, is at most `at_most`, and may be left to the library's default unless it is
    `required`.
    """

    component: str
    name: str
    whole: bool = False
    required: bool = False
    above: float = -sys.float_info.max
    at_most: float = sys.float_info.max

    def problem(self, settings: Mapping[str, Any]) -> str | None:
        """What is wrong with its value in a component's configuration; None where nothing is."""
        if self.name not in settings:
            return f"has no {self.name}" if self.required else None
        value = settings[self.name]
        kinds = {int} if self.whole else {int, float}
        if type(value) in kinds and self.above < value <= self.at_most:
            return None
        return f"{self.name} must be {self._description()}"

    def _description(self) -> str:
        limits = [
            f"{word} {limit:g}"
            for word, limit in (("above", self.above), ("at most", self.at_most))
            if abs(limit) != sys.float_info.max
        ]
        kind = "a whole number" if self.whole else "a number"
        return f"{kind} {' and '.join(limits)}".rstrip()


KL_AUTOENCODER_NUMBERS = (
    NumberSetting(component="vae", name="scaling_factor", above=0.0),
    NumberSetting(component="vae", name="shift_factor", required=True),
    NumberSetting(component="vae", name="norm_num_groups", whole=True, above=0),
)
"""Of latents that are shifted, then scaled; the pipelines add `shift_factor` as it is."""

FLOW_MATCHING_NUMBERS = (
    NumberSetting(
        component="scheduler", name="num_train_timesteps", whole=True, above=0, at_most=100_000
    ),
    NumberSetting(component="scheduler", name="shift", above=0.0),
    # Exponents of e.
    NumberSetting(component="scheduler", name="base_shift", above=-10.0, at_most=10.0),
    NumberSetting(component="scheduler", name="max_shift", above=-10.0, at_most=10.0),
    NumberSetting(component="scheduler", name="base_image_seq_len", above=0),
    NumberSetting(component="scheduler", name="max_image_seq_len", above=0),
)
"""Of the flow matching Euler scheduler, as the schedule and the pipelines read it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MatchingSizes:
    """Two settings, each `(component, name)`, of parts that fit if the first is `factor` times the second."""

    first: tuple[str, str]
    second: tuple[str, str]
    factor: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class FamilyInfo:
    """One model family. `bases[0]` is the default base.

    `pipeline_class`, `denoiser_class`, `vae_class` and `scheduler_class` are those of diffusers; a model
    with another is refused.

    `numbers` are the settings of components with which code computes, `sizes` those that make components
    fit each other, and `chat_template` says whether prompts pass through the tokenizer's.

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
    numbers: tuple[NumberSetting, ...]
    sizes: tuple[MatchingSizes, ...]
    chat_template: bool = False
    vae_class: str = "AutoencoderKL"
    scheduler_class: str = "FlowMatchEulerDiscreteScheduler"
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
