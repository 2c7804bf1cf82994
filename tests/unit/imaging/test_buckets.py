import math
import random

import pytest

from sfumato_imaging.buckets import Shape, bucket_of, bucket_table, candidate_shapes, crop_fraction


def nearest_by_logarithm(shape: Shape, resolution: int, divisor: int) -> tuple[int, int]:
    """The rule in floating point, over every candidate."""
    candidates = [
        (width, height)
        for width in range(divisor, 4 * resolution, divisor)
        for height in range(divisor, 4 * resolution, divisor)
        if 0.93 <= width * height / resolution**2 <= 1 and 1 / 3 <= width / height <= 3
    ]
    aspect = math.log(shape.width / shape.height)
    return min(
        candidates,
        key=lambda c: (round(abs(math.log(c[0] / c[1]) - aspect), 12), -c[0] * c[1], c[1]),
    )


def test_the_nearest_of_all_candidates() -> None:
    generator = random.Random(0)
    for _ in range(60):
        shape = Shape(width=generator.randint(600, 3000), height=generator.randint(600, 3000))
        bucket = bucket_of(shape, resolution=256, divisor=16)
        assert (bucket.width, bucket.height) == nearest_by_logarithm(shape, 256, 16)


def test_candidates_keep_to_area_divisor_and_ratio() -> None:
    shapes = candidate_shapes(resolution=1024, divisor=32)
    for shape in shapes:
        assert shape.width % 32 == shape.height % 32 == 0
        assert 0.93 * 1024**2 <= shape.width * shape.height <= 1024**2
        assert max(shape.width, shape.height) <= 3 * min(shape.width, shape.height)
        assert shape.transposed() in shapes


def test_a_transposed_image_gets_the_transposed_bucket() -> None:
    generator = random.Random(1)
    for _ in range(300):
        shape = Shape(width=generator.randint(40, 4000), height=generator.randint(40, 4000))
        for upscale in (False, True):
            bucket = bucket_of(shape, resolution=512, divisor=16, upscale=upscale)
            flipped = bucket_of(shape.transposed(), resolution=512, divisor=16, upscale=upscale)
            assert flipped == bucket.transposed()


def test_little_is_cropped_of_many_sizes() -> None:
    generator = random.Random(2)
    sizes: dict[tuple[int, int], int] = {}
    for _ in range(3000):
        ratio = math.exp(generator.uniform(-math.log(3), math.log(3)))
        area = generator.uniform(1.5e6, 6e6)
        size = (round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio)))
        sizes[size] = sizes.get(size, 0) + 1
    table = bucket_table(sizes, resolution=1024, divisor=16)
    assert table.mean_crop <= 0.008
    assert table.worst_crop <= 0.02
    assert sum(bucket.num_samples for bucket in table.buckets) == 3000
    counts = [bucket.num_samples for bucket in table.buckets]
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize(
    ("shape", "upscale", "expected"),
    [
        (Shape(width=100, height=50), False, Shape(width=96, height=48)),
        (Shape(width=10, height=500), False, Shape(width=16, height=496)),
        (Shape(width=100, height=100), True, Shape(width=512, height=512)),
        (Shape(width=512, height=512), False, Shape(width=512, height=512)),
    ],
)
def test_small_images_are_enlarged_only_when_asked(
    shape: Shape, upscale: bool, expected: Shape
) -> None:
    assert bucket_of(shape, resolution=512, divisor=16, upscale=upscale) == expected


def test_what_is_cropped() -> None:
    assert crop_fraction(Shape(width=200, height=100), Shape(width=64, height=64)) == 0.5
    assert crop_fraction(Shape(width=64, height=64), Shape(width=128, height=128)) == 0.0


def test_a_divisor_that_is_too_coarse() -> None:
    with pytest.raises(ValueError, match="no shape"):
        candidate_shapes(resolution=64, divisor=1000)
