"""What a training run is asked to be, and what it becomes once every default is resolved."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato_chassis.allowed_paths import resolve_under_roots
from sfumato_chassis.errors import FailedPrecondition, InvalidArgument, PermissionDenied, Reason
from sfumato_diffusion.families.identify import UnidentifiedModelError, identify_family
from sfumato_diffusion.families.info import FamilyInfo, UnsupportedPrecisionError
from sfumato_diffusion.source_revision import find_snapshot, hub_cache_roots
from sfumato_trainer.run_request import BaseModel
from sfumato_trainer.settings import ModelSource, SettingsError, TrainingSettings

LEAST_SAVE_STEPS = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedBase:
    """A base model that this machine can train on.

    Attributes:
        path: Real folder; None for a Hub id.
        info: Its family.
    """

    path: Path | None
    info: FamilyInfo


def resolve_base(base: BaseModel, family: str | None, roots: Sequence[Path]) -> ResolvedBase:
    """Finds the family of a base model, without loading anything.

    Raises:
        NotFound: PATH_NOT_FOUND.
        FailedPrecondition: MODEL_UNSUPPORTED.
        PermissionDenied: MODEL_GATED.
    """
    if base.kind not in {"hub", "directory"}:
        raise unsupported(f"training on a base model given as {base.kind} is not supported")
    path = None
    if base.kind == "directory":
        path = resolve_under_roots(base.reference, roots, resource_type="model")
        if not (path / "model_index.json").is_file():
            raise unsupported("the folder is not a model in the layout of diffusers")
    try:
        info = identify_family(str(path or base.reference), explicit=family)
    except UnidentifiedModelError as error:
        message = str(error).replace(str(path), base.reference) if path else str(error)
        raise unsupported(message) from error
    return ResolvedBase(path=path, info=info)


def resolve_settings(
    requested: Mapping[str, Any], base: BaseModel, info: FamilyInfo, *, device: str
) -> TrainingSettings:
    """Fills in every default.

    Args:
        requested: Only the settings that the caller gave.
        base: The base model.
        info: Its family, which owns the defaults.
        device: Where the run will train.

    Raises:
        InvalidArgument: FIELD_INVALID, two settings contradict each other.
        FailedPrecondition: MACHINE_INCAPABLE or MODEL_UNSUPPORTED.
    """
    defaults = info.training
    rank = requested.get("rank", defaults.rank)
    steps = requested.get("train_steps", 500)
    scheduler = requested.get("learning_rate_scheduler", defaults.learning_rate_scheduler)
    values: dict[str, Any] = {
        "base_model": ModelSource(reference=base.reference, revision=base.revision),
        "family": info.name,
        "resolution": defaults.resolution,
        "train_steps": steps,
        "learning_rate": defaults.learning_rate,
        "rank": rank,
        "alpha": float(rank),
        "target_modules": info.adapter_targets,
        "learning_rate_scheduler": scheduler,
        "warmup_steps": 0 if scheduler == "constant" else defaults.warmup_steps,
        "compute_precision": "fp32" if device == "cpu" else "bf16",
        "flow_shift": defaults.flow_shift,
        "save_steps": max(LEAST_SAVE_STEPS, steps // 10),
        **requested,
    }
    try:
        settings = TrainingSettings(**values)
        info.check_precision(settings.compute_precision)
    except SettingsError as error:
        message = str(error).removeprefix(f"{error.field}: ")
        raise InvalidArgument.field(f"configuration.{error.field}", message) from error
    except UnsupportedPrecisionError as error:
        raise unsupported(str(error)) from error
    if settings.resolution % info.size_divisor:
        raise InvalidArgument.field(
            "configuration.resolution", f"must be a multiple of {info.size_divisor}"
        )
    if settings.compute_precision == "fp16" and device == "cpu":
        raise FailedPrecondition(Reason.MACHINE_INCAPABLE, "fp16 needs a GPU; use fp32 or bf16")
    return settings


def check_gated(base: BaseModel, info: FamilyInfo) -> None:
    """Refuses a repository behind a licence gate before anything of it is downloaded.

    Raises:
        PermissionDenied: MODEL_GATED, naming the repository.
    """
    if base.kind != "hub" or not info.base(base.reference).gated:
        return
    roots = hub_cache_roots(None, os.environ)
    if find_snapshot(base.reference, roots, revision=base.revision) is None and not has_hub_token():
        raise PermissionDenied(
            Reason.MODEL_GATED,
            f"{base.reference} needs its licence accepted on the Hub, and a token here",
            details={"repository": base.reference},
        )


def has_hub_token() -> bool:
    """Whether this machine can identify itself to the Hub."""
    # Loaded only when a gated model is asked for: the service starts without it.
    from huggingface_hub import get_token

    return get_token() is not None


def unsupported(message: str) -> FailedPrecondition:
    """The error of a base model that cannot be trained on."""
    return FailedPrecondition(Reason.MODEL_UNSUPPORTED, message)
