"""Second stage: latents and caption embeddings of every sample, from the cache where possible."""

from collections.abc import Sequence
from pathlib import Path

import torch

from sfumato_diffusion.conditioning.cache import ConditioningCache
from sfumato_diffusion.conditioning.encode import Conditioning, fill_conditioning
from sfumato_diffusion.conditioning.plan import EncoderSource, ImageItem, encoder_source
from sfumato_diffusion.conditioning.variants import draw_variants
from sfumato_diffusion.families.contract import Family
from sfumato_trainer.events import Preparing, Warned
from sfumato_trainer.settings import TrainingPlan, TrainingSample, TrainingSettings
from sfumato_trainer.stages.reporter import Reporter, check_early_end

EMPTY_PROMPT = ""


def cache_conditioning(
    plan: TrainingPlan,
    family: Family,
    model_directory: Path,
    image_paths: Sequence[Path],
    reporter: Reporter,
) -> Conditioning:
    """Conditioning of the plan's samples, in the plan's order.

    Encoders are freed again before this returns. Raises ImageError, OSError, EndedEarlyError.
    """
    source = conditioning_source(plan, family, model_directory)
    if not source.cacheable:
        reporter.emit(
            Warned(
                code="CONDITIONING_NOT_CACHED",
                text="the base model's revision cannot be told, so nothing is kept on disk",
            )
        )

    def on_item(done: int, total: int) -> None:
        reporter.emit(Preparing(stage="cache_conditioning", done=done, total=total))
        reporter.failpoint("cache_conditioning:item")
        check_early_end(reporter)

    return fill_conditioning(
        family,
        source,
        captions=needed_captions(plan),
        images=image_items(plan, image_paths),
        target_size=(plan.settings.resolution, plan.settings.resolution),
        cache=ConditioningCache(plan.cache_directory, failpoint=reporter.failpoint),
        on_item=on_item,
    )


def conditioning_source(plan: TrainingPlan, family: Family, model_directory: Path) -> EncoderSource:
    """The encoders a plan uses; the VAE always runs in fp32, where its range matters most."""
    return encoder_source(
        family=family.info,
        reference=plan.model_location,
        revision=plan.settings.base_model.revision,
        directory=model_directory,
        cache_roots=plan.cache_roots,
        vae_precision="fp32",
        text_precision=plan.settings.compute_precision,
        device=torch.device(plan.device),
    )


def caption_of(sample: TrainingSample, settings: TrainingSettings) -> str:
    """The sample's own caption; the run's instance prompt stands in for an empty one."""
    return sample.caption or settings.instance_prompt


def needed_captions(plan: TrainingPlan) -> list[str]:
    """Distinct captions, and the empty prompt when captions are dropped out."""
    captions = [caption_of(sample, plan.settings) for sample in plan.samples]
    if plan.settings.caption_dropout > 0:
        captions.append(EMPTY_PROMPT)
    return list(dict.fromkeys(captions))


def image_items(plan: TrainingPlan, image_paths: Sequence[Path]) -> list[ImageItem]:
    """Each picture with the draws of its variants."""
    settings = plan.settings
    return [
        ImageItem(
            path=path,
            digest=sample.image_digest,
            variants=draw_variants(
                seed=settings.seed,
                image_digest=sample.image_digest,
                count=settings.cache_variants,
                center_crop=settings.center_crop,
                random_flip=settings.random_flip,
            ),
        )
        for sample, path in zip(plan.samples, image_paths, strict=True)
    ]
