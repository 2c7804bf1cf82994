"""The one image reader: files to upright, opaque, 8-bit sRGB pixels.

Datasets, conditioning cache and generator inputs all read through here, so that no two of them
can see different pixels.
"""

import io
import struct
import threading
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from PIL import ExifTags, Image, UnidentifiedImageError

from sfumato_imaging.colour import to_srgb
from sfumato_imaging.errors import (
    CorruptImageError,
    ImageError,
    ImageTooLargeError,
    NotAnImageError,
    TruncatedImageError,
)
from sfumato_imaging.facts import MAX_FILE_BYTES, MAX_PIXELS, MAX_SIDE, ImageFacts, ImageNote
from sfumato_imaging.formats import MEDIA_TYPES, recognise
from sfumato_imaging.png_chunks import tidy_png

WHITE: Final = (255, 255, 255)

# Pillow warns of damage and of bombs in these; a deprecation says nothing about the image.
_STRICT_CATEGORIES: Final = (UserWarning, RuntimeWarning)
# What Pillow's decoders raise on damaged input, besides the UnidentifiedImageError of its open().
_DECODER_FAILURES: Final = (
    OSError,
    SyntaxError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    EOFError,
    RuntimeError,
    struct.error,
    zlib.error,
    *_STRICT_CATEGORIES,
)

# warnings.catch_warnings() swaps process-wide state; two overlapping uses would leave it swapped.
_STRICT_WARNINGS = threading.Lock()

_UPRIGHT: Final = 1
_TRANSPOSE: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation to what turns it upright."""
_SIDEWAYS: Final = (5, 6, 7, 8)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Opened:
    image: Image.Image
    format: str
    orientation: int
    raw_mode: str
    notes: tuple[ImageNote, ...]


class _WatchedBytes(io.BytesIO):
    """Remembers whether a decoder asked for bytes past the end: truncated rather than corrupt."""

    exhausted = False

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        if not data and size != 0:
            self.exhausted = True
        return data


def read_image(source: Path | bytes, *, background: tuple[int, int, int] = WHITE) -> Image.Image:
    """Decode an image as every part of the product sees it.

    EXIF orientation is applied, alpha is composited on `background` (8-bit sRGB), and palettes,
    16-bit grey, CMYK, Lab and embedded ICC profiles become 8-bit sRGB. Of an animated or
    multi-page file, the first frame.

    Returns:
        Mode RGB, without metadata.

    Raises:
        ImageError: one of its subclasses, when the bytes are refused.
        OSError: when the file itself cannot be read.
    """
    return _read(_load_bytes(source), background)[0]


def verify_image(source: Path | bytes) -> ImageFacts:
    """Decode the image in full, as `read_image` does, and say what it is.

    Raises:
        ImageError, OSError: as `read_image`.
    """
    return _read(_load_bytes(source), WHITE)[1]


def read_verified(source: Path | bytes) -> tuple[Image.Image, ImageFacts]:
    """What `read_image` and `verify_image` give, in one reading.

    Raises:
        ImageError, OSError: as `read_image`.
    """
    return _read(_load_bytes(source), WHITE)


def oriented_size(source: Path | bytes) -> tuple[int, int]:
    """(width, height) in pixels that `read_image` will give, without decoding the pixels.

    Raises:
        ImageError, OSError: as `read_image`, as far as the headers show it.
    """
    with _open(_load_bytes(source)) as opened:
        width, height = opened.image.size
        return (height, width) if opened.orientation in _SIDEWAYS else (width, height)


def _load_bytes(source: Path | bytes) -> bytes:
    if isinstance(source, bytes):
        data = source
    else:
        with source.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ImageTooLargeError(f"the file is larger than {MAX_FILE_BYTES} bytes")
    return data


def _read(data: bytes, background: tuple[int, int, int]) -> tuple[Image.Image, ImageFacts]:
    with _open(data) as opened:
        opened.image.load()
        _check_size(opened.image.size)  # a GIF frame may reach beyond the canvas of its header
    try:
        upright, colour_notes = _to_upright_srgb(opened, background)
    except MemoryError as error:
        raise ImageTooLargeError("converting the image takes too much memory") from error
    facts = ImageFacts(
        width=upright.width,
        height=upright.height,
        format=opened.format,
        media_type=MEDIA_TYPES[opened.format],
        notes=(*opened.notes, *colour_notes),
    )
    return upright, facts


def _to_upright_srgb(
    opened: _Opened, background: tuple[int, int, int]
) -> tuple[Image.Image, tuple[ImageNote, ...]]:
    colours, alpha, notes = to_srgb(opened.image, raw_mode=opened.raw_mode)
    canvas = Image.new("RGB", colours.size, background)
    canvas.paste(colours, mask=alpha)
    if opened.orientation != _UPRIGHT:
        canvas = canvas.transpose(_TRANSPOSE[opened.orientation])
    return canvas, notes


@contextmanager
def _open(data: bytes) -> Iterator[_Opened]:
    """Open the image strictly; what its decoder raises in the block becomes an ImageError."""
    recognised = recognise(data)
    if recognised is None:
        raise NotAnImageError("the content is of no accepted image format")
    notes: tuple[ImageNote, ...] = ()
    if recognised.format == "png":
        data, notes = tidy_png(data)
    stream = _WatchedBytes(data)
    with _STRICT_WARNINGS, warnings.catch_warnings():
        for category in _STRICT_CATEGORIES:
            warnings.simplefilter("error", category)
        try:
            with Image.open(stream, formats=(recognised.format,)) as image:
                _check_size(image.size)
                yield _describe(image, recognised.format, notes)
        except ImageError:
            raise
        except (
            MemoryError,
            Image.DecompressionBombError,
            Image.DecompressionBombWarning,
        ) as error:
            raise ImageTooLargeError("decoding the image takes too much memory") from error
        except (UnidentifiedImageError, *_DECODER_FAILURES) as error:
            if recognised.is_cut_short or stream.exhausted:
                raise TruncatedImageError(f"the {recognised.format} data ends early") from error
            raise CorruptImageError(f"the {recognised.format} data is damaged") from error


def _describe(image: Image.Image, format_name: str, notes: tuple[ImageNote, ...]) -> _Opened:
    if getattr(image, "is_animated", False):
        notes = (*notes, ImageNote(reason="FIRST_FRAME_USED", message="the file has more frames"))
    return _Opened(
        image=image,
        format="mpo" if image.format == "MPO" else format_name,
        orientation=_orientation(image),
        raw_mode=_raw_mode(image),
        notes=notes,
    )


def _check_size(size: tuple[int, int]) -> None:
    width, height = size
    if max(width, height) > MAX_SIDE:
        raise ImageTooLargeError(f"{width} x {height}: a side is over {MAX_SIDE} pixels")
    if width * height > MAX_PIXELS:
        raise ImageTooLargeError(f"{width} x {height}: more than {MAX_PIXELS} pixels")


def _orientation(image: Image.Image) -> int:
    """EXIF orientation still to be applied, 1 to 8.

    Pillow turns TIFF upright itself, and reports the turned size from the start.
    """
    if image.format == "TIFF":
        return _UPRIGHT
    # PngImageFile's own getexif() decodes all pixels, to reach chunks that tidy_png moved ahead.
    exif = Image.Image.getexif(image)
    orientation = exif.get(ExifTags.Base.Orientation, _UPRIGHT)
    return orientation if orientation in _TRANSPOSE else _UPRIGHT


def _raw_mode(image: Image.Image) -> str:
    """The sample layout of the file, where Pillow's decoder tiles name one."""
    tiles = getattr(image, "tile", ())
    arguments = tiles[0][3] if tiles else None
    if isinstance(arguments, tuple):
        arguments = arguments[0] if arguments else None
    return arguments if isinstance(arguments, str) else ""
