"""Small previews that fit one unary message."""

import io
from dataclasses import dataclass
from typing import Final, Literal

from PIL import Image

THUMBNAIL_SIDES: Final = (128, 256, 512)
"""Longest sides in pixels of the three sizes that are kept."""
MAX_THUMBNAIL_BYTES: Final = 64 << 10

_QUALITIES: Final = (85, 70, 50, 30)


@dataclass(frozen=True, kw_only=True, slots=True)
class Thumbnail:
    data: bytes
    media_type: str
    width: int
    height: int


def make_thumbnail(
    image: Image.Image, *, side: int, format: Literal["webp", "jpeg"] = "webp"
) -> Thumbnail:
    """Shrink to a longest side of at most `side` pixels (never enlarge) and encode.

    Quality, and below the lowest one the size, gives way until the data fits
    MAX_THUMBNAIL_BYTES. Deterministic for one build of Pillow.
    """
    if side < 1:
        raise ValueError(f"a thumbnail side must be at least 1 pixel, not {side}")
    small = image.convert("RGB")
    while True:
        small.thumbnail((side, side), Image.Resampling.LANCZOS)
        for quality in _QUALITIES:
            data = _encode(small, format, quality)
            if len(data) <= MAX_THUMBNAIL_BYTES:
                return Thumbnail(
                    data=data,
                    media_type=f"image/{format}",
                    width=small.width,
                    height=small.height,
                )
        side = max(small.size) * 3 // 4


def _encode(image: Image.Image, format: str, quality: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=format.upper(), quality=quality)
    return buffer.getvalue()
