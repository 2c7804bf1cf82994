import random

import numpy as np
import pytest
from PIL import Image, ImageFilter

from sfumato_imaging.perceptual_hash import perceptual_hash
from sfumato_imaging.similarity import near_duplicates


def photograph(seed: int) -> Image.Image:
    """Smooth noise of a few scales, as pictures have it."""
    generator = np.random.default_rng(seed)
    picture = np.zeros((192, 256, 3))
    for side in (3, 6, 12, 48):
        noise = generator.integers(0, 255, (side, side, 3), dtype=np.uint8)
        scaled = Image.fromarray(noise).resize((256, 192), Image.Resampling.BICUBIC)
        picture += np.asarray(scaled, dtype=np.float64) / 4
    return Image.fromarray(picture.astype(np.uint8))


def distance(first: Image.Image, second: Image.Image) -> int:
    return (perceptual_hash(first) ^ perceptual_hash(second)).bit_count()


@pytest.mark.parametrize("seed", range(6))
def test_what_looks_alike_differs_in_few_bits(seed: int) -> None:
    picture = photograph(seed)
    assert distance(picture, picture.resize((700, 525))) <= 6
    assert distance(picture, picture.filter(ImageFilter.GaussianBlur(1))) <= 6
    assert distance(picture, picture.point(lambda value: value * 0.8)) <= 6


def test_different_pictures_differ_in_many_bits() -> None:
    pictures = [photograph(seed) for seed in range(12)]
    distances = [
        distance(first, second)
        for index, first in enumerate(pictures)
        for second in pictures[:index]
    ]
    assert min(distances) > 12


def test_one_colour_has_the_hash_nothing() -> None:
    for colour in ("black", "white", "red"):
        assert perceptual_hash(Image.new("RGB", (50, 20), colour)) == 0


def grouped_by_walking(hashes: list[int], max_distance: int) -> list[list[int]]:
    """The groups by a walk over all pairs, one hash after the other."""
    left = set(range(len(hashes)))
    groups: list[list[int]] = []
    while left:
        reached = {min(left)}
        ahead = list(reached)
        while ahead:
            at = ahead.pop()
            near = {
                other
                for other in left - reached
                if (hashes[at] ^ hashes[other]).bit_count() <= max_distance
            }
            reached |= near
            ahead += near
        left -= reached
        if len(reached) > 1:
            groups.append(sorted(reached))
    return sorted(groups)


@pytest.mark.parametrize("max_distance", [0, 1, 6, 31, 63, 70])
@pytest.mark.parametrize("seed", range(3))
def test_groups_are_those_of_all_pairs(seed: int, max_distance: int) -> None:
    generator = random.Random(seed)
    hashes = [generator.getrandbits(64) for _ in range(40)]
    for _ in range(120):
        changed = generator.choice(hashes)
        for bit in generator.sample(range(64), generator.randint(0, 8)):
            changed ^= 1 << bit
        hashes.append(changed)
    generator.shuffle(hashes)
    found = near_duplicates(hashes, max_distance=max_distance)
    assert found == grouped_by_walking(hashes, max_distance)


def test_a_chain_is_one_group() -> None:
    chain = [(1 << (6 * step)) - 1 for step in range(10)]
    assert near_duplicates(chain) == [list(range(10))]


def test_nothing_and_one_are_no_groups() -> None:
    assert near_duplicates([]) == []
    assert near_duplicates([5]) == []
