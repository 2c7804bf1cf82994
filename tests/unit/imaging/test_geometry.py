import math

import numpy as np
import pytest
from PIL import Image

from sfumato_imaging.geometry import cover_crop, cover_rectangle, crop_offset


def test_the_target_is_always_covered_and_one_side_fits_exactly() -> None:
    random = np.random.default_rng(0)
    for _ in range(2000):
        width, height, target_width, target_height = (int(n) for n in random.integers(1, 3000, 4))
        left, top = random.random(2)
        r = cover_rectangle((width, height), (target_width, target_height), (left, top))
        assert (r.width, r.height) == (target_width, target_height)
        assert r.resized_width == target_width or r.resized_height == target_height
        assert 0 <= r.left <= r.resized_width - r.width
        assert 0 <= r.top <= r.resized_height - r.height
        scale = max(target_width / width, target_height / height)
        assert abs(r.resized_width - width * scale) <= 0.5 + 1e-6 * r.resized_width
        assert abs(r.resized_height - height * scale) <= 0.5 + 1e-6 * r.resized_height


def test_transposed_images_have_transposed_rectangles() -> None:
    one = cover_rectangle((641, 427), (320, 256), (0.3, 0.8))
    other = cover_rectangle((427, 641), (256, 320), (0.8, 0.3))
    assert (one.resized_width, one.resized_height) == (other.resized_height, other.resized_width)
    assert (one.left, one.top) == (other.top, other.left)


def test_uniform_fractions_make_every_offset_equally_likely() -> None:
    fractions = (np.arange(1200) + 0.5) / 1200
    offsets = [crop_offset(float(u), 13, 10) for u in fractions]
    assert np.bincount(offsets).tolist() == [300, 300, 300, 300]
    assert (crop_offset(0.0, 13, 10), crop_offset(0.5, 12, 10), crop_offset(1.0, 13, 10)) == (
        0,
        1,
        3,
    )


@pytest.mark.parametrize("fraction", [-0.1, 1.1, math.nan, math.inf])
def test_fractions_outside_the_unit_interval_are_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match="fraction"):
        cover_rectangle((10, 10), (5, 5), (fraction, 0.5))
    with pytest.raises(ValueError, match="sizes"):
        cover_rectangle((0, 10), (5, 5))


def test_an_image_of_the_target_size_passes_untouched() -> None:
    noise = np.random.default_rng(1).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    same, rectangle = cover_crop(Image.fromarray(noise), target_size=(12, 8))
    assert np.array_equal(np.asarray(same), noise)
    assert (rectangle.left, rectangle.top) == (0, 0)


def test_cut_then_mirror() -> None:
    pixels = np.zeros((4, 8, 3), np.uint8)
    pixels[:, :, 0] = np.arange(8) * 10
    cut, rectangle = cover_crop(
        Image.fromarray(pixels), target_size=(4, 4), crop=(1.0, 0.0), flip=True
    )
    assert rectangle.left == 4
    assert np.asarray(cut)[0, :, 0].tolist() == [70, 60, 50, 40]


def test_resizing_is_lanczos() -> None:
    noise = np.random.default_rng(2).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    small, _ = cover_crop(image, target_size=(16, 16))
    expected = image.resize((16, 16), Image.Resampling.LANCZOS)
    assert small.tobytes() == expected.tobytes()
