"""Each family against diffusers' own pipeline, which is the truth about its conventions."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FluxPipeline
from PIL import Image

from sfumato_diffusion.families.contract import (
    Family,
    GenerationCancelledError,
    TextToImage,
    UnsupportedRequestError,
)
from sfumato_diffusion.families.registry import list_families, load_family

FAMILIES = [info.name for info in list_families()]
REQUEST = TextToImage(prompt="a red apple", width=64, height=64, steps=3, seed=7, guidance=2.0)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return load_family(request.param)


@pytest.fixture(scope="module")
def pipeline(family: Family, tiny_model: Callable[[str], Path]) -> Any:
    return family.load_pipeline(tiny_model(family.info.name), precision="fp32")


def _pixels(image: Image.Image) -> Any:
    return np.asarray(image)


def test_prediction_is_the_direction_of_the_pipelines_own_step(
    family: Family, tiny_model: Callable[[str], Path]
) -> None:
    """x(sigma') = x(sigma) + (sigma' - sigma) v for every step of the scheduler."""
    pipeline = family.load_pipeline(tiny_model(family.info.name), precision="fp32")
    before: list[torch.Tensor] = []
    after: list[torch.Tensor] = []
    original = pipeline.scheduler.step

    def step(model_output: Any, timestep: Any, sample: torch.Tensor, **kwargs: Any) -> Any:
        before.append(sample)
        result = original(model_output, timestep, sample, **kwargs)
        after.append(result[0])
        return result

    pipeline.scheduler.step = step
    guidance = 1.0 if family.info.name == "flux.1" else 0.0
    pipeline(
        prompt="a red apple",
        width=96,
        height=64,
        num_inference_steps=4,
        guidance_scale=guidance,
        generator=torch.Generator().manual_seed(1),
        output_type="latent",
    )
    sigmas = pipeline.scheduler.sigmas
    prompt = family.encode_prompt(pipeline, "a red apple")
    for index, (x_t, x_next) in enumerate(zip(before, after, strict=True)):
        sigma, sigma_next = sigmas[index], sigmas[index + 1]
        latents, following = (_as_latents(family, tensor) for tensor in (x_t, x_next))
        with torch.no_grad():
            velocity = family.predict(pipeline.transformer, latents, sigma[None], [prompt])
        torch.testing.assert_close(
            latents + (sigma_next - sigma) * velocity, following, atol=1e-5, rtol=0
        )


def _as_latents(family: Family, tensor: torch.Tensor) -> torch.Tensor:
    if family.info.name != "flux.1":
        return tensor
    return FluxPipeline._unpack_latents(tensor, 64, 96, 8)


def test_a_batch_predicts_what_its_items_predict_alone(family: Family, pipeline: Any) -> None:
    captions = ["a cat", "a longer caption about a small grey cat in a garden"]
    prompts = [family.encode_prompt(pipeline, caption) for caption in captions]
    x_t = torch.randn(2, 8, 8, 12, generator=torch.Generator().manual_seed(0))
    sigma = torch.tensor([0.2, 0.9])
    with torch.no_grad():
        both = family.predict(pipeline.transformer, x_t, sigma, prompts)
        for index in range(2):
            part = slice(index, index + 1)
            alone = family.predict(pipeline.transformer, x_t[part], sigma[part], prompts[part])
            torch.testing.assert_close(both[part], alone, atol=1e-5, rtol=1e-5)


def test_generate_equals_the_bare_pipeline_call(family: Family, pipeline: Any) -> None:
    done: list[tuple[int, int]] = []
    ours = family.generate(pipeline, REQUEST, on_step=lambda k, n: done.append((k, n)))
    bare = pipeline(
        prompt=REQUEST.prompt,
        width=64,
        height=64,
        num_inference_steps=3,
        guidance_scale=2.0,
        generator=torch.Generator("cpu").manual_seed(7),
    ).images[0]
    assert np.array_equal(_pixels(ours), _pixels(bare))
    assert done == [(1, 3), (2, 3), (3, 3)]


def test_prompt_seed_and_guidance_each_change_the_picture(family: Family, pipeline: Any) -> None:
    pictures = [
        _pixels(family.generate(pipeline, request))
        for request in (
            REQUEST,
            replace(REQUEST, prompt="a blue bird"),
            replace(REQUEST, seed=8),
            replace(REQUEST, guidance=5.0),
        )
    ]
    for other in pictures[1:]:
        assert (pictures[0] != other).any(axis=-1).mean() > 0.5
    assert np.array_equal(pictures[0], _pixels(family.generate(pipeline, REQUEST)))


def test_cancel_reaches_the_loop_within_one_step(family: Family, pipeline: Any) -> None:
    done: list[int] = []
    with pytest.raises(GenerationCancelledError):
        family.generate(
            pipeline,
            REQUEST,
            on_step=lambda k, _: done.append(k),
            cancelled=lambda: len(done) >= 1,
        )
    assert done == [1]


def test_decode_undoes_the_normalisation(family: Family, pipeline: Any) -> None:
    latents = torch.randn(1, 8, 8, 8, generator=torch.Generator().manual_seed(0))
    raw = latents / pipeline.vae.config.scaling_factor + pipeline.vae.config.shift_factor
    torch.testing.assert_close(family.normalise_latents(pipeline.vae, raw), latents)
    assert family.decode(pipeline, latents)[0].size == (64, 64)


def test_encoding_pictures(family: Family, pipeline: Any) -> None:
    picture = Image.effect_noise((64, 80), 80).convert("RGB")
    statistics = family.encode_image(pipeline.vae, picture)
    pixels = pipeline.image_processor.preprocess(picture)
    with torch.no_grad():
        posterior = pipeline.vae.encode(pixels).latent_dist
    expected = family.normalise_latents(pipeline.vae, posterior.mode())[0]
    torch.testing.assert_close(statistics.mean, expected, atol=1e-5, rtol=1e-5)
    assert statistics.mean.shape == (8, 10, 8)
    if family.info.latents == "posterior_mode":
        assert statistics.std is None
    else:
        scale = pipeline.vae.config.scaling_factor
        torch.testing.assert_close(statistics.std, posterior.std[0] * scale)


def test_bf16_on_request(family: Family, tiny_model: Callable[[str], Path]) -> None:
    pipeline = family.load_pipeline(tiny_model(family.info.name), precision="bf16")
    assert pipeline.transformer.dtype == torch.bfloat16
    assert family.generate(pipeline, REQUEST).size == (64, 64)


def test_what_would_do_nothing_is_refused(family: Family, pipeline: Any) -> None:
    for request, field in (
        (replace(REQUEST, width=72), "width"),
        (replace(REQUEST, negative_prompt="blur", guidance=0.0), "negative_prompt"),
    ):
        with pytest.raises(UnsupportedRequestError) as refusal:
            family.generate(pipeline, request)
        assert refusal.value.field == field
