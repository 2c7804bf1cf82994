"""What a training run is asked to be, and what it becomes once every default is resolved."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato_chassis.allowed_paths import resolve_under_roots
from sfumato_chassis.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Reason,
)
from sfumato_diffusion.families.identify import UnidentifiedModelError, identify_family
from sfumato_diffusion.families.info import FamilyInfo, UnsupportedPrecisionError
from sfumato_diffusion.model_folder import (
    INDEX,
    MissingPartError,
    ModelFolderError,
    check_model_folder,
    max_side,
)
from sfumato_diffusion.source_revision import find_snapshot, hub_cache_roots
from sfumato_trainer.model_fit import check_fit
from sfumato_trainer.run_request import BaseModel
from sfumato_trainer.settings import ModelSource, SettingsError, TrainingSettings

LEAST_SAVE_STEPS = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedBase:
    """A base model that this machine can train on.

    Attributes:
        path: Real folder; None for a Hub id.
        folder: Where its files lie, looked through; None for a Hub id of which something is to be fetched.
        info: Its family.
        max_side: Longest side in pixels for which it has positions, as far as that is known.
    """

    path: Path | None
    folder: Path | None
    info: FamilyInfo
    max_side: int


def resolve_base(
    base: BaseModel, family: str | None, roots: Sequence[Path], *, may_download: bool
) -> ResolvedBase:
    """Finds the family of a base model and looks through its files, without loading anything.

    Args:
        base: As the caller names it.
        family: A family's name that the caller insists on.
        roots: Folders under which callers may name models.
        may_download: Whether what a Hub id lacks here is fetched later.

    Raises:
        InvalidArgument: The model is of another family.
        NotFound: PATH_NOT_FOUND, or RESOURCE_NOT_FOUND for a repository that is not on this machine
            and may not be fetched.
        FailedPrecondition: MODEL_UNSUPPORTED or WEIGHTS_UNSAFE.
    """
    path: Path | None = None
    match base.kind:
        case "directory":
            path = resolve_under_roots(base.reference, roots, resource_type="model")
            if not (path / INDEX).is_file():
                raise unsupported("the folder is not a model in the layout of diffusers")
            folder: Path | None = path
        case "hub":
            roots_of_hub = hub_cache_roots(None, os.environ)
            folder = find_snapshot(base.reference, roots_of_hub, revision=base.revision)
            if folder is None and not may_download:
                raise NotFound(
                    Reason.RESOURCE_NOT_FOUND,
                    f"{base.reference} (revision {base.revision}) is not on this machine",
                    resource_type="model",
                    resource_name=base.reference,
                )
        case _:
            raise unsupported(f"training on a base model given as {base.kind} is not supported")
    info = family_of(base, folder, family)
    to_fetch = ResolvedBase(path=path, folder=None, info=info, max_side=info.maximum_side)
    if folder is None:
        return to_fetch
    with refusing_components():
        try:
            check_model_folder(folder, info)
        except MissingPartError:
            if path is None and may_download:
                return to_fetch
            raise
        longest = max_side(folder, info)
    return ResolvedBase(path=path, folder=folder, info=info, max_side=longest)


def family_of(base: BaseModel, folder: Path | None, family: str | None) -> FamilyInfo:
    """The family of a base model.

    Raises:
        InvalidArgument: The caller insists on another.
        FailedPrecondition: MODEL_UNSUPPORTED.
    """
    try:
        return identify_family(str(folder or base.reference), explicit=family)
    except UnidentifiedModelError as error:
        message = str(error).replace(str(folder), base.reference) if folder else str(error)
        if error.reason == "OTHER_FAMILY":
            raise InvalidArgument.field("configuration.family", message) from error
        raise unsupported(message) from error


def refuse_misfit(base: ResolvedBase, settings: TrainingSettings) -> None:
    """What a model that lies here says of the settings.

    Raises:
        InvalidArgument: It has no layer of a target's name, or no positions for the resolution.
        FailedPrecondition: MODEL_UNSUPPORTED or WEIGHTS_UNSAFE, it has just changed.
    """
    try:
        with refusing_components():
            check_fit(settings, base.info, base.folder, longest_side=base.max_side)
    except SettingsError as error:
        raise refused_setting(error) from error


def refused_setting(error: SettingsError) -> InvalidArgument:
    """A refusal of the settings, as a caller is told."""
    problem = str(error).removeprefix(f"{error.field}: ")
    return InvalidArgument.field(f"configuration.{error.field}", problem)


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
    # Every draw of a crop and a flip is then the same.
    fixed_view = requested.get("center_crop", False) and not requested.get("random_flip", True)
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
        **({"cache_variants": 1} if fixed_view else {}),
        **requested,
    }
    try:
        settings = TrainingSettings(**values)
        info.check_precision(settings.compute_precision)
    except SettingsError as error:
        raise refused_setting(error) from error
    except UnsupportedPrecisionError as error:
        raise unsupported(str(error)) from error
    if settings.resolution % info.size_divisor:
        raise InvalidArgument.field(
            "configuration.resolution", f"must be a multiple of {info.size_divisor}"
        )
    if fixed_view and settings.cache_variants > 1:
        raise InvalidArgument.field(
            "configuration.cache_variants",
            "acts only with random_flip or without center_crop",
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


@contextmanager
def refusing_components() -> Iterator[None]:
    """Raises MODEL_UNSUPPORTED or WEIGHTS_UNSAFE for a component that cannot be loaded."""
    try:
        yield
    except ModelFolderError as error:
        raise FailedPrecondition(
            Reason(error.reason), str(error), details={"component": error.component}
        ) from error
