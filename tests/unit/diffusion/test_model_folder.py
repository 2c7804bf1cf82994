"""What is wrong with a model's folder is told by component, without loading it."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sfumato_diffusion.families.contract import TextToImage
from sfumato_diffusion.families.identify import UnidentifiedModelError, identify_family
from sfumato_diffusion.families.registry import family_info, load_family
from sfumato_diffusion.model_folder import (
    ModelFolderError,
    UnsafeWeightsError,
    check_model_folder,
    max_side,
    unmatched_targets,
)

Z_IMAGE, FLUX = family_info("z-image"), family_info("flux.1")
DENOISER = "transformer/diffusion_pytorch_model.safetensors"


@pytest.fixture
def model(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of the tiny z-image."""
    return Path(shutil.copytree(tiny_model("z-image"), tmp_path / "model"))


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def rename(file: Path, name: str) -> None:
    file.rename(file.with_name(name))


def split(model: Path, *, lost: str | None = None) -> None:
    """Calls the denoiser's weights a shard; an index names it and perhaps one that is not there."""
    file = model / DENOISER
    rename(file, "shard-1.safetensors")
    weight_map = {"a": "shard-1.safetensors", **({"b": lost} if lost else {})}
    index = file.with_name(f"{file.name}.index.json")
    index.write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize("family", ["z-image", "flux.1"])
def test_a_whole_model_passes_and_loads(family: str, tiny_model: Callable[[str], Path]) -> None:
    check_model_folder(tiny_model(family), family_info(family))
    load_family(family).load_pipeline(tiny_model(family), precision="fp32")


def test_shards_by_their_index(model: Path) -> None:
    split(model)
    check_model_folder(model, Z_IMAGE)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda m: (m / "model_index.json").write_text("{"), "model_index.json: .*not JSON"),
        (lambda m: (m / "model_index.json").write_text("[]"), "model_index.json: .*not an object"),
        (lambda m: (m / "model_index.json").unlink(), "^model_index.json: is missing"),
        (shutil.rmtree, "^model_index.json: is missing"),
        (lambda m: change(m / "model_index.json", vae=None), "vae: is missing in model_index.json"),
        (lambda m: change(m / "model_index.json", extra=["a", "B"]), "extra: is missing"),
        (
            lambda m: change(m / "model_index.json", transformer=["diffusers", "Other"]),
            "transformer: is a Other, not a ZImageTransformer2DModel",
        ),
        (lambda m: shutil.rmtree(m / "tokenizer"), "tokenizer: is missing"),
        (lambda m: (m / "tokenizer" / "tokenizer.json").unlink(), "tokenizer: has no vocabulary"),
        (lambda m: (m / "text_encoder" / "config.json").unlink(), "text_encoder: config.json"),
        (lambda m: change(m / "vae" / "config.json", scaling_factor=float("nan")), "vae: .*finite"),
        (
            lambda m: (m / "vae" / "config.json").write_text('{"scaling_factor": 1e309}'),
            "vae: .*finite",
        ),
        (lambda m: (m / DENOISER).unlink(), "transformer: has no weights"),
        (lambda m: rename(m / DENOISER, "m.fp16.safetensors"), "transformer: has no weights"),
        (lambda m: split(m, lost="shard-2.safetensors"), "transformer: shard-2.* is missing"),
        (lambda m: split(m, lost="../vae/config.json"), "transformer: .* is missing"),
        (
            lambda m: change(m / "scheduler" / "scheduler_config.json", num_train_timesteps=0),
            "scheduler: num_train_timesteps",
        ),
        (
            lambda m: change(m / "scheduler" / "scheduler_config.json", shift=-1.0),
            "scheduler: shift",
        ),
        (
            lambda m: change(m / "scheduler" / "scheduler_config.json", base_shift="half"),
            "scheduler: base_shift must be a number",
        ),
        (
            lambda m: change(m / "transformer" / "config.json", axes_lens=[513, 128, 128]),
            "transformer: axes_lens is too short for prompts of 512 tokens",
        ),
    ],
)
def test_the_component_is_named(damage: Callable[[Path], Any], told: str, model: Path) -> None:
    damage(model)
    with pytest.raises(ModelFolderError, match=told) as refusal:
        check_model_folder(model, Z_IMAGE)
    assert not isinstance(refusal.value, UnsafeWeightsError)
    assert str(model) not in str(refusal.value)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda file: rename(file, "weights.bin"), "pickled"),
        (lambda file: file.write_bytes(b"\x80\x04K\x01."), "header of"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "header describes"),
    ],
)
def test_weights_that_must_not_be_read(
    damage: Callable[[Path], Any], told: str, model: Path
) -> None:
    damage(model / DENOISER)
    with pytest.raises(UnsafeWeightsError, match=told) as refusal:
        check_model_folder(model, Z_IMAGE)
    assert refusal.value.component == "transformer"


@pytest.mark.parametrize("name", ["model_index.json", "transformer/config.json", DENOISER])
def test_a_pipe_is_not_read(name: str, model: Path) -> None:
    (model / name).unlink()
    os.mkfifo(model / name)
    with pytest.raises((ModelFolderError, UnidentifiedModelError)):
        check_model_folder(model, identify_family(str(model)))


@pytest.mark.parametrize(
    "damage",
    [
        lambda m: change(m / "model_index.json", **{"x" * 5000: ["a", "B"]}),
        lambda m: split(m, lost="x" * 5000),
        lambda m: split(m, lost="x\0"),
    ],
)
def test_names_that_no_file_can_have(damage: Callable[[Path], Any], model: Path) -> None:
    damage(model)
    with pytest.raises(ModelFolderError, match="is missing"):
        check_model_folder(model, Z_IMAGE)


def test_an_index_that_is_nested_too_deep(model: Path) -> None:
    (model / "model_index.json").write_text("[" * 200_000)
    with pytest.raises(UnidentifiedModelError):
        identify_family(str(model))


def test_a_whole_file_beside_the_shards_is_checked_too(model: Path) -> None:
    split(model)
    (model / "transformer" / "model.safetensors").write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(UnsafeWeightsError, match=r"model\.safetensors"):
        check_model_folder(model, Z_IMAGE)


def test_the_longest_side_is_the_models(model: Path, tiny_model: Callable[[str], Path]) -> None:
    assert max_side(model, Z_IMAGE) == 128 * 16
    assert max_side(tiny_model("flux.1"), FLUX) == FLUX.maximum_side
    change(model / "transformer" / "config.json", axes_lens=[1536, 512, 256])
    assert max_side(model, Z_IMAGE) == 256 * 16
    change(model / "transformer" / "config.json", axes_lens=[1536, 512, 512])
    assert max_side(model, Z_IMAGE) == Z_IMAGE.maximum_side
    (model / "transformer" / "config.json").write_text("{}")
    assert max_side(model, Z_IMAGE) == Z_IMAGE.maximum_side


def test_the_longest_prompt_finds_positions(model: Path) -> None:
    change(model / "transformer" / "config.json", axes_lens=[514, 128, 128])
    check_model_folder(model, Z_IMAGE)
    pipeline = load_family("z-image").load_pipeline(model, precision="fp32")
    request = TextToImage(prompt="fox " * 600, width=64, height=64, steps=1, seed=0)
    assert load_family("z-image").generate(pipeline, request).size == (64, 64)


@pytest.mark.parametrize(
    "lengths", ["many", [], [1536, 128], [1536, 128, 0], [1536, 128, 128.0], 128]
)
def test_positions_that_are_no_numbers(lengths: Any, model: Path) -> None:
    change(model / "transformer" / "config.json", axes_lens=lengths)
    with pytest.raises(ModelFolderError, match="transformer: axes_lens"):
        max_side(model, Z_IMAGE)


@pytest.mark.parametrize("info", [Z_IMAGE, FLUX], ids=lambda info: info.name)
def test_targets_that_match_nothing(info: Any, tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model(info.name)
    assert unmatched_targets(folder, info, info.adapter_targets) == []
    # The end of a name, but not of one of its parts; and a norm, which is no linear layer.
    assert unmatched_targets(folder, info, ["q", "to_q", "norm_q"]) == ["q", "norm_q"]
