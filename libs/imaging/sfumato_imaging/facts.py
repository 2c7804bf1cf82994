"""What the reader accepts and tells, apart from the decoders.

Importing this loads neither Pillow nor NumPy.
"""

from dataclasses import dataclass
from typing import Final

READER_VERSION: Final = 1
"""Part of every cache key: raise it whenever any file would read as other pixels than before."""

THUMBNAIL_SIDES: Final = (128, 256, 512)
"""Longest sides in pixels of the three sizes that are kept."""
MAX_THUMBNAIL_BYTES: Final = 64 << 10

MAX_FILE_BYTES: Final = 256 << 20
MAX_SIDE: Final = 16384
MAX_PIXELS: Final = (1 << 30) // 4 // 3
"""A quarter of a GiB as RGB; where Pillow starts to warn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageNote:
    """What the reader changed or chose on the way; `message` is for people.

    FIRST_FRAME_USED        the file has more frames or pages
    METADATA_DROPPED        an oversized or damaged PNG chunk was left out
    COLOUR_PROFILE_IGNORED  the embedded ICC profile is unusable for these pixels
    """

    reason: str
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageFacts:
    """A verified image: size in pixels after orientation, format, and notes for a report."""

    width: int
    height: int
    format: str
    media_type: str
    notes: tuple[ImageNote, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Thumbnail:
    """A small picture as a file; its size is in pixels."""

    data: bytes
    media_type: str
    width: int
    height: int
