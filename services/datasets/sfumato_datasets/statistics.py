"""What is said of a version as a whole. Made once, with the version, and stored beside it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from sfumato_datasets.manifest import canonical_json


@dataclass(frozen=True, kw_only=True, slots=True)
class Bin:
    """Samples in [lower, upper); in the last bin `upper` belongs to it."""

    lower: float
    upper: float
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    """How a number is distributed. All 0 where there is none."""

    count: int
    minimum: float
    maximum: float
    mean: float
    median: float
    bins: tuple[Bin, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionStatistics:
    """Sizes in pixels, aspects as width over height, lengths of captions that are not empty.

    `bucket_tables` are the fields of the messages of that name; `num_duplicate_groups` and
    `num_near_duplicate_groups` count what :class:`Duplicates` names.
    """

    width: Distribution
    height: Distribution
    aspect: Distribution
    caption_characters: Distribution
    media_types: Mapping[str, int]
    tags: Sequence[tuple[str, int]]
    num_tags: int
    bucket_tables: Sequence[Mapping[str, Any]]
    num_duplicate_groups: int
    num_near_duplicate_groups: int

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return canonical_json(asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """What `to_bytes` wrote. Raises LookupError, TypeError or ValueError for anything else."""
        fields = json.loads(data)
        for name in ("width", "height", "aspect", "caption_characters"):
            bins = tuple(Bin(**each) for each in fields[name]["bins"])
            fields[name] = Distribution(**{**fields[name], "bins": bins})
        return cls(**fields)


@dataclass(frozen=True, kw_only=True, slots=True)
class Duplicates:
    """Groups of file names, each in order, in the order of their first names.

    Attributes:
        content: Their images have the same bytes.
        near: Their images look alike; of those with the same bytes only the first counts.
    """

    content: tuple[tuple[str, ...], ...]
    near: tuple[tuple[str, ...], ...]

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return canonical_json(asdict(self))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """What `to_bytes` wrote."""
        document = json.loads(data)
        return cls(
            content=tuple(map(tuple, document["content"])), near=tuple(map(tuple, document["near"]))
        )
