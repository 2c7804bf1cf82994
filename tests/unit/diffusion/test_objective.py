import json
from pathlib import Path

import pytest
import torch

from sfumato_diffusion import objective
from sfumato_diffusion.ema import MovingAverage, decay_at

VECTORS = Path(__file__).parents[2] / "vectors"


def test_bell_weights() -> None:
    vectors = json.loads((VECTORS / "bell_weights.json").read_text())
    weights = objective.bell_weights(1000)
    for index, weight in vectors["weights"].items():
        assert weights[int(index)].item() == pytest.approx(weight, abs=1e-6)
    assert weights.mean().item() == pytest.approx(vectors["mean"], abs=1e-6)
    assert weights.argmax().item() == vectors["argmax"]


def test_ema_decay_and_shadow() -> None:
    vectors = json.loads((VECTORS / "ema.json").read_text())
    for update, decay in vectors["decay"].items():
        assert decay_at(int(update), 0.99) == pytest.approx(decay, abs=1e-12)
    average = MovingAverage({"w": torch.zeros(())}, decay=0.99)
    for value, expected in enumerate(vectors["shadow"], start=1):
        average.update({"w": torch.tensor(float(value))})
        assert average.shadows["w"].item() == pytest.approx(expected, rel=1e-6)
    assert average.num_updates == len(vectors["shadow"])


def test_draws_stay_in_range_and_follow_the_generator() -> None:
    first = objective.draw_indexes(10_000, 10, torch.Generator().manual_seed(3))
    assert first.min() >= 0
    assert first.max() <= 9
    assert torch.equal(first, objective.draw_indexes(10_000, 10, torch.Generator().manual_seed(3)))


def test_a_perfect_velocity_leads_back_to_the_picture() -> None:
    generator = torch.Generator().manual_seed(0)
    x, noise = torch.randn(2, 3, 8, 4, 4, generator=generator)
    sigma = torch.tensor([0.0, 0.3, 1.0])
    x_t = objective.add_noise(x, noise, sigma)
    assert torch.equal(x_t[0], x[0])
    assert torch.equal(x_t[2], noise[2])
    velocity = objective.velocity_target(x, noise)
    torch.testing.assert_close(x_t - sigma.view(-1, 1, 1, 1) * velocity, x)


def test_loss_is_fp32_and_weighted_per_item() -> None:
    prediction = torch.full((2, 1, 2, 2), 256.0, dtype=torch.bfloat16)
    target = torch.full((2, 1, 2, 2), 255.0)
    errors = objective.squared_error(prediction, target)
    assert errors.dtype == torch.float32
    assert errors.tolist() == [1.0, 1.0]
    assert objective.weighted_loss(errors, torch.tensor([0.0, 3.0])).item() == 1.5
    assert objective.weighted_loss(errors, None).item() == 1.0
