"""Which family a base model belongs to. No torch.

A local directory's own `model_index.json` decides; where it does not tell, an explicit name, then the
longest family name or alias that is a whole segment of the id. Nothing is ever guessed.
"""

import re
from pathlib import Path
from typing import Literal

from sfumato_diffusion.families.info import FamilyInfo
from sfumato_diffusion.families.registry import family_info, list_families
from sfumato_diffusion.model_folder import ModelFolderError, read_index

_SEPARATORS = r"[-_./\\]"
_NOT_TEXT_TO_IMAGE = ("edit", "kontext", "inpaint", "layered")

Reason = Literal[
    "UNKNOWN_FAMILY", "OTHER_FAMILY", "UNKNOWN_PIPELINE", "NOT_RECOGNISED", "NOT_TEXT_TO_IMAGE"
]


class UnidentifiedModelError(ValueError):
    """The family of a base model cannot be told. `reason` is stable, the message is for people."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def identify_family(reference: str, *, explicit: str | None = None) -> FamilyInfo:
    """Family of a Hub id or local directory. Raises UnidentifiedModelError.

    `explicit` is a family name or alias the caller insists on: OTHER_FAMILY where the directory is
    of another one.
    """
    named = None if explicit is None else _by_explicit_name(explicit)
    pipeline_class = _pipeline_class(Path(reference))
    if pipeline_class is None:
        return named or _by_segment(reference)
    own = next((info for info in list_families() if info.pipeline_class == pipeline_class), None)
    if own is None:
        if named is None:
            raise UnidentifiedModelError(
                "UNKNOWN_PIPELINE",
                f"its pipeline is {pipeline_class}, which no family here uses; known: {_known()}",
            )
        return named
    if named is not None and named is not own:
        raise UnidentifiedModelError("OTHER_FAMILY", f"the model is {own.name}, not {named.name}")
    return own


def _by_explicit_name(name: str) -> FamilyInfo:
    for info in list_families():
        if name.lower() in (info.name, *info.aliases):
            return info
    raise UnidentifiedModelError("UNKNOWN_FAMILY", f"no family {name!r}; known: {_known()}")


def _pipeline_class(directory: Path) -> str | None:
    try:
        name = read_index(directory).get("_class_name")
    except ModelFolderError:
        return None
    return name if isinstance(name, str) else None


def _by_segment(reference: str) -> FamilyInfo:
    lowered = reference.lower()
    matches = [
        (len(name), match.span(2), info.name)
        for info in list_families()
        for name in (info.name, *info.aliases)
        for match in re.finditer(
            rf"(^|{_SEPARATORS})({re.escape(name)})(?=$|{_SEPARATORS})", lowered
        )
    ]
    if not matches:
        raise UnidentifiedModelError(
            "NOT_RECOGNISED", f"{reference!r} names no known family; known: {_known()}"
        )
    _, (start, end), name = max(matches)
    rest = f"{lowered[:start]} {lowered[end:]}"
    for word in _NOT_TEXT_TO_IMAGE:
        if word in rest:
            raise UnidentifiedModelError(
                "NOT_TEXT_TO_IMAGE", f"{reference!r} is a {word} model, not text to image"
            )
    return family_info(name)


def _known() -> str:
    return ", ".join(info.name for info in list_families())
