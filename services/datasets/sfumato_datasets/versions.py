"""How a version comes to be and goes: its manifest and all that is kept beside it.

Everything is stored first; then the version appears in one transaction, together with whatever else is
to happen with it. Before it there is the old version, after it the new one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from sfumato_chassis.blobs import Blob, BlobStore, digest_of
from sfumato_chassis.requests import expire_request
from sfumato_datasets import storage
from sfumato_datasets.describing import describe, find_duplicates
from sfumato_datasets.image_rows import record_images
from sfumato_datasets.images import PREVIEWS_MEDIA_TYPE, StoredImage
from sfumato_datasets.library import VersionContents
from sfumato_datasets.manifest import BlobSink, Block, Manifest, index_of
from sfumato_datasets.references import BlockContents, drop_version, keep_version
from sfumato_datasets.storage import Version

EDIT_PREFIX = "edit"
JSON_MEDIA_TYPE = "application/json"
MANIFEST_MEDIA_TYPE = "application/vnd.sfumato.dataset+json"


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedVersion:
    """A version whose bytes are stored and which nobody sees yet.

    Attributes:
        own: Its manifest, the manifest's blocks and what is said of it.
        blocks: What each block keeps.
        images: What is known of its images.
    """

    contents: VersionContents
    statistics_digest: str
    duplicates_digest: str
    num_changed: int
    own: Sequence[Blob]
    blocks: Sequence[BlockContents]
    images: Sequence[StoredImage]


@dataclass(frozen=True, kw_only=True, slots=True)
class NextVersion:
    """Where a prepared version is to appear.

    Attributes:
        number: One more than that of the version that it was made from.
        created_by: The import or the edit.
    """

    owner: str
    dataset: str
    number: int
    created_by: str
    etag: str
    now: datetime


def prepare_version(
    manifest: Manifest, images: Mapping[str, StoredImage], sink: BlobSink, *, num_changed: int
) -> PreparedVersion:
    """Stores a version's own bytes. Its images are stored already.

    Args:
        images: By digest, those that are known.
        num_changed: Samples that are not as they were in the version before.
    """
    blocks = manifest.blocks()
    duplicates = find_duplicates(
        manifest.samples, {digest: image.perceptual_hash for digest, image in images.items()}
    )
    statistics_bytes = describe(manifest, duplicates).to_bytes()
    parts = [
        (index_of(blocks).to_bytes(), MANIFEST_MEDIA_TYPE),
        (statistics_bytes, JSON_MEDIA_TYPE),
        (duplicates.to_bytes(), JSON_MEDIA_TYPE),
        *((block.to_bytes(), MANIFEST_MEDIA_TYPE) for block in blocks),
    ]
    own = [
        Blob(digest=sink.put(data), size_bytes=len(data), media_type=media_type)
        for data, media_type in parts
    ]
    samples = manifest.samples
    return PreparedVersion(
        contents=VersionContents(
            digest=own[0].digest,
            num_samples=len(samples),
            size_bytes=sum(sample.size_bytes for sample in samples),
            num_captioned=sum(1 for sample in samples if sample.caption),
        ),
        statistics_digest=own[1].digest,
        duplicates_digest=own[2].digest,
        num_changed=num_changed,
        own=own,
        blocks=[_block_contents(block, images) for block in blocks],
        images=[images[digest] for digest in sorted(images)],
    )


def publish_version(
    connection: Connection, prepared: PreparedVersion, place: NextVersion, blobs: BlobStore
) -> Version:
    """Makes a version appear, inside a transaction.

    Raises:
        Aborted: ETAG_MISMATCH, another has taken its number since it was begun.
    """
    contents = prepared.contents
    version = Version(
        owner=place.owner,
        dataset=place.dataset,
        number=place.number,
        digest=contents.digest,
        num_samples=contents.num_samples,
        size_bytes=contents.size_bytes,
        num_captioned=contents.num_captioned,
        statistics_digest=prepared.statistics_digest,
        duplicates_digest=prepared.duplicates_digest,
        num_changed=prepared.num_changed,
        created_by=place.created_by,
        deletion_pending=False,
        create_time=place.now,
    )
    storage.add_version(connection, version, etag=place.etag)
    added = keep_version(
        connection,
        place.owner,
        place.dataset,
        place.number,
        own=[blob.digest for blob in prepared.own],
        blocks=prepared.blocks,
    )
    images = [image for image in prepared.images if image.digest in added]
    blobs.record(connection, *prepared.own, *_blobs_of(images))
    record_images(connection, images)
    return version


def remove_version(connection: Connection, version: Version, *, now: datetime) -> None:
    """Removes a version and gives free what only it keeps, inside a transaction."""
    drop_version(connection, version.owner, version.dataset, version.number, now=now)
    storage.remove_version(connection, version)
    if version.created_by.startswith(f"{EDIT_PREFIX}-"):
        expire_request(connection, version.created_by, now, deleted=True)


def remove_dataset(connection: Connection, owner: str, name: str, *, now: datetime) -> None:
    """Removes a dataset with all its versions, inside a transaction."""
    for version in storage.all_versions(connection, owner, name):
        remove_version(connection, version, now=now)
    storage.remove_dataset(connection, owner, name)


def _block_contents(block: Block, images: Mapping[str, StoredImage]) -> BlockContents:
    kept: set[str] = set()
    for sample in block.samples:
        kept.add(sample.image_digest)
        if sample.mask_digest is not None:
            kept.add(sample.mask_digest)
        if sample.image_digest in images:
            kept.add(images[sample.image_digest].previews_digest)
    return BlockContents(digest=digest_of(block.to_bytes()), kept=sorted(kept))


def _blobs_of(images: Sequence[StoredImage]) -> list[Blob]:
    blobs: list[Blob] = []
    for image in images:
        blobs.append(
            Blob(digest=image.digest, size_bytes=image.size_bytes, media_type=image.media_type)
        )
        blobs.append(
            Blob(
                digest=image.previews_digest,
                size_bytes=sum(preview.length for preview in image.previews),
                media_type=PREVIEWS_MEDIA_TYPE,
            )
        )
    return blobs
