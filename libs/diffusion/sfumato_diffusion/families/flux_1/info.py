"""FLUX.1 of Black Forest Labs: dual-stream transformer over CLIP-L and T5-XXL embeddings."""

from sfumato_diffusion.families.info import (
    FLOW_MATCHING_NUMBERS,
    KL_AUTOENCODER_NUMBERS,
    BaseModel,
    FamilyInfo,
    Guidance,
    MatchingSizes,
    NumberSetting,
    TrainingDefaults,
)

SCHNELL = "black-forest-labs/FLUX.1-schnell"
DEV = "black-forest-labs/FLUX.1-dev"
KREA_DEV = "black-forest-labs/FLUX.1-Krea-dev"
CLIP_POSITIONS = 77


def _guidance(default: float, *, distilled: bool) -> Guidance:
    return Guidance(
        keyword="guidance_scale",
        default=default,
        acts_above=0.0 if distilled else None,
        negative_prompt="with_true_cfg_scale",
    )


INFO = FamilyInfo(
    name="flux.1",
    aliases=("flux-1", "flux1"),
    pipeline_class="FluxPipeline",
    denoiser_class="FluxTransformer2DModel",
    denoiser_component="transformer",
    text_encoder_components=("text_encoder", "text_encoder_2"),
    bases=(
        BaseModel(
            repository=SCHNELL,
            steps=4,
            guidance=_guidance(0.0, distilled=False),
            gated=True,
            deploys_on=(SCHNELL,),
        ),
        BaseModel(
            repository=DEV,
            steps=28,
            guidance=_guidance(3.5, distilled=True),
            gated=True,
            deploys_on=(DEV, KREA_DEV, SCHNELL),
        ),
        BaseModel(
            repository=KREA_DEV,
            steps=28,
            guidance=_guidance(4.5, distilled=True),
            gated=True,
            deploys_on=(KREA_DEV, DEV),
        ),
    ),
    training_base=DEV,
    training=TrainingDefaults(
        rank=16,
        learning_rate=1e-4,
        resolution=512,
        learning_rate_scheduler="constant_with_warmup",
        warmup_steps=20,
    ),
    workflows=("text_to_image", "image_to_image", "inpaint", "control", "upscale"),
    adapter_targets=(
        "to_k",
        "to_q",
        "to_v",
        "to_out.0",
        "add_q_proj",
        "add_k_proj",
        "add_v_proj",
        "to_add_out",
    ),
    modelspec_architecture="flux-1-dev",
    size_divisor=16,
    prompt_length=512,
    latents="posterior_sample",
    numbers=(
        *KL_AUTOENCODER_NUMBERS,
        *FLOW_MATCHING_NUMBERS,
        NumberSetting(
            component="tokenizer",
            name="model_max_length",
            whole=True,
            required=True,
            above=1,
            at_most=CLIP_POSITIONS,
        ),
        NumberSetting(component="tokenizer_2", name="model_max_length", above=0),
        NumberSetting(component="text_encoder", name="eos_token_id", whole=True, above=-1),
        NumberSetting(component="text_encoder", name="layer_norm_eps", above=0.0),
        NumberSetting(component="text_encoder", name="num_attention_heads", whole=True, above=0),
        NumberSetting(
            component="text_encoder_2",
            name="relative_attention_max_distance",
            whole=True,
            above=0,
        ),
    ),
    sizes=(
        MatchingSizes(
            first=("transformer", "in_channels"), second=("vae", "latent_channels"), factor=4
        ),
        MatchingSizes(
            first=("transformer", "joint_attention_dim"), second=("text_encoder_2", "d_model")
        ),
        MatchingSizes(
            first=("transformer", "pooled_projection_dim"), second=("text_encoder", "hidden_size")
        ),
    ),
)
