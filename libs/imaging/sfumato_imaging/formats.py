"""Accepted image formats, recognised by content and never by suffix."""

from dataclasses import dataclass
from typing import Final

MEDIA_TYPES: Final = {
    "avif": "image/avif",
    "bmp": "image/bmp",
    "gif": "image/gif",
    "jpeg": "image/jpeg",
    "mpo": "image/jpeg",
    "png": "image/png",
    "tiff": "image/tiff",
    "webp": "image/webp",
}
"""Format name to media type. An MPO is a JPEG file with more pictures after the first."""

SUFFIXES: Final = {
    ".avif": "avif",
    ".bmp": "bmp",
    ".gif": "gif",
    ".jpe": "jpeg",
    ".jpeg": "jpeg",
    ".jpg": "jpeg",
    ".mpo": "mpo",
    ".png": "png",
    ".tif": "tiff",
    ".tiff": "tiff",
    ".webp": "webp",
}
"""Lower-case file suffixes that announce an image, and the format they announce."""

FILE_SUFFIXES: Final = {
    "image/avif": ".avif",
    "image/bmp": ".bmp",
    "image/gif": ".gif",
    "image/jpeg": ".jpg",
    "image/png": ".png",
    "image/tiff": ".tiff",
    "image/webp": ".webp",
}
"""Media type to the suffix that a file of it gets."""

_TIFF_SIGNATURES = (b"II*\x00", b"MM\x00*", b"II+\x00", b"MM\x00+")
_BMP_HEADER_SIZES = (12, 40, 52, 56, 64, 108, 124)
_AVIF_BRANDS = (b"avif", b"avis")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recognised:
    """`is_cut_short`: the container declares more bytes than there are."""

    format: str
    is_cut_short: bool = False


def recognise(data: bytes) -> Recognised | None:
    """The format that the first bytes announce, or None when it is none of the accepted ones."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return Recognised(format="png")
    if data.startswith(b"\xff\xd8\xff"):
        return Recognised(format="jpeg")
    if data.startswith((b"GIF87a", b"GIF89a")):
        return Recognised(format="gif")
    if data.startswith(_TIFF_SIGNATURES):
        return Recognised(format="tiff")
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        declared_bytes = int.from_bytes(data[4:8], "little") + 8
        return Recognised(format="webp", is_cut_short=declared_bytes > len(data))
    if data.startswith(b"BM") and int.from_bytes(data[14:18], "little") in _BMP_HEADER_SIZES:
        return Recognised(format="bmp")
    if data[4:8] == b"ftyp" and _has_avif_brand(data):
        return Recognised(format="avif", is_cut_short=_boxes_are_cut_short(data))
    return None


def _has_avif_brand(data: bytes) -> bool:
    brands = data[8 : min(int.from_bytes(data[0:4], "big"), 256)]
    return any(brands[start : start + 4] in _AVIF_BRANDS for start in range(0, len(brands), 4))


def _boxes_are_cut_short(data: bytes) -> bool:
    """Walk the top-level boxes (ISO/IEC 14496-12, 4.2) to the end of the data."""
    offset = 0
    while offset < len(data):
        size = int.from_bytes(data[offset : offset + 4], "big")
        if size == 1:
            size = int.from_bytes(data[offset + 8 : offset + 16], "big")
        if size == 0:
            return False
        offset += max(size, 8)
    return offset > len(data)
