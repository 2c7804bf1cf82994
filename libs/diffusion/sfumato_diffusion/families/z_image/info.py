"""Z-Image of Tongyi-MAI: single-stream transformer over Qwen3 embeddings."""

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

TURBO = "Tongyi-MAI/Z-Image-Turbo"
BASE = "Tongyi-MAI/Z-Image"
_FP16_REASON = "its activations overflow; use bf16 or fp32"


def _guidance(default: float) -> Guidance:
    return Guidance(
        keyword="guidance_scale",
        default=default,
        acts_above=0.0,
        negative_prompt="with_guidance",
    )


INFO = FamilyInfo(
    name="z-image",
    aliases=("z_image", "zimage"),
    pipeline_class="ZImagePipeline",
    denoiser_class="ZImageTransformer2DModel",
    denoiser_component="transformer",
    text_encoder_components=("text_encoder",),
    bases=(
        BaseModel(repository=TURBO, steps=9, guidance=_guidance(0.0), deploys_on=(TURBO,)),
        BaseModel(repository=BASE, steps=20, guidance=_guidance(4.0), deploys_on=(BASE, TURBO)),
    ),
    training_base=BASE,
    training=TrainingDefaults(
        rank=16,
        learning_rate=1e-4,
        resolution=768,
        learning_rate_scheduler="constant",
        warmup_steps=0,
    ),
    workflows=("text_to_image", "image_to_image", "inpaint", "upscale"),
    adapter_targets=("to_k", "to_q", "to_v", "to_out.0"),
    modelspec_architecture="z-image",
    size_divisor=16,
    prompt_length=512,
    latents="posterior_mode",
    numbers=(
        *KL_AUTOENCODER_NUMBERS,
        *FLOW_MATCHING_NUMBERS,
        NumberSetting(component="tokenizer", name="model_max_length", above=0),
    ),
    sizes=(
        MatchingSizes(first=("transformer", "in_channels"), second=("vae", "latent_channels")),
        MatchingSizes(
            first=("transformer", "cap_feat_dim"), second=("text_encoder", "hidden_size")
        ),
    ),
    chat_template=True,
    refused_precisions=(("fp16", _FP16_REASON),),
    positions_setting="axes_lens",
)
