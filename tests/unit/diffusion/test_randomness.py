import json
import random

import numpy as np
import pytest
import torch

from sfumato_diffusion.randomness import (
    GENERATOR_NAMES,
    NamedGenerators,
    preserved_global_state,
    seed_global,
)


def _draws(generators: NamedGenerators) -> list[float]:
    named = [torch.rand(1, generator=generators[name]).item() for name in GENERATOR_NAMES]
    libraries = [torch.rand(1).item(), random.random(), random.gauss(), np.random.rand()]
    return [*named, *libraries, float(np.random.randn())]


def test_restore_repeats_every_draw() -> None:
    with preserved_global_state():
        seed_global(5)
        generators = NamedGenerators(5)
        _draws(generators)
        tensors, record = generators.capture()
        expected = _draws(generators)
        other = NamedGenerators(99)
        other.restore(tensors, json.loads(json.dumps(record)))
        assert _draws(other) == expected


def test_a_missing_state_is_an_error() -> None:
    generators = NamedGenerators(5)
    tensors, record = generators.capture()
    del tensors["generator.noise"]
    with pytest.raises(KeyError, match="noise"):
        generators.restore(tensors, record)


def test_names_do_not_share_draws() -> None:
    generators = NamedGenerators(5)
    assert len({torch.rand(1, generator=generators[name]).item() for name in GENERATOR_NAMES}) == 4


def test_global_state_is_preserved() -> None:
    before = torch.get_rng_state()
    with preserved_global_state():
        seed_global(1)
        torch.rand(10)
    assert torch.equal(before, torch.get_rng_state())
