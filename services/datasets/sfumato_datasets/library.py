"""Versions of datasets: what they are made of, and how they are read back."""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Protocol

from sfumato_datasets.manifest import Manifest, Sample


class ImportMode(Enum):
    """REQUIRE_EMPTY: the dataset must hold nothing. ADD: the new version holds both."""

    REQUIRE_EMPTY = "require_empty"
    ADD = "add"


class DatasetNotEmptyError(Exception):
    """The import asked for an empty dataset."""

    reason: ClassVar[str] = "DATASET_NOT_EMPTY"


class ManifestBlobs(Protocol):
    """Where manifests are kept, by digest."""

    def put(self, data: bytes) -> str:
        """Store the bytes, unless they are there, and return `sha256:` and their digest."""

    def get(self, digest: str) -> bytes:
        """The bytes of that digest; raises LookupError where there are none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionContents:
    """What is said of a version without reading its manifest. `size_bytes` is of all images."""

    digest: str
    num_samples: int
    size_bytes: int
    num_captioned: int


def contents_of(manifest: Manifest) -> VersionContents:
    return VersionContents(
        digest=manifest.digest,
        num_samples=len(manifest.samples),
        size_bytes=sum(sample.size_bytes for sample in manifest.samples),
        num_captioned=sum(1 for sample in manifest.samples if sample.caption),
    )


def check_mode(mode: ImportMode, latest: VersionContents | None) -> None:
    """Checked before the dataset's lock is taken, and again under it.

    Raises:
        DatasetNotEmptyError: the mode needs an empty dataset and `latest` holds samples.
    """
    if mode is ImportMode.REQUIRE_EMPTY and latest is not None and latest.num_samples > 0:
        raise DatasetNotEmptyError(f"the dataset holds {latest.num_samples} samples")


def store_manifest(manifest: Manifest, blobs: ManifestBlobs) -> VersionContents:
    """Keep the manifest as a blob; its digest names the version's contents."""
    blobs.put(manifest.to_bytes())
    return contents_of(manifest)


def load_manifest(digest: str, blobs: ManifestBlobs) -> Manifest:
    """Read a stored manifest.

    Raises:
        ManifestError: the bytes are not those that were stored.
        LookupError: there is none.
    """
    return Manifest.from_bytes(blobs.get(digest), digest=digest)


def samples_after(manifest: Manifest, file_name: str, limit: int) -> Sequence[Sample]:
    """At most `limit` samples whose names come after `file_name`; an empty name is the start."""
    start = bisect.bisect_right(manifest.samples, file_name, key=lambda sample: sample.file_name)
    return manifest.samples[start : start + limit]
