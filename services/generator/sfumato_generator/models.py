"""Finds a base model on this machine and tells its family, without loading anything."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sfumato_chassis.allowed_paths import resolve_under_roots
from sfumato_chassis.errors import FailedPrecondition, InvalidArgument, NotFound, Reason
from sfumato_diffusion.families.identify import UnidentifiedModelError, identify_family
from sfumato_diffusion.families.info import BaseModel, FamilyInfo
from sfumato_diffusion.model_folder import (
    INDEX,
    ModelFolderError,
    check_model_folder,
    max_side,
)
from sfumato_diffusion.source_revision import find_snapshot, source_revision
from sfumato_generator.configuration import ModelSource

DEFAULT_REVISION = "main"

CacheRoots = Callable[[], Sequence[Path]]
"""Answers the folders that hold snapshots of the Hub."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LocatedModel:
    """A base model that is on this machine.

    Attributes:
        source: As the caller gave it, with the revision filled in.
        directory: Its real folder.
        marker: Marker of a Hub snapshot; empty for a folder.
        base: The published model whose defaults hold for it.
        max_side: Longest side in pixels that it can make.
    """

    source: ModelSource
    directory: Path
    marker: str
    info: FamilyInfo
    base: BaseModel
    max_side: int


def locate_model(
    source: ModelSource, family: str | None, *, roots: Sequence[Path], cache_roots: CacheRoots
) -> LocatedModel:
    """The model that ``source`` names.

    Args:
        source: From a caller.
        family: A family's name that the caller insists on.
        roots: Folders under which callers may name models.
        cache_roots: Where snapshots of the Hub lie; nothing is downloaded.

    Raises:
        NotFound: PATH_NOT_FOUND, or RESOURCE_NOT_FOUND for a repository that is not on this machine.
        FailedPrecondition: MODEL_UNSUPPORTED or WEIGHTS_UNSAFE.
        InvalidArgument: The model is not of ``family``.
    """
    marker = ""
    match source.kind:
        case "directory":
            directory = resolve_under_roots(source.reference, roots, resource_type="model")
        case "hub":
            snapshots = cache_roots()
            directory, source = locate_snapshot(source, snapshots)
            marker = source_revision(
                source.reference, snapshots, revision=source.revision or DEFAULT_REVISION
            )
        case "single_file" | "gguf":
            raise unsupported(f"models given as {source.kind} cannot be generated with")
    if not (directory / INDEX).is_file():
        raise unsupported("the folder is not a model in the layout of diffusers")
    info = family_of(directory, source, family)
    longest = check_folder(directory, info)
    return LocatedModel(
        source=source,
        directory=directory,
        marker=marker,
        info=info,
        base=base_of(info, source, directory),
        max_side=longest,
    )


def locate_snapshot(source: ModelSource, roots: Sequence[Path]) -> tuple[Path, ModelSource]:
    """Folder of a Hub snapshot, and the source with its revision pinned to that commit if none was given.

    Raises:
        NotFound: RESOURCE_NOT_FOUND.
    """
    revision = source.revision or DEFAULT_REVISION
    snapshot = find_snapshot(source.reference, roots, revision=revision)
    if snapshot is None:
        raise NotFound(
            Reason.RESOURCE_NOT_FOUND,
            f"{source.reference} (revision {revision}) is not on this machine",
            resource_type="model",
            resource_name=source.reference,
        )
    return snapshot, source if source.revision else replace(source, revision=snapshot.name)


def family_of(directory: Path, source: ModelSource, family: str | None) -> FamilyInfo:
    """The model's family.

    Raises:
        InvalidArgument: The caller insists on another.
        FailedPrecondition: MODEL_UNSUPPORTED.
    """
    try:
        return identify_family(str(directory), explicit=family)
    except UnidentifiedModelError as error:
        message = str(error).replace(str(directory), source.reference)
        if error.reason == "OTHER_FAMILY":
            raise InvalidArgument.field("configuration.family", message) from error
        raise unsupported(message) from error


def base_of(info: FamilyInfo, source: ModelSource, directory: Path) -> BaseModel:
    """The published base whose sampling defaults and guidance hold for a model.

    A repository that the family knows is itself. Any other model behaves like the training base,
    unless its denoiser says that it has no guidance embedding (``guidance_embeds``, a setting of
    several of diffusers' transformers) while that base has one, or the other way round.
    """
    for base in info.bases:
        if source.kind == "hub" and source.reference.lower() == base.repository.lower():
            return base
    embeds_guidance = denoiser_setting(directory, info, "guidance_embeds")
    alike = [
        base
        for base in info.bases
        if embeds_guidance is None or embeds_guidance == (base.guidance.acts_above is not None)
    ]
    trained = [base for base in alike if base.repository == info.training_base]
    return (trained or alike or info.bases)[0]


def denoiser_setting(directory: Path, info: FamilyInfo, name: str) -> bool | None:
    """A switch in the denoiser's configuration file; None where it has none."""
    try:
        file = directory / info.denoiser_component / "config.json"
        value = json.loads(file.read_text(encoding="utf-8")).get(name)
    except (OSError, ValueError, AttributeError):
        return None
    return value if isinstance(value, bool) else None


def check_folder(directory: Path, info: FamilyInfo) -> int:
    """Longest side in pixels of a model whose components can be loaded.

    Raises:
        FailedPrecondition: MODEL_UNSUPPORTED or WEIGHTS_UNSAFE, naming the component that cannot.
    """
    try:
        check_model_folder(directory, info)
        return max_side(directory, info)
    except ModelFolderError as error:
        raise FailedPrecondition(
            Reason(error.reason), str(error), details={"component": error.component}
        ) from error


def unsupported(message: str) -> FailedPrecondition:
    """The error of a model that cannot be generated with."""
    return FailedPrecondition(Reason.MODEL_UNSUPPORTED, message)
