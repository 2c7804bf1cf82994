import dataclasses
import json

import pytest

from sfumato_chassis.blobs import digest_of
from sfumato_datasets.describing import describe, distribution, find_duplicates
from sfumato_datasets.manifest import Manifest, Sample
from sfumato_datasets.statistics import Duplicates, VersionStatistics


def sample(name: str, image: bytes, **fields: object) -> Sample:
    made = Sample(
        file_name=name,
        image_digest=digest_of(image),
        size_bytes=len(image),
        media_type="image/png",
        width=64,
        height=32,
    )
    return dataclasses.replace(made, **fields)


SAMPLES = (
    sample("a.png", b"one", caption="four", caption_source="sidecar.txt", tags=("x", "y")),
    sample("b.png", b"one", caption="sixsix", caption_source="sidecar.txt", tags=("x",)),
    sample("c.jpg", b"two", media_type="image/jpeg", width=32, height=64),
    sample("d.png", b"three"),
)
HASHES = {digest_of(b"one"): 0, digest_of(b"two"): 0b111, digest_of(b"three"): (1 << 64) - 1}


def test_duplicates_by_content_and_by_looks() -> None:
    found = find_duplicates(SAMPLES, HASHES)
    assert found == Duplicates(content=(("a.png", "b.png"),), near=(("a.png", "c.jpg"),))
    assert Duplicates.from_bytes(found.to_bytes()) == found


def test_an_image_of_which_nothing_is_known_is_like_none() -> None:
    known = {digest: value for digest, value in HASHES.items() if value}
    assert find_duplicates(SAMPLES, known).near == ()


def test_what_is_said_of_a_version() -> None:
    described = describe(Manifest.of(SAMPLES), find_duplicates(SAMPLES, HASHES))
    assert described.media_types == {"image/jpeg": 1, "image/png": 3}
    assert described.tags == [("x", 2), ("y", 1)]
    assert described.num_tags == 2
    assert (described.num_duplicate_groups, described.num_near_duplicate_groups) == (1, 1)
    assert described.caption_characters.count == 2
    assert described.caption_characters.mean == 5
    assert (described.aspect.minimum, described.aspect.maximum) == (0.5, 2.0)
    for table in described.bucket_tables:
        assert sum(bucket["num_samples"] for bucket in table["buckets"]) == 4


def test_it_is_read_back_as_it_was_written() -> None:
    described = describe(Manifest.of(SAMPLES), find_duplicates(SAMPLES, HASHES))
    again = VersionStatistics.from_bytes(described.to_bytes())
    assert again.to_bytes() == described.to_bytes()
    assert json.loads(described.to_bytes())["num_tags"] == 2


def test_nothing_is_said_of_no_samples() -> None:
    described = describe(Manifest(samples=()), Duplicates(content=(), near=()))
    assert described.width.count == 0
    assert described.bucket_tables == []


@pytest.mark.parametrize(
    ("values", "mean", "median", "counts"),
    [([3.0], 3, 3, [1]), ([1, 1, 1], 1, 1, [3]), ([0, 1, 2, 20], 5.75, 1.5, [1, 1, 1, 1])],
)
def test_a_distribution(values: list[float], mean: float, median: float, counts: list[int]) -> None:
    found = distribution(values)
    assert (found.mean, found.median) == (mean, median)
    assert [each.count for each in found.bins if each.count] == counts
    assert (found.bins[0].lower, found.bins[-1].upper) == (min(values), max(values))
    assert sum(each.count for each in found.bins) == len(values)
