import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler

from sfumato_diffusion.objective import draw_indexes
from sfumato_diffusion.schedule import FlowShiftError, flow_schedule

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "sigma_tables.json").read_text()
)
QWEN = {"use_dynamic_shifting": True, "shift_terminal": 0.02, "max_shift": 0.9}
LTX = {"use_dynamic_shifting": True, "shift_terminal": 0.1, "max_shift": 2.05}
CASES = {
    "qwen_image_auto": (QWEN, "auto", math.log(3)),
    "ltx_2_auto": (LTX, "auto", None),
    "linear_3": ({}, 3.0, None),
    "linear_1.15": ({}, 1.15, None),
    "identity": ({}, 1.0, None),
}


@pytest.mark.parametrize("case", CASES)
def test_published_tables(case: str) -> None:
    config, shift, mu = CASES[case]
    schedule = flow_schedule(FlowMatchEulerDiscreteScheduler(**config), shift, mu=mu)
    for index, sigma in VECTORS[case]["table"].items():
        assert schedule.sigmas[int(index)].item() == pytest.approx(sigma, abs=1e-6)
    assert schedule.sigmas.dtype == torch.float32
    if "table_mean" in VECTORS[case]:
        mean = schedule.sigmas.double().mean().item()
        assert mean == pytest.approx(VECTORS[case]["table_mean"], abs=1e-6)


@pytest.mark.parametrize("case", [c for c in CASES if c in VECTORS["logit_normal_expectation"]])
def test_mean_of_drawn_sigmas(case: str) -> None:
    config, shift, mu = CASES[case]
    schedule = flow_schedule(FlowMatchEulerDiscreteScheduler(**config), shift, mu=mu)
    draws = draw_indexes(200_000, 1000, torch.Generator().manual_seed(0))
    expected = VECTORS["logit_normal_expectation"][case]
    assert schedule.sigma(draws).double().mean().item() == pytest.approx(expected, abs=0.003)


@pytest.mark.parametrize("shift", [None, 1.0])
def test_identity_is_the_schedulers_own_table(shift: float | None) -> None:
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    assert flow_schedule(scheduler, shift).sigmas is scheduler.sigmas


def test_auto_without_dynamic_shifting_is_said() -> None:
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    schedule = flow_schedule(scheduler, "auto")
    assert schedule.not_dynamic
    assert schedule.shift == 1.0
    assert schedule.sigmas is scheduler.sigmas


@pytest.mark.parametrize("shift", [0.0, -1.0, math.inf, math.nan, "fast"])
def test_refused_shifts(shift: Any) -> None:
    with pytest.raises(FlowShiftError):
        flow_schedule(FlowMatchEulerDiscreteScheduler(), shift)


def test_weight_index_follows_the_shifted_sigma() -> None:
    schedule = flow_schedule(FlowMatchEulerDiscreteScheduler(), None)
    sigma = torch.tensor([0.0, 0.0015, 0.5, 1.0])
    assert schedule.weight_index(sigma).tolist() == [0, 1, 500, 999]
