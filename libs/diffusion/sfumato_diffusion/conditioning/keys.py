"""What determines the bytes of a cached latent or caption embedding. No torch.

Two encodes with equal keys give equal bytes on one class of device; a key that differs in any
field names another entry.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any, ClassVar, Literal

CACHE_FORMAT_VERSION = 1

Kind = Literal["latents", "text"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """Library versions and device class, the same for every entry of a run."""

    torch: str
    transformers: str
    diffusers: str
    device_class: str


@functools.cache
def installed_environment(device_class: str) -> Environment:
    """Versions of the installed libraries, without importing them."""
    return Environment(
        torch=metadata.version("torch"),
        transformers=metadata.version("transformers"),
        diffusers=metadata.version("diffusers"),
        device_class=device_class,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderIdentity:
    """One encoder: which component, where its weights come from, and how they are held."""

    component: str
    source: str
    revision: str
    precision: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Key:
    kind: ClassVar[Kind]

    def record(self) -> dict[str, Any]:
        """The fields as JSON values, in order of comparison."""
        record: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return record

    def canonical(self) -> str:
        """The record as the one JSON text that is stored and compared."""
        return json.dumps(self.record(), separators=(",", ":"))

    def digest(self) -> str:
        """SHA-256 in hex, the name of the entry."""
        return hashlib.sha256(f"{self.kind}:{self.canonical()}".encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentKey(_Key):
    """One picture as the VAE saw it. Sizes in pixels, after EXIF orientation."""

    kind: ClassVar[Kind] = "latents"

    family: str
    vae: EncoderIdentity
    image_digest: str
    oriented_width: int
    oriented_height: int
    resized_width: int
    resized_height: int
    crop_left: int
    crop_top: int
    flip: bool
    target_height: int
    target_width: int
    background: tuple[int, int, int]
    reader_version: int
    cache_format_version: int
    torch: str
    diffusers: str
    device_class: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TextKey(_Key):
    """One caption as the text encoders saw it. `caption_digest` is over its UTF-8 bytes."""

    kind: ClassVar[Kind] = "text"

    family: str
    encoders: tuple[EncoderIdentity, ...]
    prompt_length: int
    prompt_template_version: int
    caption_digest: str
    cache_format_version: int
    torch: str
    transformers: str
    diffusers: str
    device_class: str


ConditioningKey = LatentKey | TextKey


def caption_digest(caption: str) -> str:
    """SHA-256 in hex of the caption's UTF-8 bytes."""
    return hashlib.sha256(caption.encode()).hexdigest()


def differing_fields(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Names of fields that differ, in the wanted record's order."""
    names = dict.fromkeys([*wanted, *found])
    return [name for name in names if wanted.get(name) != found.get(name)]
