"""The order of samples: a fresh permutation per epoch, every picture once, short tails kept."""

from collections.abc import Mapping
from typing import Any

import torch


class PermutationSampler:
    """Batches of sample indexes. All of its state is in `capture`, but the generator's."""

    def __init__(self, num_samples: int, batch_size: int, generator: torch.Generator) -> None:
        self._num_samples = num_samples
        self._batch_size = batch_size
        self._generator = generator
        self._permutation = torch.empty(0, dtype=torch.int64)
        self._position = 0
        self.epoch = 0

    def next_batch(self) -> list[int]:
        """The next indexes; a batch never spans two epochs."""
        if self._position >= len(self._permutation):
            self._permutation = torch.randperm(self._num_samples, generator=self._generator)
            self._position = 0
            self.epoch += 1
        batch = self._permutation[self._position : self._position + self._batch_size]
        self._position += len(batch)
        return [int(index) for index in batch]

    def capture(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        return (
            {"sampler.permutation": self._permutation.clone()},
            {"epoch": self.epoch, "position": self._position},
        )

    def restore(self, tensors: Mapping[str, torch.Tensor], record: Mapping[str, Any]) -> None:
        """Raises KeyError when a part is missing."""
        self._permutation = tensors["sampler.permutation"].clone()
        self.epoch = int(record["epoch"])
        self._position = int(record["position"])
