"""Finds what is said of a version as a whole."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from sfumato_datasets.manifest import Manifest, Sample
from sfumato_datasets.statistics import Bin, Distribution, Duplicates, VersionStatistics
from sfumato_imaging.buckets import bucket_table
from sfumato_imaging.similarity import near_duplicates

NUM_BINS: Final = 20
MAX_TAGS: Final = 100
RESOLUTIONS: Final = (512, 768, 1024)
"""In pixels; those that models are usually trained at."""
DIVISOR: Final = 16
MAX_DISTANCE: Final = 6
"""Bits in which the perceptual hashes of near-duplicates differ at most."""


def find_duplicates(samples: Sequence[Sample], hashes: Mapping[str, int]) -> Duplicates:
    """Groups the samples.

    Args:
        samples: In the order of their names.
        hashes: Perceptual hash, 64 bits, by image digest.
    """
    by_image: dict[str, list[str]] = defaultdict(list)
    for sample in samples:
        by_image[sample.image_digest].append(sample.file_name)
    digests = [digest for digest in by_image if digest in hashes]
    groups = near_duplicates([hashes[digest] for digest in digests], max_distance=MAX_DISTANCE)
    near = (sorted(by_image[digests[index]][0] for index in group) for group in groups)
    return Duplicates(
        content=tuple(sorted(tuple(names) for names in by_image.values() if len(names) > 1)),
        near=tuple(sorted(map(tuple, near))),
    )


def describe(manifest: Manifest, duplicates: Duplicates) -> VersionStatistics:
    """What is said of a version with these samples."""
    samples = manifest.samples
    tags = Counter(tag for sample in samples for tag in sample.tags)
    most_frequent = sorted(tags.items(), key=lambda item: (-item[1], item[0]))[:MAX_TAGS]
    return VersionStatistics(
        width=distribution([sample.width for sample in samples]),
        height=distribution([sample.height for sample in samples]),
        aspect=distribution([sample.width / sample.height for sample in samples]),
        caption_characters=distribution(
            [len(sample.caption) for sample in samples if sample.caption]
        ),
        media_types=dict(sorted(Counter(sample.media_type for sample in samples).items())),
        tags=most_frequent,
        num_tags=len(tags),
        bucket_tables=_bucket_tables(samples),
        num_duplicate_groups=len(duplicates.content),
        num_near_duplicate_groups=len(duplicates.near),
    )


def distribution(values: Sequence[float]) -> Distribution:
    """How these values are distributed."""
    if not values:
        return Distribution(count=0, minimum=0, maximum=0, mean=0, median=0, bins=())
    return Distribution(
        count=len(values),
        minimum=min(values),
        maximum=max(values),
        mean=statistics.fmean(values),
        median=statistics.median(values),
        bins=_bins(values),
    )


def _bins(values: Sequence[float]) -> tuple[Bin, ...]:
    lowest, highest = min(values), max(values)
    if lowest == highest:
        return (Bin(lower=lowest, upper=highest, count=len(values)),)
    width = (highest - lowest) / NUM_BINS
    counts = Counter(min(int((value - lowest) / width), NUM_BINS - 1) for value in values)
    edges = [lowest + index * width for index in range(NUM_BINS)] + [highest]
    return tuple(
        Bin(lower=edges[index], upper=edges[index + 1], count=counts[index])
        for index in range(NUM_BINS)
    )


def _bucket_tables(samples: Iterable[Sample]) -> list[Mapping[str, Any]]:
    sizes = Counter((sample.width, sample.height) for sample in samples)
    if not sizes:
        return []
    tables: list[Mapping[str, Any]] = []
    for resolution in RESOLUTIONS:
        table = bucket_table(sizes, resolution=resolution, divisor=DIVISOR)
        tables.append({"resolution": resolution, "divisor": DIVISOR, **asdict(table)})
    return tables
