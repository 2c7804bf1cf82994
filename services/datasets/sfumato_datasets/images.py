"""What is known of an image that was verified and stored."""

from dataclasses import dataclass
from typing import Final

from sfumato_imaging.facts import ImageNote

PREVIEWS_MEDIA_TYPE: Final = "image/jpeg"


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """One preview among those of an image, which lie in one blob, one after the other.

    `side` is the longest side that was asked for, in pixels; `width` and `height` are what it has.
    """

    side: int
    offset: int
    length: int
    width: int
    height: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredImage:
    """An image that was verified and whose bytes are a blob.

    Attributes:
        width, height: In pixels, after orientation.
        crc32: Of its bytes, unsigned.
        perceptual_hash: 64 bits, unsigned, see :mod:`sfumato_imaging.perceptual_hash`.
        previews_digest: The blob that holds its previews.
        notes: What the reader changed or chose, for the report of each import.
    """

    digest: str
    size_bytes: int
    media_type: str
    width: int
    height: int
    crc32: int
    perceptual_hash: int
    previews_digest: str
    previews: tuple[Preview, ...]
    notes: tuple[ImageNote, ...] = ()
