"""Exponential moving average of the trainable parameters, with a warm-up of the decay."""

from collections.abc import Mapping

import torch


def decay_at(update: int, decay: float) -> float:
    """Decay of the k-th update, k from 1: min(decay, k / (10 + k))."""
    return min(decay, update / (10 + update))


class MovingAverage:
    """Shadows of named tensors, fp32, updated in place."""

    def __init__(
        self, values: Mapping[str, torch.Tensor], *, decay: float, num_updates: int = 0
    ) -> None:
        self.decay = decay
        self.num_updates = num_updates
        self.shadows = {name: value.detach().float().clone() for name, value in values.items()}

    @torch.no_grad()
    def update(self, values: Mapping[str, torch.Tensor]) -> None:
        """shadow = d shadow + (1 - d) value, with this update's decay d."""
        self.num_updates += 1
        decay = decay_at(self.num_updates, self.decay)
        for name, shadow in self.shadows.items():
            shadow.lerp_(values[name].detach().float(), 1.0 - decay)
