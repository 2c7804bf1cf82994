"""A version of a dataset: every sample, and one digest over all of it."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final, Self

MANIFEST_FORMAT: Final = 1


class ManifestError(Exception):
    """Stored bytes are not the manifest they should be."""

    reason: ClassVar[str] = "BLOB_CORRUPT"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One captioned image.

    `width` and `height` are in pixels after orientation. An empty `caption` with a
    `caption_source` is a tombstone: the sample is meant to have none. Digests are `sha256:` and 64
    hexadecimal digits.
    """

    file_name: str
    image_digest: str
    size_bytes: int
    media_type: str
    width: int
    height: int
    caption: str = ""
    caption_source: str = ""
    mask_digest: str | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """Samples in the order of their file names' code points, each name once."""

    samples: tuple[Sample, ...]

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> Self:
        """Sort the samples.

        Raises:
            ValueError: two samples of one file name.
        """
        ordered = tuple(sorted(samples, key=lambda sample: sample.file_name))
        names = {sample.file_name for sample in ordered}
        if len(names) != len(ordered):
            raise ValueError("a manifest holds each file name once")
        return cls(samples=ordered)

    def to_bytes(self) -> bytes:
        """Canonical JSON: sorted keys, no spaces, UTF-8. Equal manifests give equal bytes."""
        document = {
            "format": MANIFEST_FORMAT,
            "samples": [asdict(sample) for sample in self.samples],
        }
        text = json.dumps(
            document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
        return text.encode("utf-8")

    @property
    def digest(self) -> str:
        """`sha256:` and the hexadecimal SHA-256 of `to_bytes()`."""
        return digest_of(self.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes, *, digest: str) -> Self:
        """Read what `to_bytes` wrote.

        Raises:
            ManifestError: the bytes are of another digest, or of a format this program cannot read.
        """
        if digest_of(data) != digest:
            raise ManifestError(f"the bytes of manifest {digest} are not what they were")
        try:
            document = json.loads(data)
            if document["format"] != MANIFEST_FORMAT:
                raise ManifestError(f"manifest format {document['format']} is not known")
            return cls.of(_sample(fields) for fields in document["samples"])
        except (ValueError, KeyError, TypeError) as error:
            raise ManifestError(f"{digest} is not a manifest") from error


def digest_of(data: bytes) -> str:
    """`sha256:` and 64 hexadecimal digits."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _sample(fields: dict[str, Any]) -> Sample:
    return Sample(**{**fields, "tags": tuple(fields["tags"])})
