"""What the libraries load all the same is refused, or is an error that names the component."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sfumato_diffusion.families.contract import UnreadableModelError
from sfumato_diffusion.families.loaded_parts import check_settings
from sfumato_diffusion.families.registry import family_info, load_family
from sfumato_diffusion.model_folder import ModelFolderError, check_model_folder

DENOISER = "transformer/diffusion_pytorch_model.safetensors"
ENCODER = "text_encoder/model.safetensors"


@pytest.fixture
def model(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of the tiny z-image."""
    return Path(shutil.copytree(tiny_model("z-image"), tmp_path / "model"))


def load(model: Path) -> Any:
    """As a generation does it: nothing is to be seen before the libraries load the model."""
    check_model_folder(model, family_info("z-image"))
    return load_family("z-image").load_pipeline(model, precision="fp32")


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def rename_tensor(file: Path, name: str, new: str | None) -> None:
    """Drops it where there is no new name."""
    tensors = load_file(file)
    tensor = tensors.pop(name)
    save_file(tensors if new is None else {**tensors, new: tensor}, file, {"format": "pt"})


def cut_embeddings(model: Path, num: int) -> None:
    tensors = load_file(model / ENCODER)
    tensors["embed_tokens.weight"] = tensors["embed_tokens.weight"][:num].clone()
    save_file(tensors, model / ENCODER, {"format": "pt"})
    change(model / "text_encoder" / "config.json", vocab_size=num)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (
            lambda m: rename_tensor(m / DENOISER, "x_pad_token", None),
            "^transformer: its weights lack x_pad_token$",
        ),
        (
            lambda m: rename_tensor(m / ENCODER, "norm.weight", None),
            "^text_encoder: its weights lack norm.weight$",
        ),
        (
            lambda m: rename_tensor(m / ENCODER, "norm.weight", "other.weight"),
            "^text_encoder: its weights lack norm.weight$",
        ),
        (
            lambda m: change(m / "transformer" / "config.json", n_layers=0),
            r"^transformer: its architecture has no layers\.0\..*, .*, .* and \d+ more$",
        ),
        (
            lambda m: change(m / "transformer" / "config.json", n_layers=3),
            r"^transformer: its weights lack layers\.2\.",
        ),
        (
            lambda m: change(
                m / "text_encoder" / "config.json", num_hidden_layers=1, layer_types=None
            ),
            r"^text_encoder: its architecture has no layers\.1\.",
        ),
        (
            lambda m: change(m / "transformer" / "config.json", norm_eps=None),
            "^transformer: norm_eps is not what ZImageTransformer2DModel takes",
        ),
        (
            lambda m: change(m / "transformer" / "config.json", axes_dims=[4, "6", 6]),
            "^transformer: axes_dims is not",
        ),
        (
            lambda m: change(m / "vae" / "config.json", act_fn=None),
            "^vae: act_fn is not what AutoencoderKL takes",
        ),
        (
            lambda m: change(
                m / "scheduler" / "scheduler_config.json", use_dynamic_shifting="false"
            ),
            "^scheduler: use_dynamic_shifting is not",
        ),
        (
            lambda m: change(m / "model_index.json", text_encoder=["transformers", "Absent"]),
            "^text_encoder: transformers has no model Absent",
        ),
        (
            lambda m: change(m / "model_index.json", text_encoder=["transformers", "AutoModel"]),
            "^text_encoder: transformers has no model AutoModel",
        ),
        (
            lambda m: (m / "tokenizer" / "chat_template.jinja").write_text("Hello"),
            "^tokenizer: its chat template leaves the prompt out",
        ),
        (
            lambda m: cut_embeddings(m, 200),
            "^tokenizer: has a token 260 for an encoder of 200 embeddings",
        ),
    ],
)
def test_what_the_libraries_let_pass(damage: Callable[[Path], Any], told: str, model: Path) -> None:
    damage(model)
    with pytest.raises(ModelFolderError, match=told):
        load(model)


@pytest.mark.parametrize(
    ("damage", "component"),
    [
        (lambda m: (m / "tokenizer" / "chat_template.jinja").write_text("{% if"), "tokenizer"),
        (lambda m: (m / "tokenizer" / "tokenizer.json").write_text("[]"), "tokenizer"),
        (lambda m: change(m / "transformer" / "config.json", dim=48), "transformer"),
        (lambda m: change(m / "vae" / "config.json", act_fn="none"), "vae"),
        (
            lambda m: change(m / "text_encoder" / "config.json", rms_norm_eps=None),
            "text_encoder",
        ),
        (
            lambda m: change(m / "scheduler" / "scheduler_config.json", use_karras_sigmas=1),
            "scheduler",
        ),
    ],
)
def test_an_error_of_the_library_names_the_component(
    damage: Callable[[Path], Any], component: str, model: Path
) -> None:
    damage(model)
    with pytest.raises((UnreadableModelError, ModelFolderError), match=f"^{component}") as failure:
        load(model)
    if isinstance(failure.value, UnreadableModelError):
        assert failure.value.__cause__ is not None


def test_the_stages_of_a_training_refuse_the_same(model: Path) -> None:
    family = load_family("z-image")
    rename_tensor(model / ENCODER, "norm.weight", None)
    rename_tensor(model / DENOISER, "x_pad_token", "y_pad_token")
    vae = model / "vae" / "diffusion_pytorch_model.safetensors"
    rename_tensor(vae, "encoder.conv_in.bias", None)
    for stage, component in (
        (family.load_text_encoders, "text_encoder"),
        (family.load_denoiser, "transformer"),
        (family.load_vae, "vae"),
    ):
        with pytest.raises(ModelFolderError, match=f"^{component}: its weights lack"):
            stage(model, precision="fp32")


def test_a_language_models_head_may_lie_unused(model: Path) -> None:
    tensors = load_file(model / ENCODER)
    tensors["lm_head.weight"] = tensors["embed_tokens.weight"].clone()
    save_file(tensors, model / ENCODER, {"format": "pt"})
    load(model)


def test_a_count_of_positions_may_lie_unused(model: Path) -> None:
    tensors = load_file(model / ENCODER)
    tensors["embeddings.position_ids"] = torch.arange(4)
    save_file(tensors, model / ENCODER, {"format": "pt"})
    load(model)


def test_the_names_of_a_whole_language_model_are_understood(model: Path) -> None:
    tensors = {f"model.{name}": tensor for name, tensor in load_file(model / ENCODER).items()}
    save_file(tensors, model / ENCODER, {"format": "pt"})
    load(model)


def test_a_list_is_as_long_as_its_annotation_says(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    flux = Path(shutil.copytree(tiny_model("flux.1"), tmp_path / "flux"))
    change(flux / "transformer" / "config.json", axes_dims_rope=[8, 8])
    with pytest.raises(ModelFolderError, match=r"^transformer: axes_dims_rope is not"):
        load_family("flux.1").load_denoiser(flux, precision="fp32")


def test_what_the_library_itself_leaves_out_may_lie_there(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    flux = Path(shutil.copytree(tiny_model("flux.1"), tmp_path / "flux"))
    for encoder, name in (
        ("text_encoder", "text_model.embeddings.position_ids"),
        ("text_encoder_2", "decoder.block.0.layer.0.layer_norm.weight"),
    ):
        file = flux / encoder / "model.safetensors"
        save_file({**load_file(file), name: torch.arange(77)[None]}, file, {"format": "pt"})
    load_family("flux.1").load_text_encoders(flux, precision="fp32")


@pytest.mark.parametrize("stage", ["vae", "denoiser"])
@pytest.mark.parametrize("name", ["AutoencoderFoo", "ZImagePipeline", "A" * 5_000_000])
def test_what_the_index_calls_a_part_decides_nothing_at_its_load(
    stage: str, name: str, model: Path
) -> None:
    """The family has one class for each; the index is checked apart."""
    component = {"vae": "vae", "denoiser": "transformer"}[stage]
    change(model / "model_index.json", **{component: ["diffusers", name]})
    part = getattr(load_family("z-image"), f"load_{stage}")(model, precision="fp32")
    assert type(part).__name__ in {"AutoencoderKL", "ZImageTransformer2DModel"}


@pytest.mark.parametrize(
    ("default", "value", "fits"),
    [
        ((), [1], True),
        ((), 1, False),
        ((1,), [2], True),
        ((1,), ["a"], False),
        ((1, "a"), ["a"], True),
    ],
)
def test_a_list_is_compared_with_what_its_default_holds(
    default: Any, value: Any, fits: bool
) -> None:
    class Kind:
        def __init__(self, sizes=default):
            assert sizes is default

    if fits:
        check_settings("vae", {"sizes": value}, Kind)
    else:
        with pytest.raises(ModelFolderError, match="sizes is not what Kind takes"):
            check_settings("vae", {"sizes": value}, Kind)
