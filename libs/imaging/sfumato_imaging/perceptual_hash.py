"""A hash that stays nearly the same when a picture is rescaled or compressed again.

The DCT hash of C. Zauner, "Implementation and Benchmarking of Perceptual Image Hash Functions" (2010),
section 3.2.1: which of the low frequencies are stronger than their median.
"""

from typing import Final

import numpy as np
from PIL import Image

HASH_BITS: Final = 64
_SIDE: Final = 32
_FREQUENCIES: Final = 8

_POSITIONS = (2 * np.arange(_SIDE) + 1)[None, :]
# Without the constant one, which says only how bright the picture is.
_BASIS = np.cos(np.pi / (2 * _SIDE) * np.arange(1, _FREQUENCIES + 1)[:, None] * _POSITIONS)


def perceptual_hash(image: Image.Image) -> int:
    """64 bits, unsigned; pictures that look alike differ in few of them.

    A picture of one colour has the hash 0.

    Args:
        image: mode RGB, as `read_image` gives it.
    """
    small = image.convert("L").resize((_SIDE, _SIDE), Image.Resampling.BOX, reducing_gap=2.0)
    pixels = np.asarray(small, dtype=np.float64)
    # Rounded, so that rounding errors of a picture of one colour are no frequencies.
    strengths = np.round(_BASIS @ pixels @ _BASIS.T, 6)
    bits = (strengths > np.median(strengths)).ravel()
    return int.from_bytes(np.packbits(bits).tobytes(), "big")
