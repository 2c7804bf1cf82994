import math

import pytest
import torch
from torch import nn

from sfumato_diffusion.optimisation import (
    NamedAdamW,
    OptimiserMismatchError,
    gradient_norm,
    learning_rate_factor,
)


def _optimiser(parameters: dict[str, nn.Parameter]) -> NamedAdamW:
    return NamedAdamW(
        parameters, learning_rate=0.1, betas=(0.9, 0.99), epsilon=1e-8, weight_decay=0.01
    )


def _steps(optimiser: NamedAdamW, parameters: dict[str, nn.Parameter], count: int) -> None:
    for _ in range(count):
        optimiser.inner.zero_grad()
        sum((p * p).sum() for p in parameters.values()).backward()
        optimiser.inner.step()


def test_restored_state_continues_bit_for_bit() -> None:
    start = {name: torch.randn(3, generator=torch.Generator().manual_seed(1)) for name in "ab"}
    straight = {name: nn.Parameter(value.clone()) for name, value in start.items()}
    optimiser = _optimiser(straight)
    _steps(optimiser, straight, 3)
    tensors, record = optimiser.capture()
    tensors = {name: value.clone() for name, value in tensors.items()}
    resumed = {name: nn.Parameter(value.detach().clone()) for name, value in straight.items()}
    _steps(optimiser, straight, 2)
    again = _optimiser(resumed)
    again.restore(tensors, record)
    _steps(again, resumed, 2)
    assert all(torch.equal(straight[name], resumed[name]) for name in "ab")


def test_a_state_of_something_else_is_refused() -> None:
    parameters = {name: nn.Parameter(torch.ones(3)) for name in "ab"}
    optimiser = _optimiser(parameters)
    _steps(optimiser, parameters, 1)
    tensors, record = optimiser.capture()
    for changed_tensors, changed_record in (
        (tensors, {**record, "optimiser": "lion"}),
        (tensors, {**record, "parameters": ["b", "a"]}),
        ({**tensors, "exp_avg.a": torch.ones(4)}, record),
        ({name: t for name, t in tensors.items() if name != "exp_avg_sq.b"}, record),
    ):
        with pytest.raises(OptimiserMismatchError):
            _optimiser(parameters).restore(changed_tensors, changed_record)


@pytest.mark.parametrize(
    ("name", "warmup", "expected"),
    [
        ("constant", 0, {0: 1.0, 99: 1.0}),
        ("constant_with_warmup", 10, {0: 0.0, 5: 0.5, 10: 1.0, 99: 1.0}),
        ("linear", 0, {0: 1.0, 50: 0.5, 100: 0.0}),
        ("cosine", 20, {10: 0.5, 20: 1.0, 60: 0.5, 100: 0.0}),
    ],
)
def test_schedules(name: str, warmup: int, expected: dict[int, float]) -> None:
    factor = learning_rate_factor(name, warmup_steps=warmup, train_steps=100)
    for step, value in expected.items():
        assert factor(step) == pytest.approx(value, abs=1e-9)


def test_gradient_norm_is_before_clipping() -> None:
    parameters = {"a": nn.Parameter(torch.zeros(4))}
    parameters["a"].grad = torch.full((4,), 3.0)
    assert gradient_norm(parameters, maximum=0.0) == pytest.approx(6.0)
    assert parameters["a"].grad.norm().item() == pytest.approx(6.0)
    assert gradient_norm(parameters, maximum=1.0) == pytest.approx(6.0)
    assert parameters["a"].grad.norm().item() == pytest.approx(1.0, rel=1e-4)
    parameters["a"].grad[0] = math.nan
    assert math.isnan(gradient_norm(parameters, maximum=1.0))
