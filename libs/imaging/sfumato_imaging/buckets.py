"""Aspect-ratio buckets: the shapes to which images are resized and cropped, so that a batch has one.

Candidates have about the area of a square of the resolution. The choice is exact: aspects are compared
as integers, and a portrait image gets the transpose of what its transpose gets.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Final

MIN_AREA_FRACTION: Final = 0.93
"""Of the area of a square of the resolution."""
DEFAULT_MAX_RATIO: Final = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """In pixels."""

    width: int
    height: int

    @property
    def aspect(self) -> Fraction:
        """Width over height."""
        return Fraction(self.width, self.height)

    def transposed(self) -> "Shape":
        """The shape on its side."""
        return Shape(width=self.height, height=self.width)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """A shape, and how many images get it."""

    width: int
    height: int
    num_samples: int


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketTable:
    """The buckets of a set of images, the fullest first, and the part of an image that is cropped away."""

    buckets: tuple[Bucket, ...]
    mean_crop: float
    worst_crop: float


@lru_cache(maxsize=32)
def candidate_shapes(
    *, resolution: int, divisor: int, max_ratio: float = DEFAULT_MAX_RATIO
) -> Sequence[Shape]:
    """All shapes of a resolution, by aspect and then area.

    Sides are multiples of `divisor`; the area is MIN_AREA_FRACTION to 1 of the square's, the aspect
    within 1 / `max_ratio` to `max_ratio`.

    Raises:
        ValueError: there is none, since `divisor` is too coarse for `resolution`.
    """
    square = resolution * resolution
    shapes: list[Shape] = []
    for height in range(divisor, ceil(resolution * max_ratio) + 1, divisor):
        widest = square // height // divisor * divisor
        for width in range(widest, 0, -divisor):
            if width * height < MIN_AREA_FRACTION * square:
                break
            if max(width, height) <= max_ratio * min(width, height):
                shapes.append(Shape(width=width, height=height))
    if not shapes:
        raise ValueError(f"no shape of multiples of {divisor} has the area of {resolution} squared")
    return tuple(sorted(shapes, key=lambda shape: (shape.aspect, shape.width * shape.height)))


def bucket_of(
    shape: Shape,
    *,
    resolution: int,
    divisor: int,
    max_ratio: float = DEFAULT_MAX_RATIO,
    upscale: bool = False,
) -> Shape:
    """The bucket of an image: nearest by the logarithm of the aspect, of a tie the larger.

    An image that would have to be enlarged gets, unless `upscale`, the largest shape of multiples of
    `divisor` that it holds; one below `divisor` in a side is enlarged in any case.

    Args:
        shape: of the image, after orientation.
    """
    if shape.width < shape.height:
        on_its_side = bucket_of(
            shape.transposed(),
            resolution=resolution,
            divisor=divisor,
            max_ratio=max_ratio,
            upscale=upscale,
        )
        return on_its_side.transposed()
    shapes = _largest_of_each_aspect(resolution, divisor, max_ratio)
    at = bisect_left(shapes, shape.aspect, key=lambda candidate: candidate.aspect)
    around = shapes[max(0, at - 1) : at + 1]
    nearest = min(
        around,
        key=lambda candidate: (
            _ratio(candidate, shape),
            -candidate.width * candidate.height,
            candidate.height,
        ),
    )
    if upscale or (nearest.width <= shape.width and nearest.height <= shape.height):
        return nearest
    return Shape(
        width=max(divisor, shape.width // divisor * divisor),
        height=max(divisor, shape.height // divisor * divisor),
    )


def crop_fraction(shape: Shape, bucket: Shape) -> float:
    """The part of an image that is lost when it is resized to cover the bucket and cropped to it."""
    return 1.0 - float(1 / _ratio(bucket, shape))


def bucket_table(
    sizes: Mapping[tuple[int, int], int],
    *,
    resolution: int,
    divisor: int,
    max_ratio: float = DEFAULT_MAX_RATIO,
) -> BucketTable:
    """What becomes of a set of images.

    Args:
        sizes: (width, height) in pixels, after orientation, to the number of images of that size; at
            least one.
    """
    counts: Counter[tuple[int, int]] = Counter()
    total, worst = 0.0, 0.0
    for (width, height), count in sizes.items():
        shape = Shape(width=width, height=height)
        bucket = bucket_of(shape, resolution=resolution, divisor=divisor, max_ratio=max_ratio)
        counts[bucket.width, bucket.height] += count
        crop = crop_fraction(shape, bucket)
        total += crop * count
        worst = max(worst, crop)
    fullest_first = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return BucketTable(
        buckets=tuple(
            Bucket(width=width, height=height, num_samples=count)
            for (width, height), count in fullest_first
        ),
        mean_crop=total / sum(sizes.values()),
        worst_crop=worst,
    )


@lru_cache(maxsize=32)
def _largest_of_each_aspect(resolution: int, divisor: int, max_ratio: float) -> Sequence[Shape]:
    shapes = candidate_shapes(resolution=resolution, divisor=divisor, max_ratio=max_ratio)
    # In ascending order of area, so that the last of each aspect stays.
    return tuple({shape.aspect: shape for shape in shapes}.values())


def _ratio(first: Shape, second: Shape) -> Fraction:
    """How far two aspects are apart: 1 where they are equal, else more."""
    ratio = first.aspect / second.aspect
    return ratio if ratio >= 1 else 1 / ratio
