"""A version of a dataset: every sample, and one digest over all of it.

Samples stand in blocks, and the manifest is the list of the blocks' digests, so that a page is read
without the rest and versions share the blocks in which they agree. Where one block ends and the next
begins depends on the samples alone: equal samples give equal manifests, whatever came before.
"""

import bisect
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, ClassVar, Final, Protocol, Self

from sfumato_chassis.blobs import digest_of

MANIFEST_FORMAT: Final = 2
MEAN_BLOCK_SAMPLES: Final = 64
MAX_BLOCK_SAMPLES: Final = 256

ReadBlob = Callable[[str], bytes]
"""The bytes of a digest; raises LookupError where there are none."""


class BlobSink(Protocol):
    """Where bytes are stored."""

    def put(self, data: bytes) -> str:
        """Store the bytes, unless they are there, and return `sha256:` and their digest."""


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
    caption_variants: tuple[str, ...] = ()
    caption_source: str = ""
    mask_digest: str | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockRef:
    """A block: its digest, its first file name, and how many samples it holds."""

    digest: str
    first_file_name: str
    num_samples: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Samples that are stored as one blob, at least one."""

    samples: tuple[Sample, ...]

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return canonical_json([asdict(sample) for sample in self.samples])


@dataclass(frozen=True, kw_only=True, slots=True)
class ManifestIndex:
    """What a manifest's own bytes hold: its blocks, in order."""

    blocks: tuple[BlockRef, ...]

    def to_bytes(self) -> bytes:
        """Canonical JSON; its digest names the version's contents."""
        return canonical_json(
            {"format": MANIFEST_FORMAT, "blocks": [asdict(block) for block in self.blocks]}
        )

    @classmethod
    def from_bytes(cls, data: bytes, *, digest: str) -> Self:
        """Read what `to_bytes` wrote.

        Raises:
            ManifestError: the bytes are of another digest, or of a format this program cannot read.
        """
        document = _document(data, digest)
        try:
            if document["format"] != MANIFEST_FORMAT:
                raise ManifestError(f"manifest format {document['format']} is not known")
            return cls(blocks=tuple(BlockRef(**fields) for fields in document["blocks"]))
        except (KeyError, TypeError) as error:
            raise ManifestError(f"{digest} is not a manifest") from error

    def blocks_after(self, file_name: str) -> Sequence[BlockRef]:
        """The blocks that can hold names after `file_name`; all for an empty name."""
        at = bisect.bisect_right(self.blocks, file_name, key=lambda block: block.first_file_name)
        return self.blocks[max(0, at - 1) :]


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

    def blocks(self) -> tuple[Block, ...]:
        """The samples in blocks.

        A block ends with a name whose hash says so (one of MEAN_BLOCK_SAMPLES does), or is full.
        """
        blocks: list[Block] = []
        start = 0
        for end, sample in enumerate(self.samples, start=1):
            is_full = end - start == MAX_BLOCK_SAMPLES
            if is_full or end == len(self.samples) or _ends_block(sample.file_name):
                blocks.append(Block(samples=self.samples[start:end]))
                start = end
        return tuple(blocks)

    @property
    def digest(self) -> str:
        """`sha256:` and the hexadecimal SHA-256 of the index of its blocks."""
        return digest_of(index_of(self.blocks()).to_bytes())


def index_of(blocks: Iterable[Block]) -> ManifestIndex:
    """The index that names these blocks."""
    return ManifestIndex(
        blocks=tuple(
            BlockRef(
                digest=digest_of(block.to_bytes()),
                first_file_name=block.samples[0].file_name,
                num_samples=len(block.samples),
            )
            for block in blocks
        )
    )


def read_block(data: bytes, *, digest: str) -> Block:
    """Read what `Block.to_bytes` wrote.

    Raises:
        ManifestError: the bytes are of another digest, or no block.
    """
    try:
        return Block(samples=tuple(_sample(fields) for fields in _document(data, digest)))
    except (KeyError, TypeError) as error:
        raise ManifestError(f"{digest} is not a block of a manifest") from error


def read_manifest(digest: str, read_blob: ReadBlob) -> Manifest:
    """All samples of a stored manifest.

    Raises:
        ManifestError: its bytes are not those that were stored.
        LookupError: some of it is not there.
    """
    index = ManifestIndex.from_bytes(read_blob(digest), digest=digest)
    blocks = (read_block(read_blob(block.digest), digest=block.digest) for block in index.blocks)
    return Manifest(samples=tuple(chain.from_iterable(block.samples for block in blocks)))


def _ends_block(file_name: str) -> bool:
    name_hash = hashlib.sha256(file_name.encode("utf-8")).digest()
    return int.from_bytes(name_hash[:2], "big") % MEAN_BLOCK_SAMPLES == 0


def canonical_json(document: object) -> bytes:
    """Sorted keys, no spaces, UTF-8: equal documents are equal bytes."""
    text = json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode("utf-8")


def _document(data: bytes, digest: str) -> Any:
    if digest_of(data) != digest:
        raise ManifestError(f"the bytes of {digest} are not what they were")
    try:
        return json.loads(data)
    except ValueError as error:
        raise ManifestError(f"{digest} is not JSON") from error


def _sample(fields: dict[str, Any]) -> Sample:
    variants, tags = tuple(fields["caption_variants"]), tuple(fields["tags"])
    return Sample(**{**fields, "caption_variants": variants, "tags": tags})
