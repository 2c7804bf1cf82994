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
    MissingPartError,
    ModelFolderError,
    UnsafeWeightsError,
    check_model_folder,
    max_side,
    unmatched_targets,
)
from sfumato_diffusion.safetensors_header import MODEL_LIMITS, read_header

Z_IMAGE, FLUX = family_info("z-image"), family_info("flux.1")
DENOISER = "transformer/diffusion_pytorch_model.safetensors"
DENOISER_INDEX = f"{DENOISER}.index.json"
SCHEDULER = "scheduler/scheduler_config.json"
TOKENIZER = "tokenizer/tokenizer_config.json"
TEMPLATE = "tokenizer/chat_template.jinja"
EMPTY = (2).to_bytes(8, "little") + b"{}"
"""A file of safetensors that holds none."""


@pytest.fixture
def model(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of the tiny z-image."""
    return Path(shutil.copytree(tiny_model("z-image"), tmp_path / "model"))


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def drop(file: Path, name: str) -> None:
    settings = json.loads(file.read_text())
    del settings[name]
    file.write_text(json.dumps(settings))


def rename(file: Path, name: str) -> None:
    file.rename(file.with_name(name))


def split(model: Path, *, lost: str | None = None, tensor: str = "lost") -> None:
    """Calls the denoiser's weights a shard; an index names it and perhaps one more tensor in a file."""
    file = model / DENOISER
    names = read_header(file, MODEL_LIMITS).tensors
    rename(file, "shard-1.safetensors")
    weight_map = dict.fromkeys(names, "shard-1.safetensors") | ({tensor: lost} if lost else {})
    (model / DENOISER_INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.mark.parametrize("family", ["z-image", "flux.1"])
def test_a_whole_model_passes_and_loads(family: str, tiny_model: Callable[[str], Path]) -> None:
    check_model_folder(tiny_model(family), family_info(family))
    load_family(family).load_pipeline(tiny_model(family), precision="fp32")


def test_shards_by_their_index(model: Path) -> None:
    split(model)
    check_model_folder(model, Z_IMAGE)
    assert unmatched_targets(model, Z_IMAGE, ["to_q"]) == []
    load_family("z-image").load_denoiser(model, precision="fp32")


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
        (lambda m: change(m / "vae" / "config.json", scaling_factor=None), "vae: scaling_factor"),
        (lambda m: change(m / "vae" / "config.json", scaling_factor=0), "vae: .* above 0$"),
        (lambda m: change(m / "vae" / "config.json", scaling_factor=10**400), "vae: scaling_f"),
        (lambda m: change(m / "vae" / "config.json", scaling_factor=True), "vae: scaling_factor"),
        (lambda m: change(m / "vae" / "config.json", shift_factor="a"), "vae: .* be a number$"),
        (lambda m: change(m / "vae" / "config.json", shift_factor=None), "vae: shift_factor"),
        (lambda m: drop(m / "vae" / "config.json", "shift_factor"), "vae: has no shift_factor"),
        (
            lambda m: change(m / "vae" / "config.json", _class_name="AutoencoderTiny"),
            "vae: is a AutoencoderTiny, not a AutoencoderKL",
        ),
        (
            lambda m: change(m / "model_index.json", text_encoder=["diffusers", "AutoencoderKL"]),
            "text_encoder: is of diffusers, not of transformers",
        ),
        (
            lambda m: change(m / "model_index.json", scheduler=["other", "F"]),
            "scheduler: is a F, not a FlowMatchEulerDiscreteScheduler",
        ),
        (
            lambda m: change(m / SCHEDULER, _class_name="DDIMScheduler"),
            "scheduler: is a DDIMScheduler, not a FlowMatchEulerDiscreteScheduler",
        ),
        (
            lambda m: change(m / SCHEDULER, max_image_seq_len=256),
            "scheduler: .* are the same",
        ),
        (
            lambda m: change(m / SCHEDULER, stochastic_sampling=True),
            "scheduler: stochastic_sampling",
        ),
        (
            lambda m: change(m / "vae" / "config.json", latent_channels=4),
            "transformer: in_channels is 8, which does not fit the vae with latent_channels 4",
        ),
        (
            lambda m: change(m / "text_encoder" / "config.json", hidden_size=64),
            "transformer: cap_feat_dim is 32, which does not fit the text_encoder",
        ),
        (lambda m: change(m / TOKENIZER, model_max_length="x"), "tokenizer: model_max_length"),
        (lambda m: change(m / SCHEDULER, max_shift=1e4), "scheduler: max_shift must be .* most 10"),
        (lambda m: change(m / TOKENIZER, pad_token=None), "tokenizer: has no padding token"),
        (lambda m: (m / TOKENIZER).write_text("{"), "tokenizer: tokenizer_config.json is not JSON"),
        (lambda m: (m / TEMPLATE).write_text(" \n"), "tokenizer: its chat template is empty"),
        (lambda m: (m / TEMPLATE).unlink(), "tokenizer: has no chat template"),
        (
            lambda m: change(m / "text_encoder" / "config.json", transformers_weights="a"),
            "text_encoder: transformers_weights",
        ),
        (
            lambda m: (m / "text_encoder" / "adapter_config.json").write_text("{}"),
            "text_encoder: adapter_config.json",
        ),
        (lambda m: (m / DENOISER).unlink(), "transformer: has no weights"),
        (lambda m: rename(m / DENOISER, "model.safetensors"), "transformer: has no weights"),
        (lambda m: (m / DENOISER).write_bytes(EMPTY), "transformer: its weights hold no tensors"),
        (
            lambda m: (m / DENOISER_INDEX).write_text('{"metadata": {}, "weight_map": {}}'),
            "transformer: .* names no weights",
        ),
        (
            lambda m: (m / DENOISER_INDEX).write_text('{"metadata": {}, "weight_map": []}'),
            "transformer: .* has no weight_map",
        ),
        (
            lambda m: (m / DENOISER_INDEX).write_text('{"weight_map": {"a": "b"}}'),
            "transformer: .* has no metadata",
        ),
        (
            lambda m: split(m, lost="shard-1.safetensors", tensor="layers.9.bias"),
            "transformer: shard-1.safetensors lacks layers.9.bias",
        ),
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
    assert refusal.value.reason == "MODEL_UNSUPPORTED"
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
    assert (refusal.value.component, refusal.value.reason) == ("transformer", "WEIGHTS_UNSAFE")


@pytest.mark.parametrize(
    ("damage", "looks_interrupted"),
    [
        (lambda m: shutil.rmtree(m / "vae"), True),
        (lambda m: (m / DENOISER).unlink(), True),
        (lambda m: (m / TEMPLATE).unlink(), True),
        (lambda m: (m / "tokenizer" / "tokenizer.json").unlink(), True),
        (lambda m: (m / "model_index.json").unlink(), True),
        (lambda m: split(m, lost="shard-2.safetensors"), True),
        (lambda m: relink(m / DENOISER, m / "cleared"), True),
        (lambda m: (m / "vae" / "config.json").write_text("{"), False),
        (lambda m: rename(m / DENOISER, "weights.bin"), False),
        (lambda m: change(m / "model_index.json", vae=None), False),
        (lambda m: change(m / "model_index.json", vae=["diffusers", "AutoencoderTiny"]), False),
    ],
)
def test_what_an_interrupted_download_leaves(
    damage: Callable[[Path], Any], looks_interrupted: bool, model: Path
) -> None:
    damage(model)
    with pytest.raises(ModelFolderError) as refusal:
        check_model_folder(model, Z_IMAGE)
    assert isinstance(refusal.value, MissingPartError) == looks_interrupted


def relink(file: Path, target: Path) -> None:
    file.unlink()
    file.symlink_to(target)


def test_a_tokenizer_longer_than_its_encoder(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    flux = Path(shutil.copytree(tiny_model("flux.1"), tmp_path / "flux"))
    change(flux / TOKENIZER, model_max_length=512)
    with pytest.raises(ModelFolderError, match=r"tokenizer: model_max_length .* at most 77"):
        check_model_folder(flux, FLUX)


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
    (model / DENOISER).write_bytes(b"\x80\x04K\x01.")
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


@pytest.mark.parametrize("name", [TEMPLATE, TOKENIZER, "model_index.json", SCHEDULER])
def test_a_file_that_cannot_be_read_is_told_by_component(name: str, model: Path) -> None:
    (model / name).unlink(missing_ok=True)
    (model / name).symlink_to("/proc/self/mem")  # not even root can read its beginning
    with pytest.raises(ModelFolderError, match=rf"{Path(name).name} cannot be read"):
        check_model_folder(model, Z_IMAGE)


def test_what_a_file_says_is_never_repeated_whole(model: Path) -> None:
    change(model / "model_index.json", vae=["diffusers", "A" * 5_000_000])
    with pytest.raises(ModelFolderError) as refusal:
        check_model_folder(model, Z_IMAGE)
    assert len(str(refusal.value)) < 600
