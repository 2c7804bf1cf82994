import io

import numpy as np
import pytest
from PIL import Image

from sfumato_imaging.thumbnails import MAX_THUMBNAIL_BYTES, THUMBNAIL_SIDES, make_thumbnail


@pytest.mark.parametrize("format", ["webp", "jpeg"])
@pytest.mark.parametrize("side", [*THUMBNAIL_SIDES, 2000])
def test_even_noise_fits_the_limit(format: str, side: int) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (900, 1200, 3), dtype=np.uint8)
    thumbnail = make_thumbnail(Image.fromarray(noise), side=side, format=format)
    assert len(thumbnail.data) <= MAX_THUMBNAIL_BYTES
    decoded = Image.open(io.BytesIO(thumbnail.data))
    assert decoded.size == (thumbnail.width, thumbnail.height)
    assert max(decoded.size) <= side
    assert thumbnail.media_type == Image.MIME[decoded.format] == f"image/{format}"
    assert abs(thumbnail.width / thumbnail.height - 4 / 3) < 0.02


def test_small_images_are_not_enlarged_and_the_source_is_left_alone() -> None:
    image = Image.new("RGB", (20, 10), (200, 0, 0))
    thumbnail = make_thumbnail(image, side=128)
    assert (thumbnail.width, thumbnail.height) == (20, 10)
    big = Image.new("RGB", (400, 10))
    make_thumbnail(big, side=128)
    assert big.size == (400, 10)


def test_extreme_aspects_keep_a_pixel() -> None:
    thumbnail = make_thumbnail(Image.new("RGB", (16000, 2)), side=128)
    assert (thumbnail.width, thumbnail.height) == (128, 1)


def test_a_side_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="side"):
        make_thumbnail(Image.new("RGB", (4, 4)), side=0)
