"""Optimiser and learning-rate schedule, with states that are tensors and JSON.

Parameters are named, and their order is the names' order, so a state fits by name or not at
all.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from diffusers.optimization import get_scheduler
from torch import nn


class OptimiserMismatchError(ValueError):
    """A saved state is of another class or of other parameters."""


class NamedAdamW:
    """torch's AdamW (arXiv:1711.05101) over named parameters."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        *,
        learning_rate: float,
        betas: tuple[float, float],
        epsilon: float,
        weight_decay: float,
    ) -> None:
        self._parameters = dict(parameters)
        self.inner = torch.optim.AdamW(
            self._parameters.values(),
            lr=learning_rate,
            betas=betas,
            eps=epsilon,
            weight_decay=weight_decay,
        )

    def set_learning_rate(self, learning_rate: float) -> None:
        for group in self.inner.param_groups:
            group["lr"] = learning_rate

    def capture(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """State tensors as `<slot>.<parameter>`, and the optimiser and order they belong to."""
        tensors: dict[str, torch.Tensor] = {}
        for name, parameter in self._parameters.items():
            for slot, value in self.inner.state.get(parameter, {}).items():
                tensors[f"{slot}.{name}"] = value
        record = {"optimiser": "adamw", "parameters": list(self._parameters)}
        return tensors, record

    def restore(self, tensors: Mapping[str, torch.Tensor], record: Mapping[str, Any]) -> None:
        """Raises OptimiserMismatchError."""
        if record.get("optimiser") != "adamw":
            raise OptimiserMismatchError(f"state of {record.get('optimiser')!r}, not adamw")
        if record.get("parameters") != list(self._parameters):
            raise OptimiserMismatchError("state of other parameters, or in another order")
        slots = sorted({key.split(".", 1)[0] for key in tensors})
        for name, parameter in self._parameters.items():
            state = {}
            for slot in slots:
                value = tensors.get(f"{slot}.{name}")
                if value is None or (slot != "step" and value.shape != parameter.shape):
                    raise OptimiserMismatchError(f"{slot} of {name} is missing or misshapen")
                device = "cpu" if slot == "step" else parameter.device
                state[slot] = value.clone().to(device)
            self.inner.state[parameter] = state


def learning_rate_factor(
    name: str, *, warmup_steps: int, train_steps: int
) -> Callable[[int], float]:
    """Factor of the base learning rate at step k, k from 0, of diffusers' named scheduler.

    Schedules are functions of the step, so a resumed run evaluates them where it continues.
    """
    placeholder = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = get_scheduler(
        name, placeholder, num_warmup_steps=warmup_steps, num_training_steps=train_steps
    )
    return cast(Callable[[int], float], scheduler.lr_lambdas[0])


def gradient_norm(parameters: Mapping[str, nn.Parameter], *, maximum: float) -> float:
    """Total norm before clipping; gradients are scaled down to `maximum` unless it is 0."""
    if maximum > 0:
        return float(nn.utils.clip_grad_norm_(parameters.values(), maximum))
    gradients = [p.grad for p in parameters.values() if p.grad is not None]
    return float(nn.utils.get_total_norm(gradients))
