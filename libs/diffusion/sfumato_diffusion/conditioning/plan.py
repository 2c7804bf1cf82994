"""Which entries a run needs: the keys of its captions and of its pictures' variants."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from sfumato_diffusion.conditioning.keys import (
    CACHE_FORMAT_VERSION,
    EncoderIdentity,
    LatentKey,
    TextKey,
    caption_digest,
    installed_environment,
)
from sfumato_diffusion.conditioning.variants import VariantDraw
from sfumato_diffusion.families.info import FamilyInfo, Precision
from sfumato_diffusion.source_revision import UNRESOLVED, source_revision
from sfumato_imaging.facts import READER_VERSION
from sfumato_imaging.geometry import cover_rectangle
from sfumato_imaging.reader import oriented_size

BACKGROUND = (255, 255, 255)


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderSource:
    """The encoders of one run: weights, precision, device.

    `reference` names the model in keys, `directory` is where its files are; the revisions are
    markers of `source_revision`, taken over the VAE's and the text encoders' files apart, so
    that swapping one in place leaves the other's entries valid.
    """

    family: FamilyInfo
    reference: str
    directory: Path
    vae_revision: str
    text_revision: str
    vae_precision: Precision
    text_precision: Precision
    device: torch.device

    @property
    def cacheable(self) -> bool:
        """Unresolved sources are never cached on disk."""
        return UNRESOLVED not in (self.vae_revision, self.text_revision)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageItem:
    """One picture file, its SHA-256, and the draws of its variants."""

    path: Path
    digest: str
    variants: tuple[VariantDraw, ...]


def encoder_source(
    *,
    family: FamilyInfo,
    reference: str,
    revision: str,
    directory: Path,
    cache_roots: Sequence[Path],
    vae_precision: Precision,
    text_precision: Precision,
    device: torch.device,
) -> EncoderSource:
    """Marks the encoders' weights; call it when they are local."""

    def marker(*components: str) -> str:
        return source_revision(reference, cache_roots, revision=revision, components=components)

    return EncoderSource(
        family=family,
        reference=reference,
        directory=directory,
        vae_revision=marker("vae"),
        text_revision=marker("text_encoder", "tokenizer", "connectors"),
        vae_precision=vae_precision,
        text_precision=text_precision,
        device=device,
    )


def device_class(device: torch.device) -> str:
    """Devices of one class give the same bytes: the GPU's model, or the CPU's vector width."""
    if device.type == "cuda":
        return f"cuda:{torch.cuda.get_device_name(device)}"
    return f"{device.type}:{torch.backends.cpu.get_cpu_capability()}"


def text_key(source: EncoderSource, caption: str) -> TextKey:
    """Key of one caption."""
    environment = installed_environment(device_class(source.device))
    return TextKey(
        family=source.family.name,
        encoders=tuple(
            EncoderIdentity(
                component=component,
                source=source.reference,
                revision=source.text_revision,
                precision=source.text_precision,
            )
            for component in source.family.text_encoder_components
        ),
        prompt_length=source.family.prompt_length,
        prompt_template_version=source.family.prompt_template_version,
        caption_digest=caption_digest(caption),
        cache_format_version=CACHE_FORMAT_VERSION,
        torch=environment.torch,
        transformers=environment.transformers,
        diffusers=environment.diffusers,
        device_class=environment.device_class,
    )


def latent_keys(
    source: EncoderSource, image: ImageItem, target_size: tuple[int, int]
) -> tuple[LatentKey, ...]:
    """Key of each variant, in order; equal draws have equal keys. `target_size` is (w, h).

    Reads the picture's header only. Raises ImageError or OSError.
    """
    environment = installed_environment(device_class(source.device))
    size = oriented_size(image.path)
    vae = EncoderIdentity(
        component="vae",
        source=source.reference,
        revision=source.vae_revision,
        precision=source.vae_precision,
    )
    keys = []
    for variant in image.variants:
        cut = cover_rectangle(size, target_size, (variant.u_left, variant.u_top))
        key = LatentKey(
            family=source.family.name,
            vae=vae,
            image_digest=image.digest,
            oriented_width=size[0],
            oriented_height=size[1],
            resized_width=cut.resized_width,
            resized_height=cut.resized_height,
            crop_left=cut.left,
            crop_top=cut.top,
            flip=variant.flip,
            target_height=cut.height,
            target_width=cut.width,
            background=BACKGROUND,
            reader_version=READER_VERSION,
            cache_format_version=CACHE_FORMAT_VERSION,
            torch=environment.torch,
            diffusers=environment.diffusers,
            device_class=environment.device_class,
        )
        keys.append(key)
    return tuple(keys)
