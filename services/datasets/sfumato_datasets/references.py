"""Which blobs a version keeps, and what goes with it.

A version keeps its manifest, the manifest's blocks and what is said of it; a block keeps the images in
it. So an edit of one sample adds the references of one block, not of the whole dataset.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, exists, select

from sfumato_chassis.blobs import drop_references, set_references
from sfumato_chassis.tables import blob_references
from sfumato_datasets.tables import SERVICE


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockContents:
    """What a block of a manifest keeps: images, their previews and masks."""

    digest: str
    kept: Sequence[str]


def keep_version(
    connection: Connection,
    owner: str,
    dataset: str,
    number: int,
    *,
    own: Sequence[str],
    blocks: Sequence[BlockContents],
) -> set[str]:
    """Keeps what a new version consists of.

    Args:
        own: The manifest, its blocks and what is said of the version.
        blocks: What each block keeps.

    Returns:
        What the blocks keep that no version had.
    """
    added: set[str] = set()
    for block in blocks:
        if not is_kept(connection, block_resource(block.digest)):
            set_references(connection, SERVICE, block_resource(block.digest), block.kept)
            added.update(block.kept)
    set_references(connection, SERVICE, version_resource(owner, dataset, number), own)
    return added


def drop_version(
    connection: Connection, owner: str, dataset: str, number: int, *, now: datetime
) -> None:
    """Ends what a version keeps, and what its blocks keep that no other version has."""
    resource = version_resource(owner, dataset, number)
    digests = connection.execute(
        select(blob_references.c.digest).where(
            blob_references.c.service == SERVICE, blob_references.c.resource == resource
        )
    ).scalars()
    held = digests.all()
    drop_references(connection, SERVICE, resource, now)
    still_held = set(
        connection.execute(
            select(blob_references.c.digest).where(
                blob_references.c.service == SERVICE,
                blob_references.c.digest.in_(held),
                blob_references.c.resource.startswith("version:"),
            )
        ).scalars()
    )
    for digest in held:
        if digest not in still_held:
            drop_references(connection, SERVICE, block_resource(digest), now)


def owns_image(connection: Connection, owner: str, digest: str) -> bool:
    """Whether some version of one of the owner's datasets holds the image."""
    of_image, of_block = blob_references.alias(), blob_references.alias()
    found = exists().where(
        of_image.c.service == SERVICE,
        of_image.c.digest == digest,
        of_block.c.service == SERVICE,
        of_image.c.resource == "block:" + of_block.c.digest,
        of_block.c.resource.startswith(f"version:{owner}/", autoescape=True),
    )
    return bool(connection.execute(select(found)).scalar_one())


def is_kept(connection: Connection, resource: str) -> bool:
    """Whether something is kept for a resource."""
    found = exists().where(
        blob_references.c.service == SERVICE, blob_references.c.resource == resource
    )
    return bool(connection.execute(select(found)).scalar_one())


def version_resource(owner: str, dataset: str, number: int) -> str:
    """Names a version among all that keeps blobs."""
    return f"version:{owner}/{dataset}/{number}"


def block_resource(digest: str) -> str:
    """Names a block among all that keeps blobs."""
    return f"block:{digest}"
