"""Cover-resize and crop: how an image of any shape fills a target shape."""

from dataclasses import dataclass

from PIL import Image


@dataclass(frozen=True, kw_only=True, slots=True)
class CropRectangle:
    """The image is resized to (resized_width, resized_height) and the rectangle cut out of that.

    All in pixels of the resized image, origin top left. Part of the latent cache key.
    """

    resized_width: int
    resized_height: int
    left: int
    top: int
    width: int
    height: int


def cover_rectangle(
    size: tuple[int, int], target_size: tuple[int, int], crop: tuple[float, float] = (0.5, 0.5)
) -> CropRectangle:
    """Smallest size of the same aspect that covers the target, and where to cut it.

    Args:
        size: (width, height) of the upright image.
        target_size: (width, height) wanted.
        crop: (u_left, u_top), each in 0..1; uniform draws make every offset equally likely.

    Raises:
        ValueError: a side below 1, or a crop fraction outside 0..1 or NaN.
    """
    (width, height), (target_width, target_height) = size, target_size
    if min(width, height, target_width, target_height) < 1:
        raise ValueError(f"sizes must be at least 1 x 1: {size}, {target_size}")
    if target_width * height >= target_height * width:
        resized_width = target_width
        resized_height = max(target_height, _rounded_ratio(height * target_width, width))
    else:
        resized_width = max(target_width, _rounded_ratio(width * target_height, height))
        resized_height = target_height
    return CropRectangle(
        resized_width=resized_width,
        resized_height=resized_height,
        left=crop_offset(crop[0], resized_width, target_width),
        top=crop_offset(crop[1], resized_height, target_height),
        width=target_width,
        height=target_height,
    )


def crop_offset(fraction: float, size: int, target: int) -> int:
    """Offset in pixels of a `target` long cut in `size` pixels, for a fraction in 0..1."""
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"a crop fraction must lie in 0..1, not {fraction}")
    return min(int(fraction * (size - target + 1)), size - target)


def cover_crop(
    image: Image.Image,
    *,
    target_size: tuple[int, int],
    crop: tuple[float, float] = (0.5, 0.5),
    flip: bool = False,
) -> tuple[Image.Image, CropRectangle]:
    """Resize with Lanczos so that the target is covered, cut, then mirror when `flip`.

    Args as `cover_rectangle`; the mirror is left to right, applied after the cut.
    """
    rectangle = cover_rectangle(image.size, target_size, crop)
    resized_size = (rectangle.resized_width, rectangle.resized_height)
    if image.size != resized_size:
        image = image.resize(resized_size, Image.Resampling.LANCZOS)
    image = image.crop(
        (
            rectangle.left,
            rectangle.top,
            rectangle.left + rectangle.width,
            rectangle.top + rectangle.height,
        )
    )
    if flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return image, rectangle


def _rounded_ratio(numerator: int, denominator: int) -> int:
    return (2 * numerator + denominator) // (2 * denominator)
