"""FLUX.1 of Black Forest Labs: dual-stream transformer over CLIP-L and T5-XXL embeddings."""

from sfumato_diffusion.families.info import (
    BaseModel,
    FamilyInfo,
    Guidance,
    TrainingDefaults,
)

SCHNELL = "black-forest-labs/FLUX.1-schnell"
DEV = "black-forest-labs/FLUX.1-dev"
KREA_DEV = "black-forest-labs/FLUX.1-Krea-dev"


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
)
