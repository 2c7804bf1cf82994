"""A random Z-Image of about 1 MB with the real layout."""

from pathlib import Path

import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    ZImagePipeline,
    ZImageTransformer2DModel,
)
from transformers import Qwen3Config, Qwen3Model

from sfumato_diffusion.families import tiny_parts


def build(directory: Path, seed: int) -> None:
    """Write the model; see `registry.build_tiny`."""
    with tiny_parts.build_scope(seed) as generator:
        pipeline = ZImagePipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=3.0),
            vae=tiny_parts.tiny_vae(generator, scaling_factor=1.0, shift_factor=0.0),
            text_encoder=_text_encoder(generator),
            tokenizer=tiny_parts.qwen_tokenizer(),
            transformer=_denoiser(generator),
        )
        pipeline.save_pretrained(directory)


def _text_encoder(generator: torch.Generator) -> Qwen3Model:
    encoder = Qwen3Model(
        Qwen3Config(
            vocab_size=264,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
        )
    )
    tiny_parts.randomise(encoder, generator, gain=1.5)
    return encoder


def _denoiser(generator: torch.Generator) -> ZImageTransformer2DModel:
    denoiser = ZImageTransformer2DModel(
        in_channels=8,
        dim=32,
        n_layers=2,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=32,
        axes_dims=[4, 6, 6],
        axes_lens=[1024, 128, 128],
    )
    tiny_parts.randomise(denoiser, generator)
    _widen_attention(denoiser)
    tiny_parts.mirror(
        denoiser.all_x_embedder["2-1"],
        denoiser.all_final_layer["2-1"].linear,
        generator,
        sign=-1.0,
    )
    return denoiser


@torch.no_grad()
def _widen_attention(denoiser: ZImageTransformer2DModel) -> None:
    """Attention outputs are normalised, so their norm's weight decides what an adapter can move."""
    for name, parameter in denoiser.named_parameters():
        if name.endswith("attention_norm2.weight"):
            parameter.fill_(3.0)
        if name.endswith("ffn_norm2.weight"):
            parameter.fill_(0.5)
