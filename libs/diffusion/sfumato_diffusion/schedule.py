"""The one flow schedule that loss and sampler share: which sigma belongs to which index.

A family's scheduler owns a table of sigmas, descending, one per training timestep. A shift
changes that table and nothing else; the drawn index never depends on it.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch

FlowShift = float | Literal["auto"] | None


class FlowShiftError(ValueError):
    """Not `auto` and not a finite number above 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowSchedule:
    """`sigmas` is (num_timesteps,) fp32, descending. `not_dynamic` says that `auto` was asked of
    a scheduler without dynamic shifting, so the table is the scheduler's own.
    """

    sigmas: torch.Tensor
    shift: float | Literal["auto"]
    not_dynamic: bool = False

    @property
    def num_timesteps(self) -> int:
        return self.sigmas.shape[0]

    def sigma(self, index: torch.Tensor) -> torch.Tensor:
        """Sigmas of indexes (batch,), gathered in fp32 on the CPU."""
        return self.sigmas[index]

    def weight_index(self, sigma: torch.Tensor) -> torch.Tensor:
        """Index of a loss weight: clamp(floor(sigma * N), 0, N - 1)."""
        last = self.num_timesteps - 1
        return (sigma * self.num_timesteps).floor().clamp(0, last).long()


def flow_schedule(scheduler: Any, shift: FlowShift, *, mu: float | None = None) -> FlowSchedule:
    """The schedule for `scheduler`'s table under a shift.

    `shift` None or 1.0 is the identity and keeps the scheduler's own table object; a number s
    maps u to s u / (1 + (s - 1) u); `auto` rebuilds the table with the scheduler's own time
    shift, so that training draws from the distribution that inference uses. `mu` is a family's
    constant; None is the scheduler's `max_shift`. Raises FlowShiftError.
    """
    sigmas: torch.Tensor = scheduler.sigmas
    if shift is None:
        return FlowSchedule(sigmas=sigmas, shift=1.0)
    if shift == "auto":
        if not scheduler.config.use_dynamic_shifting:
            return FlowSchedule(sigmas=sigmas, shift=1.0, not_dynamic=True)
        return FlowSchedule(sigmas=_dynamic_table(scheduler, mu), shift="auto")
    if not isinstance(shift, int | float) or not math.isfinite(shift) or shift <= 0:
        raise FlowShiftError(f"flow_shift must be auto or a finite number above 0, is {shift!r}")
    if shift == 1.0:
        return FlowSchedule(sigmas=sigmas, shift=1.0)
    table = sigmas.double()
    shifted = shift * table / (1 + (shift - 1) * table)
    return FlowSchedule(sigmas=shifted.float(), shift=float(shift))


def _dynamic_table(scheduler: Any, mu: float | None) -> torch.Tensor:
    constant = scheduler.config.max_shift if mu is None else mu
    table: torch.Tensor = scheduler.time_shift(constant, 1.0, scheduler.sigmas.double())
    if scheduler.config.shift_terminal:
        table = scheduler.stretch_shift_to_terminal(table)
    return table.float()
