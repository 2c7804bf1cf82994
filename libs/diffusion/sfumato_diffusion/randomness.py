"""Everything random in a run, by name, and its state as tensors and JSON.

`loop` draws the order of samples, `variant` the crop, `noise` sigmas, noise and posterior,
`dropout` the dropped captions. Torch's, Python's and numpy's global states belong to it, since
libraries draw from them (peft's dropout from torch's).
"""

import contextlib
import hashlib
import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

GENERATOR_NAMES = ("loop", "variant", "noise", "dropout")

RandomState = tuple[dict[str, torch.Tensor], dict[str, Any]]


def derived_seed(seed: int, name: str) -> int:
    """A seed in 0..2^63-1 for one purpose, so that purposes do not share their draws."""
    digest = hashlib.sha256(f"{name}:{seed}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


class NamedGenerators:
    """CPU generators, so that draws do not depend on the device."""

    def __init__(self, seed: int) -> None:
        self._generators = {
            name: torch.Generator().manual_seed(derived_seed(seed, name))
            for name in GENERATOR_NAMES
        }

    def __getitem__(self, name: str) -> torch.Generator:
        return self._generators[name]

    def capture(self) -> RandomState:
        """Tensors and JSON that `restore` takes: these generators and the global states."""
        tensors = {f"generator.{name}": g.get_state() for name, g in self._generators.items()}
        global_tensors, record = _capture_global()
        return tensors | global_tensors, record

    def restore(self, tensors: Mapping[str, torch.Tensor], record: Mapping[str, Any]) -> None:
        """Raises KeyError when a state is missing."""
        for name, generator in self._generators.items():
            generator.set_state(tensors[f"generator.{name}"])
        _restore_global(tensors, record)


def seed_global(seed: int) -> None:
    """Seed torch (CPU and CUDA), Python and numpy."""
    torch.manual_seed(derived_seed(seed, "torch"))
    random.seed(derived_seed(seed, "python"))
    np.random.seed(derived_seed(seed, "numpy") % 2**32)


@contextlib.contextmanager
def preserved_global_state() -> Iterator[None]:
    """What happens inside leaves no trace in the global states."""
    tensors, record = _capture_global()
    try:
        yield
    finally:
        _restore_global(tensors, record)


def _capture_global() -> RandomState:
    tensors = {"torch.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        for index, state in enumerate(torch.cuda.get_rng_state_all()):
            tensors[f"torch.cuda.{index}"] = state
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    tensors["numpy.keys"] = torch.from_numpy(np.asarray(keys).astype(np.int64))
    tensors["python.words"] = torch.tensor(words, dtype=torch.int64)
    record = {
        "python": {"version": version, "gauss": gauss},
        "numpy": {
            "kind": kind,
            "position": position,
            "has_gauss": has_gauss,
            "cached_gaussian": cached,
        },
    }
    return tensors, json.loads(json.dumps(record))


def _restore_global(tensors: Mapping[str, torch.Tensor], record: Mapping[str, Any]) -> None:
    torch.set_rng_state(tensors["torch.cpu"])
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            state = tensors.get(f"torch.cuda.{index}")
            if state is not None:
                torch.cuda.set_rng_state(state, index)
    python, numpy = record["python"], record["numpy"]
    words = tuple(tensors["python.words"].tolist())
    random.setstate((python["version"], words, python["gauss"]))
    np.random.set_state(
        (
            numpy["kind"],
            tensors["numpy.keys"].numpy().astype(np.uint32),
            numpy["position"],
            numpy["has_gauss"],
            numpy["cached_gaussian"],
        )
    )
