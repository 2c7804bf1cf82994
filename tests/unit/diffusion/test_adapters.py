import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import diffusers
import pytest
import torch

from sfumato_diffusion.adapter_metadata import AdapterOrigin, adapter_metadata
from sfumato_diffusion.adapters import (
    CONFIG_KEY,
    Adapter,
    AdapterMismatchError,
    AdapterShape,
    AdapterStack,
    UnmatchedTargetError,
    UnsafeAdapterError,
    inject_adapter,
    load_adapter,
    matched_modules,
    save_adapter,
)
from sfumato_diffusion.families.contract import PromptEmbedding
from sfumato_diffusion.families.registry import family_info, list_families, load_family
from sfumato_diffusion.safetensors_file import serialise

FAMILIES = [info.name for info in list_families()]
VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "adapter_targets.json").read_text())
REAL_CONFIGS = {"flux.1": {"guidance_embeds": True}, "z-image": {}}


class Model:
    """A tiny denoiser with something to predict from."""

    def __init__(self, name: str, directory: Path) -> None:
        self.family = load_family(name)
        self.directory = directory
        self.info = self.family.info
        self.denoiser = self.family.load_denoiser(directory, precision="fp32")
        encoders = self.family.load_text_encoders(directory, precision="fp32")
        self.prompts: list[PromptEmbedding] = [
            self.family.encode_prompt(encoders, caption) for caption in ("a cat", "a dog")
        ]
        self.x_t = torch.randn(2, 8, 8, 8, generator=torch.Generator().manual_seed(0))

    def shape(self, rank: int = 4, alpha: float = 4.0) -> AdapterShape:
        return AdapterShape(rank=rank, alpha=alpha, targets=self.info.adapter_targets)

    def predict(self) -> torch.Tensor:
        sigma = torch.tensor([0.3, 0.8])
        return self.family.predict(self.denoiser, self.x_t, sigma, self.prompts)


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> Model:
    return Model(request.param, tiny_model(request.param))


def _trained(model: Model, seed: int, *, alpha: float = 4.0) -> Adapter:
    other = Model(model.info.name, model.directory)
    torch.manual_seed(seed)
    parameters = inject_adapter(other.denoiser, model.shape(alpha=alpha))
    tensors = {name: torch.randn_like(value) * 0.3 for name, value in parameters.items()}
    return Adapter(tensors=tensors, metadata={}, alpha=alpha)


@pytest.mark.parametrize("family", FAMILIES)
def test_target_counts_on_the_real_architecture(family: str) -> None:
    info = family_info(family)
    with torch.device("meta"):
        denoiser = getattr(diffusers, info.denoiser_class)(**REAL_CONFIGS[family])
    matched = matched_modules(denoiser, info.adapter_targets)
    modules = {name for names in matched.values() for name in names}
    assert len(modules) == VECTORS["families"][family]["modules"]


def test_a_fresh_adapter_changes_no_bit(model: Model) -> None:
    before = model.predict()
    inject_adapter(model.denoiser, model.shape())
    assert torch.equal(before, model.predict())


def test_gradients_reach_the_adapter_only(model: Model) -> None:
    parameters = inject_adapter(model.denoiser, model.shape())
    with torch.no_grad():
        for name, parameter in parameters.items():
            if "lora_B" in name:
                parameter.normal_()
    model.predict().square().mean().backward()
    adapted = {id(parameter) for parameter in parameters.values()}
    for name, parameter in model.denoiser.named_parameters():
        assert parameter.requires_grad is (id(parameter) in adapted), name
        assert (parameter.grad is not None) is (id(parameter) in adapted), name
    # The last block's text half ends in nothing, so its output has no gradient to give.
    silent = [name for name, p in parameters.items() if not p.grad.abs().sum() > 0]
    assert all("attn" in name and "add" in name for name in silent), silent
    assert len(silent) < len(parameters) / 4


def test_only_the_adapters_dropout_is_in_train_mode(model: Model) -> None:
    shape = dataclasses.replace(model.shape(), dropout=0.5)
    inject_adapter(model.denoiser, shape)
    training = [name for name, module in model.denoiser.named_modules() if module.training]
    assert training
    assert all("lora_dropout" in name for name in training)


def test_unmatched_target_is_refused(model: Model) -> None:
    shape = AdapterShape(rank=4, alpha=4, targets=("to_q", "o_q"))
    with pytest.raises(UnmatchedTargetError, match="'o_q'"):
        inject_adapter(model.denoiser, shape)


def test_file_round_trip_and_metadata(model: Model, tmp_path: Path) -> None:
    adapter = _trained(model, 1, alpha=8.0)
    origin = AdapterOrigin(
        title="run", base_model="org/base", resolution=64, steps=7, num_images=3, batch_size=2,
        lineage={"run": "run"},
    )  # fmt: skip
    shape = model.shape(alpha=8.0)
    metadata = adapter_metadata(model.info, shape, origin, adapter.tensors)
    path = tmp_path / "adapter.safetensors"
    save_adapter(path, adapter.tensors, shape, metadata)
    loaded = load_adapter(path)
    assert loaded.alpha == 8.0
    assert loaded.tensors.keys() == adapter.tensors.keys()
    assert all(torch.equal(loaded.tensors[name], t) for name, t in adapter.tensors.items())
    assert loaded.metadata["modelspec.sai_model_spec"] == "1.0.1"
    assert loaded.metadata["ss_network_dim"] == "4"
    assert loaded.metadata["ss_network_alpha"] == "8"
    assert loaded.metadata["sfumato.run"] == "run"


def test_diffusers_loads_the_file_to_the_same_output(model: Model, tmp_path: Path) -> None:
    adapter = _trained(model, 1, alpha=8.0)
    path = tmp_path / "adapter.safetensors"
    save_adapter(path, adapter.tensors, model.shape(alpha=8.0), {})
    AdapterStack(model.denoiser).switch({"one": (load_adapter(path), 1.0)})
    with torch.no_grad():
        ours = model.predict()
    pipeline = model.family.load_pipeline(model.directory, precision="fp32")
    pipeline.load_lora_weights(path)
    model.denoiser = pipeline.transformer
    with torch.no_grad():
        assert torch.equal(model.predict(), ours)


def test_switching_stacks_leaves_the_base_as_it_was(model: Model) -> None:
    weights = {name: p.clone() for name, p in model.denoiser.named_parameters()}
    first, second = _trained(model, 1), _trained(model, 2)
    stack = AdapterStack(model.denoiser)
    outputs = []
    with torch.no_grad():
        for adapters in (
            {},
            {"a": (first, 1.0)},
            {"b": (second, 1.0)},
            {"a": (first, 1.0), "b": (second, -0.5)},
            {"a": (first, 0.5)},
            {"a": (first, 1.0)},
            {},
        ):
            stack.switch(adapters)
            outputs.append(model.predict())
    assert torch.equal(outputs[0], outputs[-1])
    assert torch.equal(outputs[1], outputs[-2])
    distinct = [outputs[index] for index in (0, 1, 2, 3, 4)]
    for index, left in enumerate(distinct):
        assert not any(torch.equal(left, right) for right in distinct[index + 1 :])
    after = dict(model.denoiser.named_parameters())
    assert after.keys() == weights.keys()
    assert all(torch.equal(after[name], value) for name, value in weights.items())


def test_weight_scales_the_difference(model: Model) -> None:
    adapter = _trained(model, 1, alpha=4.0)
    doubled = dataclasses.replace(adapter, alpha=8.0)
    stack = AdapterStack(model.denoiser)
    with torch.no_grad():
        stack.switch({"a": (adapter, 2.0)})
        twice = model.predict()
        stack.switch({"b": (doubled, 1.0)})
        torch.testing.assert_close(model.predict(), twice)


def test_what_does_not_fit_is_refused_before_anything_is_loaded(model: Model) -> None:
    adapter = _trained(model, 1)
    name, tensor = next(iter(adapter.tensors.items()))
    others = {
        "unknown module": {**adapter.tensors, "transformer.nowhere.lora_A.weight": tensor},
        "another layout": {f"lora_unet_{key}": value for key, value in adapter.tensors.items()},
        "half a pair": {name: tensor},
        "wrong size": {key: value[..., :-1] for key, value in adapter.tensors.items()},
        "nothing": {},
    }
    stack = AdapterStack(model.denoiser)
    before = model.predict()
    for case, tensors in others.items():
        with pytest.raises(AdapterMismatchError):
            stack.switch({"x": (Adapter(tensors=tensors, metadata={}, alpha=None), 1.0)})
        assert torch.equal(before, model.predict()), case


@pytest.mark.parametrize("family", FAMILIES)
def test_unsafe_files_are_refused(family: str, tmp_path: Path) -> None:
    path = tmp_path / "adapter.safetensors"
    spoiled = {"transformer.a.lora_A.weight": torch.tensor([[torch.inf]])}
    shape = AdapterShape(rank=1, alpha=1, targets=("a",))
    with pytest.raises(UnsafeAdapterError):
        save_adapter(path, spoiled, shape, {})
    assert not path.exists()
    path.write_bytes(b"".join(serialise(spoiled, {CONFIG_KEY: "nonsense"})))
    with pytest.raises(UnsafeAdapterError):
        load_adapter(path)
    path.write_bytes(b"PK\x03\x04 a zip archive, as pickled weights are")
    with pytest.raises(UnsafeAdapterError):
        load_adapter(path)
