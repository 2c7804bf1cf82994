"""LoRA adapters (arXiv:2106.09685): into a denoiser, onto disk, and back.

Files hold the diffusers key layout, `transformer.<module>.lora_A.weight` of shape
(rank, in_features) and `lora_B.weight` (out_features, rank), both fp32.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import nn

from sfumato_diffusion.durable_files import Failpoint, no_failpoint
from sfumato_diffusion.safetensors_file import (
    first_non_finite,
    read_safetensors,
    write_safetensors,
)
from sfumato_diffusion.safetensors_header import ADAPTER_LIMITS, SafetensorsError

PREFIX = "transformer."
CONFIG_KEY = "lora_adapter_metadata"
"""Where diffusers looks for rank and alpha; without it alpha is taken to equal the rank."""

_ADAPTER_NAME = "default"
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"


class AdapterError(ValueError):
    """An adapter, or a request for one, that cannot be used. The message says why."""


class UnmatchedTargetError(AdapterError):
    """A target names no linear layer of the denoiser."""


class UnsafeAdapterError(AdapterError):
    """The file is not a safetensors file this project accepts, or holds NaN or infinity."""


class AdapterMismatchError(AdapterError):
    """Keys or shapes do not fit the denoiser."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterShape:
    """Shape of a LoRA. Its output is scaled by alpha / rank."""

    rank: int
    alpha: float
    targets: tuple[str, ...]
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapter:
    """A loaded adapter file. `alpha` None means equal to the rank."""

    tensors: Mapping[str, torch.Tensor]
    metadata: Mapping[str, str]
    alpha: float | None


def matched_modules(denoiser: nn.Module, targets: Sequence[str]) -> dict[str, list[str]]:
    """Target -> names of the linear layers that it matches, by whole trailing segments."""
    linear = [name for name, module in denoiser.named_modules() if isinstance(module, nn.Linear)]
    return {
        target: [name for name in linear if f".{name}".endswith(f".{target}")] for target in targets
    }


def inject_adapter(denoiser: nn.Module, shape: AdapterShape) -> dict[str, nn.Parameter]:
    """Put a fresh adapter into a frozen denoiser; returns its parameters by file key, sorted.

    A is drawn from torch's global generator, B is zero, so the output is unchanged. Only the
    adapter's parameters require gradients, and they are fp32 whatever the denoiser holds. Only
    its dropout is in train mode. Raises UnmatchedTargetError.
    """
    for target, modules in matched_modules(denoiser, shape.targets).items():
        if not modules:
            raise UnmatchedTargetError(f"target {target!r} matches no linear layer")
    denoiser.requires_grad_(False)
    config = LoraConfig(
        r=shape.rank,
        lora_alpha=shape.alpha,
        lora_dropout=shape.dropout,
        target_modules=list(shape.targets),
        init_lora_weights=True,
    )
    inject_adapter_in_model(config, denoiser, adapter_name=_ADAPTER_NAME)
    denoiser.eval()
    for module in denoiser.modules():
        if isinstance(module, LoraLayer):
            module.lora_dropout.train()
    parameters = {}
    for name, parameter in denoiser.named_parameters():
        if f".{_ADAPTER_NAME}." in name:
            parameter.data = parameter.data.float()
            parameter.requires_grad_(True)
            parameters[PREFIX + name.replace(f".{_ADAPTER_NAME}.", ".")] = parameter
    return dict(sorted(parameters.items()))


def save_adapter(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    shape: AdapterShape,
    metadata: Mapping[str, str],
    *,
    failpoint: Failpoint = no_failpoint,
) -> int:
    """Write durably; returns the size in bytes. Raises UnsafeAdapterError, OSError."""
    spoiled = first_non_finite(tensors)
    if spoiled is not None:
        raise UnsafeAdapterError(f"{spoiled} is not finite")
    config = {
        f"{PREFIX}r": shape.rank,
        f"{PREFIX}lora_alpha": shape.alpha,
        f"{PREFIX}target_modules": sorted(shape.targets),
    }
    complete = {**metadata, CONFIG_KEY: json.dumps(config, sort_keys=True)}
    return write_safetensors(path, tensors, complete, failpoint=failpoint)


def load_adapter(path: Path) -> Adapter:
    """Header checked first, non-finite values refused. Raises UnsafeAdapterError, OSError."""
    try:
        tensors, metadata = read_safetensors(path, ADAPTER_LIMITS)
    except SafetensorsError as error:
        raise UnsafeAdapterError(str(error)) from error
    spoiled = first_non_finite(tensors)
    if spoiled is not None:
        raise UnsafeAdapterError(f"{spoiled} is not finite")
    return Adapter(tensors=tensors, metadata=metadata, alpha=_alpha(metadata))


def check_fits(denoiser: nn.Module, adapter: Adapter) -> None:
    """Every key must be half of a pair on a linear layer of its size. Raises AdapterMismatchError."""
    layers = {
        name.removesuffix(".base_layer"): module
        for name, module in denoiser.named_modules()
        if isinstance(module, nn.Linear)
    }
    unknown = [key for key in adapter.tensors if _module_of(key) not in layers]
    if unknown or not adapter.tensors:
        raise AdapterMismatchError(f"{len(unknown)} keys fit nothing here: {unknown[:3]}")
    for name in {_module_of(key) for key in adapter.tensors}:
        down = adapter.tensors.get(f"{PREFIX}{name}{_DOWN}")
        up = adapter.tensors.get(f"{PREFIX}{name}{_UP}")
        if down is None or up is None:
            raise AdapterMismatchError(f"{name} has only one of its two matrices")
        rank, layer = down.shape[0], layers[name]
        if down.shape != (rank, layer.in_features) or up.shape != (layer.out_features, rank):
            raise AdapterMismatchError(
                f"{name}: {tuple(down.shape)} and {tuple(up.shape)} do not fit a layer of "
                f"{layer.in_features} to {layer.out_features}"
            )


class AdapterStack:
    """The adapters on one resident denoiser; the base weights are never touched.

    Without any adapter the denoiser holds its original layers again, so its output is that of
    the never-adapted base bit for bit.
    """

    def __init__(self, denoiser: Any) -> None:
        self._denoiser = denoiser
        self._loaded: dict[str, Adapter] = {}

    def switch(self, adapters: Mapping[str, tuple[Adapter, float]]) -> None:
        """Make exactly these active: name -> (adapter, weight). Names are letters and digits.

        Raises AdapterMismatchError, and ValueError for a name already used for another adapter.
        """
        for name, (adapter, _) in adapters.items():
            if name not in self._loaded:
                check_fits(self._denoiser, adapter)
            elif self._loaded[name] is not adapter:
                raise ValueError(f"the name {name} belongs to another adapter")
        if not adapters:
            if self._loaded:
                self._denoiser.unload_lora()
                self._loaded.clear()
            return
        for name, (adapter, _) in adapters.items():
            if name not in self._loaded:
                self._load(name, adapter)
        unused = [name for name in self._loaded if name not in adapters]
        if unused:
            self._denoiser.delete_adapters(unused)
            for name in unused:
                del self._loaded[name]
        self._denoiser.set_adapters(list(adapters), [weight for _, weight in adapters.values()])

    def _load(self, name: str, adapter: Adapter) -> None:
        metadata = None
        if adapter.alpha is not None:
            metadata = _peft_configuration(adapter)
        with warnings.catch_warnings():
            # peft warns of every second adapter; a stack of them is what this class is for.
            warnings.filterwarnings("ignore", "Already found a `peft_config` attribute")
            self._denoiser.load_lora_adapter(
                dict(adapter.tensors), prefix=PREFIX[:-1], adapter_name=name, metadata=metadata
            )
        self._loaded[name] = adapter


def _peft_configuration(adapter: Adapter) -> dict[str, Any]:
    """What peft needs, rebuilt from the tensors; the file's own record is not trusted for more."""
    ranks = {
        _module_of(key): tensor.shape[0]
        for key, tensor in adapter.tensors.items()
        if key.endswith(_DOWN)
    }
    rank = max(ranks.values())
    return {
        f"{PREFIX}r": rank,
        f"{PREFIX}lora_alpha": adapter.alpha,
        f"{PREFIX}target_modules": sorted(ranks),
        f"{PREFIX}rank_pattern": {f"^{m}": r for m, r in ranks.items() if r != rank},
    }


def _module_of(key: str) -> str:
    for suffix in (_DOWN, _UP):
        if key.startswith(PREFIX) and key.endswith(suffix):
            return key.removeprefix(PREFIX).removesuffix(suffix)
    return ""


def _alpha(metadata: Mapping[str, str]) -> float | None:
    try:
        value = json.loads(metadata.get(CONFIG_KEY, "{}")).get(f"{PREFIX}lora_alpha")
    except (ValueError, AttributeError):
        return None
    return float(value) if isinstance(value, int | float) else None
