"""A random FLUX.1-dev of about 1 MB with the real layout."""

from pathlib import Path

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer, T5Config, T5EncoderModel

from sfumato_diffusion.families import tiny_parts


def build(directory: Path, seed: int) -> None:
    """Write the model; see `registry.build_tiny`."""
    with tiny_parts.build_scope(seed) as generator:
        tokenizer = tiny_parts.clip_tokenizer()
        pipeline = FluxPipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(
                num_train_timesteps=1000,
                shift=3.0,
                use_dynamic_shifting=True,
                base_shift=0.5,
                max_shift=1.15,
            ),
            vae=tiny_parts.tiny_vae(generator, scaling_factor=1.0, shift_factor=0.0),
            text_encoder=_clip(tokenizer, generator),
            tokenizer=tokenizer,
            text_encoder_2=_t5(generator),
            tokenizer_2=tiny_parts.t5_tokenizer(),
            transformer=_denoiser(generator),
        )
        pipeline.save_pretrained(directory)


def _clip(tokenizer: CLIPTokenizer, generator: torch.Generator) -> CLIPTextModel:
    encoder = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            projection_dim=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=77,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    tiny_parts.randomise(encoder, generator, gain=1.5)
    return encoder


def _t5(generator: torch.Generator) -> T5EncoderModel:
    encoder = T5EncoderModel(
        T5Config(
            vocab_size=124,
            d_model=32,
            d_kv=16,
            d_ff=64,
            num_layers=2,
            num_heads=2,
            feed_forward_proj="gated-gelu",
            tie_word_embeddings=False,
        )
    )
    tiny_parts.randomise(encoder, generator)
    return encoder


def _denoiser(generator: torch.Generator) -> FluxTransformer2DModel:
    denoiser = FluxTransformer2DModel(
        in_channels=32,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        guidance_embeds=True,
        axes_dims_rope=(4, 6, 6),
    )
    tiny_parts.randomise(denoiser, generator)
    tiny_parts.mirror(denoiser.x_embedder, denoiser.proj_out, generator)
    return denoiser
