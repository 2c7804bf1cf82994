"""What an adapter file says about itself, in the words that other tools read.

modelspec 1.0.1 (https://github.com/Stability-AI/ModelSpec), kohya's `ss_*` fields, and the
lineage under `sfumato.*`. Nothing here may differ between two runs of the same plan: no times,
no attempt numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from sfumato_diffusion.adapters import AdapterShape
from sfumato_diffusion.families.info import FamilyInfo
from sfumato_diffusion.safetensors_file import tensors_digest


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterOrigin:
    """How the adapter came to be. `lineage` becomes `sfumato.<name>` fields."""

    title: str
    base_model: str
    resolution: int
    steps: int
    num_images: int
    batch_size: int
    lineage: Mapping[str, str]


def adapter_metadata(
    family: FamilyInfo,
    shape: AdapterShape,
    origin: AdapterOrigin,
    tensors: Mapping[str, torch.Tensor],
) -> dict[str, str]:
    """Metadata of an adapter file."""
    digest = tensors_digest(tensors)
    modelspec = {
        "sai_model_spec": "1.0.1",
        "architecture": f"{family.modelspec_architecture}/lora",
        "implementation": "diffusers",
        "title": origin.title,
        "resolution": f"{origin.resolution}x{origin.resolution}",
        "prediction_type": "flow",
        "hash_sha256": f"0x{digest}",
    }
    kohya = {
        "base_model_version": family.name,
        "sd_model_name": origin.base_model,
        "network_module": "networks.lora",
        "network_dim": str(shape.rank),
        "network_alpha": f"{shape.alpha:g}",
        "output_name": origin.title,
        "resolution": f"({origin.resolution}, {origin.resolution})",
        "steps": str(origin.steps),
        "num_train_images": str(origin.num_images),
        "batch_size_per_device": str(origin.batch_size),
    }
    return {
        **{f"modelspec.{name}": value for name, value in modelspec.items()},
        **{f"ss_{name}": value for name, value in kohya.items()},
        "sshs_model_hash": digest,
        **{f"sfumato.{name}": value for name, value in origin.lineage.items()},
    }
