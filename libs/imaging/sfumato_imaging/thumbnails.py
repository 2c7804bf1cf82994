"""Small previews that fit one unary message."""

import io
from typing import Final, Literal

from PIL import Image

from sfumato_imaging.facts import MAX_THUMBNAIL_BYTES, THUMBNAIL_SIDES, Thumbnail

_QUALITIES: Final = (85, 70, 50, 30)


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


def make_previews(image: Image.Image) -> tuple[Thumbnail, ...]:
    """One thumbnail of each of THUMBNAIL_SIDES, the smallest first; JPEG, which costs least to make.

    The image is averaged down by a whole factor, then resampled to the largest; each smaller one is made
    of the next larger, whose pixels are fewer. A full Lanczos of every pixel would take two thirds of
    the time of an import.
    """
    previews: list[Thumbnail] = []
    largest = max(THUMBNAIL_SIDES)
    image = image.copy()
    image.thumbnail((largest, largest), Image.Resampling.LANCZOS, reducing_gap=1.0)
    for side in sorted(THUMBNAIL_SIDES, reverse=True):
        image = image.copy()
        image.thumbnail((side, side), Image.Resampling.HAMMING)
        previews.append(make_thumbnail(image, side=side, format="jpeg"))
    return tuple(reversed(previews))


def _encode(image: Image.Image, format: str, quality: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=format.upper(), quality=quality)
    return buffer.getvalue()
