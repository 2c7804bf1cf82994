"""The crops and mirrors of a picture that a run trains on. No torch."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class VariantDraw:
    """Crop fractions in [0, 1) and a mirror; see `sfumato_imaging.geometry.cover_crop`."""

    u_left: float
    u_top: float
    flip: bool


def draw_variants(
    *, seed: int, image_digest: str, count: int, center_crop: bool, random_flip: bool
) -> tuple[VariantDraw, ...]:
    """`count` draws from a generator seeded with the run's seed and the picture.

    Seeding per picture means that adding one picture to a dataset leaves the others' cached
    latents valid. Draws may coincide; equal ones share one cache entry.
    """
    generator = random.Random(f"variant:{seed}:{image_digest}")
    draws = []
    for _ in range(count):
        u_left, u_top, u_flip = (generator.random() for _ in range(3))
        if center_crop:
            u_left = u_top = 0.5
        draws.append(VariantDraw(u_left=u_left, u_top=u_top, flip=random_flip and u_flip < 0.5))
    return tuple(draws)
