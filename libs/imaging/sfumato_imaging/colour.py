"""Any decoded picture to 8-bit sRGB, with its alpha apart."""

import io
from typing import Any, Final

import numpy as np
from PIL import Image, ImageCms

from sfumato_imaging.errors import UnsupportedPixelsError
from sfumato_imaging.facts import ImageNote

_SIXTEEN_BIT: Final = ("I;16", "I;16B", "I;16L")
_MODES_WITH_ALPHA: Final = ("LA", "La", "PA", "RGBA", "RGBa")
_TIFF_BITS_PER_SAMPLE: Final = 258
_TIFF_PHOTOMETRIC: Final = 262
_TIFF_WHITE_IS_ZERO: Final = 0
_GREY_SCALES: Final = {"L;2": 85, "L;4": 17}
"""Factor by which the PNG decoder spreads 2- and 4-bit grey over 0..255."""


def to_srgb(
    image: Image.Image, *, raw_mode: str
) -> tuple[Image.Image, Image.Image | None, tuple[ImageNote, ...]]:
    """Convert a loaded image.

    Args:
        image: any mode Pillow decodes to, with its `info` as read from the file.
        raw_mode: the sample layout in the file as Pillow names it ("L;4", "RGB;16B"), "" where
            unknown.

    Returns:
        The colours (mode RGB), the alpha (mode L) or None where the image is opaque, and notes
        for a report.

    Raises:
        UnsupportedPixelsError: 32-bit integer or floating-point samples; no file says which
            value is white.
    """
    profile_bytes = image.info.get("icc_profile")
    colours, alpha = _split_alpha(image, raw_mode)
    if colours.mode == "LAB":
        lab = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB"))
        return _transform(colours, lab), alpha, ()
    if not profile_bytes:
        return colours.convert("RGB"), alpha, ()
    converted, notes = _apply_profile(colours, profile_bytes)
    return converted, alpha, notes


def _split_alpha(image: Image.Image, raw_mode: str) -> tuple[Image.Image, Image.Image | None]:
    """Colours in mode L, RGB, CMYK or LAB, and the alpha."""
    if image.mode in _SIXTEEN_BIT:
        return _split_sixteen_bit(image)
    if image.mode in ("I", "F"):
        raise UnsupportedPixelsError(f"samples of mode {image.mode} have no defined white")
    if image.mode in _MODES_WITH_ALPHA or "transparency" in image.info:
        _scale_transparency(image.info, raw_mode)
        with_alpha = image.convert("RGBA")
        return with_alpha.convert("RGB"), with_alpha.getchannel("A")
    if image.mode in ("1", "L"):
        return image.convert("L"), None
    if image.mode in ("CMYK", "LAB"):
        return image, None
    return image.convert("RGB"), None


def _scale_transparency(info: dict[Any, Any], raw_mode: str) -> None:
    """PNG names its transparent colour in file samples; Pillow compares it with decoded ones."""
    transparency = info.get("transparency")
    if raw_mode in _GREY_SCALES and isinstance(transparency, int):
        info["transparency"] = transparency * _GREY_SCALES[raw_mode]
    elif raw_mode == "RGB;16B" and isinstance(transparency, tuple):
        info["transparency"] = tuple(sample >> 8 for sample in transparency)


def _split_sixteen_bit(image: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    tags = getattr(image, "tag_v2", {})
    bits = tags.get(_TIFF_BITS_PER_SAMPLE, (16,))[0]
    white = (1 << bits) - 1
    samples = np.asarray(image).astype(np.uint32)
    grey = ((np.minimum(samples, white) * 255 + white // 2) // white).astype(np.uint8)
    if tags.get(_TIFF_PHOTOMETRIC) == _TIFF_WHITE_IS_ZERO:
        grey = 255 - grey
    alpha = None
    transparent_sample = image.info.get("transparency")
    if isinstance(transparent_sample, int):
        opaque = (samples != transparent_sample).astype(np.uint8) * np.uint8(255)
        alpha = Image.fromarray(opaque)
    return Image.fromarray(grey), alpha


def _apply_profile(
    colours: Image.Image, profile_bytes: bytes
) -> tuple[Image.Image, tuple[ImageNote, ...]]:
    try:
        profile = ImageCms.ImageCmsProfile(io.BytesIO(profile_bytes))
        space = profile.profile.xcolor_space.strip()
    except OSError:
        return colours.convert("RGB"), (_ignored("the ICC profile is unreadable"),)
    if colours.mode == "L" and space == "RGB":
        colours = colours.convert("RGB")
    if colours.mode == "RGB" and space == "GRAY" and _is_grey(colours):
        colours = colours.getchannel(0)
    if {"L": "GRAY", "RGB": "RGB", "CMYK": "CMYK"}.get(colours.mode) != space:
        return colours.convert("RGB"), (_ignored(f"the ICC profile is of colour space {space}"),)
    try:
        return _transform(colours, profile), ()
    except ImageCms.PyCMSError:
        return colours.convert("RGB"), (_ignored("the ICC profile defines no transform"),)


def _ignored(message: str) -> ImageNote:
    return ImageNote(reason="COLOUR_PROFILE_IGNORED", message=message)


def _is_grey(colours: Image.Image) -> bool:
    red, green, blue = (channel.tobytes() for channel in colours.split())
    return red == green == blue


def _transform(colours: Image.Image, profile: ImageCms.ImageCmsProfile) -> Image.Image:
    converted = ImageCms.profileToProfile(
        colours, profile, ImageCms.createProfile("sRGB"), outputMode="RGB"
    )
    if converted is None:
        raise ImageCms.PyCMSError("the colour transform gave no image")
    return converted
