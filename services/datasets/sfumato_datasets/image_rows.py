"""The rows of images: what was found when one was verified, once for everybody who has it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from sqlalchemy import Connection, RowMapping, delete, insert, select

from sfumato_chassis.blobs import parts_of
from sfumato_chassis.tables import blobs
from sfumato_datasets.images import Preview, StoredImage
from sfumato_datasets.tables import images
from sfumato_imaging.facts import READER_VERSION, ImageNote


def find_image(connection: Connection, digest: str) -> StoredImage | None:
    """What is known of an image, if this version of the reader has read it."""
    return find_images(connection, [digest]).get(digest)


def find_images(connection: Connection, digests: Iterable[str]) -> Mapping[str, StoredImage]:
    """What is known of images, by digest; those that this version of the reader has read."""
    found: dict[str, StoredImage] = {}
    for part in parts_of(sorted(set(digests))):
        rows = connection.execute(
            select(images).where(
                images.c.digest.in_(part), images.c.reader_version == READER_VERSION
            )
        ).mappings()
        found |= {row["digest"]: stored_image(row) for row in rows}
    return found


def record_images(connection: Connection, found: Sequence[StoredImage]) -> None:
    """Adds what was found, in place of what another version of the reader had."""
    known = find_images(connection, [image.digest for image in found])
    new = [image for image in found if image.digest not in known]
    for part in parts_of([image.digest for image in new]):
        connection.execute(delete(images).where(images.c.digest.in_(part)))
    if new:
        connection.execute(
            insert(images),
            [
                {
                    **asdict(image),
                    "perceptual_hash": f"{image.perceptual_hash:016x}",
                    "reader_version": READER_VERSION,
                }
                for image in new
            ],
        )


def purge_images(connection: Connection) -> int:
    """Forgets images whose bytes are gone; answers how many."""
    gone = images.c.digest.not_in(select(blobs.c.digest))
    return connection.execute(delete(images).where(gone)).rowcount


def stored_image(row: RowMapping) -> StoredImage:
    """A row as a record."""
    fields = {name: value for name, value in row.items() if name != "reader_version"}
    fields["perceptual_hash"] = int(row["perceptual_hash"], 16)
    fields["previews"] = tuple(Preview(**preview) for preview in row["previews"])
    fields["notes"] = tuple(ImageNote(**note) for note in row["notes"])
    return StoredImage(**fields)
