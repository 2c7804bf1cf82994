"""Versions of datasets: what is said of them, and how their samples are read back."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import ClassVar, Final

from sfumato_datasets.manifest import (
    Block,
    Manifest,
    ManifestIndex,
    ReadBlob,
    Sample,
    read_block,
    read_manifest,
)

NUM_CACHED_BLOCKS: Final = 256
"""Of about 64 samples each, so that a search of some 16,000 meets all of them in memory."""
NUM_CACHED_INDICES: Final = 16


class ImportMode(Enum):
    """REQUIRE_EMPTY: the dataset must hold nothing. ADD: the new version holds both."""

    REQUIRE_EMPTY = "require_empty"
    ADD = "add"


class DatasetNotEmptyError(Exception):
    """The import asked for an empty dataset."""

    reason: ClassVar[str] = "DATASET_NOT_EMPTY"


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionContents:
    """What is said of a version without reading its manifest. `size_bytes` is of all images."""

    digest: str
    num_samples: int
    size_bytes: int
    num_captioned: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleFilter:
    """Samples that fit everything that is set; without anything it is all samples."""

    caption_contains: str = ""
    tag: str = ""
    missing_caption: bool = False

    def fits(self, sample: Sample) -> bool:
        """Whether the sample is meant."""
        wanted = self.caption_contains.casefold()
        captions = (sample.caption, *sample.caption_variants)
        return (
            (not wanted or any(wanted in caption.casefold() for caption in captions))
            and (not self.tag or self.tag in sample.tags)
            and not (self.missing_caption and sample.caption)
        )


EVERY_SAMPLE: Final = SampleFilter()


def check_mode(mode: ImportMode, latest: VersionContents | None) -> None:
    """Checked before the dataset's lock is taken, and again under it.

    Raises:
        DatasetNotEmptyError: the mode needs an empty dataset and `latest` holds samples.
    """
    if mode is ImportMode.REQUIRE_EMPTY and latest is not None and latest.num_samples > 0:
        raise DatasetNotEmptyError(f"the dataset holds {latest.num_samples} samples")


class ManifestReader:
    """Reads stored manifests, whole or in part; a few parts are kept, since they never change.

    Every method raises ManifestError for bytes that are not those that were stored, and LookupError
    where there are none. For use by any number of threads.
    """

    def __init__(self, read_blob: ReadBlob) -> None:
        self._read_blob = read_blob
        self._index: Callable[[str], ManifestIndex] = lru_cache(NUM_CACHED_INDICES)(
            lambda digest: ManifestIndex.from_bytes(read_blob(digest), digest=digest)
        )
        self._block: Callable[[str], Block] = lru_cache(NUM_CACHED_BLOCKS)(
            lambda digest: read_block(read_blob(digest), digest=digest)
        )

    def manifest(self, digest: str) -> Manifest:
        """All samples."""
        return read_manifest(digest, self._read_blob)

    def index(self, digest: str) -> ManifestIndex:
        """The blocks of a manifest."""
        return self._index(digest)

    def block(self, digest: str) -> Block:
        """The samples of a block."""
        return self._block(digest)

    def samples_after(
        self, digest: str, file_name: str, *, fitting: SampleFilter = EVERY_SAMPLE
    ) -> Iterator[Sample]:
        """Samples with names after `file_name`, by name; an empty one is the start."""
        for block in self._index(digest).blocks_after(file_name):
            for sample in self._block(block.digest).samples:
                if sample.file_name > file_name and fitting.fits(sample):
                    yield sample
