"""One training run in memory: what a step does, and all the state a step depends on."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sfumato_diffusion import objective
from sfumato_diffusion.conditioning.encode import Conditioning
from sfumato_diffusion.durable_files import Failpoint
from sfumato_diffusion.ema import MovingAverage
from sfumato_diffusion.families.contract import Family, PromptEmbedding
from sfumato_diffusion.optimisation import NamedAdamW, gradient_norm, learning_rate_factor
from sfumato_diffusion.randomness import NamedGenerators
from sfumato_diffusion.schedule import FlowSchedule
from sfumato_trainer.settings import TrainingPlan
from sfumato_trainer.stages.cache_conditioning import EMPTY_PROMPT, caption_of
from sfumato_trainer.stages.reporter import TrainingError
from sfumato_trainer.stages.sampler import PermutationSampler


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """One optimiser step. `gradient_norm` is before clipping."""

    loss: float
    average_loss: float
    learning_rate: float
    gradient_norm: float
    num_samples: int


class TrainingSession:
    """The mutable state of a run. `parameters` are the adapter's, by file key."""

    def __init__(
        self,
        *,
        plan: TrainingPlan,
        family: Family,
        denoiser: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        schedule: FlowSchedule,
        conditioning: Conditioning,
    ) -> None:
        settings = plan.settings
        self._plan = plan
        self._family = family
        self._denoiser = denoiser
        self._schedule = schedule
        self._conditioning = conditioning
        self._captions = [caption_of(sample, settings) for sample in plan.samples]
        self._device = torch.device(plan.device)
        self._weights = (
            objective.bell_weights(schedule.num_timesteps)
            if settings.weighting_scheme == "bell"
            else None
        )
        self._factor = learning_rate_factor(
            settings.learning_rate_scheduler,
            warmup_steps=settings.warmup_steps,
            train_steps=settings.train_steps,
        )
        self.parameters = parameters
        self.generators = NamedGenerators(settings.seed)
        self.sampler = PermutationSampler(
            len(plan.samples), settings.batch_size, self.generators["loop"]
        )
        self.optimiser = NamedAdamW(
            parameters,
            learning_rate=settings.learning_rate,
            betas=(settings.adam_beta1, settings.adam_beta2),
            epsilon=settings.adam_epsilon,
            weight_decay=settings.weight_decay,
        )
        self.ema = (
            MovingAverage(parameters, decay=settings.ema_decay) if settings.ema_decay else None
        )
        self.step = 0
        self.loss_sum = 0.0

    def train_step(self, failpoint: Failpoint) -> StepResult:
        """Accumulate, clip, update. Raises TrainingError LOSS_NOT_FINITE, GRADIENT_NOT_FINITE.

        Nothing is updated when a number is not finite.
        """
        settings = self._plan.settings
        learning_rate = settings.learning_rate * self._factor(self.step)
        self.optimiser.set_learning_rate(learning_rate)
        indexes: list[int] = []
        losses = []
        for _ in range(settings.gradient_accumulation):
            batch = self.sampler.next_batch()
            indexes += batch
            loss = self._loss(batch)
            torch.autograd.backward(loss / settings.gradient_accumulation)
            losses.append(loss.detach())
            failpoint("train_adapter:micro_step")
        mean_loss = float(torch.stack(losses).mean())
        self._check_finite("LOSS_NOT_FINITE", "loss", mean_loss, indexes)
        norm = gradient_norm(self.parameters, maximum=settings.max_gradient_norm)
        self._check_finite("GRADIENT_NOT_FINITE", "gradient norm", norm, indexes)
        self.optimiser.inner.step()
        self.optimiser.inner.zero_grad(set_to_none=True)
        if self.ema is not None:
            self.ema.update(self.parameters)
        self.step += 1
        self.loss_sum += mean_loss
        return StepResult(
            loss=mean_loss,
            average_loss=self.loss_sum / self.step,
            learning_rate=learning_rate,
            gradient_norm=norm,
            num_samples=len(indexes),
        )

    def progress_record(self) -> dict[str, Any]:
        """Counters of the checkpoint's JSON half."""
        _, sampler = self.sampler.capture()
        updates = None if self.ema is None else self.ema.num_updates
        return {
            "step": self.step,
            "loss_sum": self.loss_sum,
            "ema_updates": updates,
            **sampler,
        }

    def _loss(self, batch: list[int]) -> torch.Tensor:
        noise_generator = self.generators["noise"]
        sigma = self._schedule.sigma(
            objective.draw_indexes(len(batch), self._schedule.num_timesteps, noise_generator)
        )
        x = self._latents(batch)
        noise = torch.randn(x.shape, generator=noise_generator).to(self._device)
        x = x.to(self._device)
        prediction = self._family.predict(
            self._denoiser,
            objective.add_noise(x, noise, sigma),
            sigma.to(self._device),
            self._prompts(batch),
        )
        errors = objective.squared_error(prediction, objective.velocity_target(x, noise))
        if self._weights is None:
            return objective.weighted_loss(errors, None)
        return objective.weighted_loss(errors, self._weights[self._schedule.weight_index(sigma)])

    def _latents(self, batch: list[int]) -> torch.Tensor:
        """(batch, channels, height, width) fp32: mean + std * N(0, 1), fresh each step."""
        count = self._plan.settings.cache_variants
        choices = torch.randint(count, (len(batch),), generator=self.generators["variant"])
        latents = []
        for index, choice in zip(batch, choices.tolist(), strict=True):
            statistics = self._conditioning.latents[index][choice]
            x = statistics.mean
            if statistics.std is not None:
                draw = torch.randn(x.shape, generator=self.generators["noise"])
                x = x + statistics.std * draw
            latents.append(x)
        return torch.stack(latents)

    def _prompts(self, batch: list[int]) -> list[PromptEmbedding]:
        rate = self._plan.settings.caption_dropout
        prompts = self._conditioning.prompts
        if rate == 0:
            return [prompts[self._captions[index]] for index in batch]
        dropped = torch.rand(len(batch), generator=self.generators["dropout"]) < rate
        return [
            prompts[EMPTY_PROMPT if drop else self._captions[index]]
            for index, drop in zip(batch, dropped.tolist(), strict=True)
        ]

    def _check_finite(self, code: str, what: str, value: float, indexes: list[int]) -> None:
        if math.isfinite(value):
            return
        names = tuple(dict.fromkeys(self._plan.samples[index].file_name for index in indexes))
        raise TrainingError(
            code, f"the {what} of step {self.step + 1} is {value}", step=self.step, samples=names
        )
