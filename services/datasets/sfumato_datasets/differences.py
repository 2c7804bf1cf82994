"""What became of each sample from one version to another."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from sfumato_datasets.library import ManifestReader
from sfumato_datasets.manifest import BlockRef, Sample


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A sample that is not the same in both versions; None where a version has none of the name."""

    file_name: str
    base: Sample | None
    target: Sample | None


def find_differences(manifests: ManifestReader, base: str, target: str) -> Sequence[Difference]:
    """The differences between two manifests, by file name. Blocks that both have are not read.

    Args:
        base: Digest of the manifest.
        target: Digest of the other.

    Raises:
        ManifestError, LookupError: As :class:`ManifestReader`.
    """
    base_blocks, target_blocks = manifests.index(base).blocks, manifests.index(target).blocks
    shared = {block.digest for block in base_blocks} & {block.digest for block in target_blocks}
    before = _samples(manifests, base_blocks, shared)
    after = _samples(manifests, target_blocks, shared)
    return [
        Difference(file_name=name, base=before.get(name), target=after.get(name))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _samples(
    manifests: ManifestReader, blocks: Sequence[BlockRef], shared: set[str]
) -> dict[str, Sample]:
    own = (manifests.block(block.digest) for block in blocks if block.digest not in shared)
    samples = chain.from_iterable(block.samples for block in own)
    return {sample.file_name: sample for sample in samples}
