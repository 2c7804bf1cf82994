"""What a caller asks a training run to be."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseModel:
    """A base model as a caller names it.

    Attributes:
        kind: ``hub``, ``directory``, ``single_file`` or ``gguf``.
        reference: Hub id, or path.
        revision: Of a Hub id.
        message: The source as the caller gave it, as JSON.
    """

    kind: str
    reference: str
    revision: str
    message: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """What a caller asks for; ``requested`` holds only the settings that were given."""

    owner: str
    display_name: str
    base: BaseModel
    family: str | None
    dataset: str
    dataset_version: int | None
    requested: Mapping[str, Any]
