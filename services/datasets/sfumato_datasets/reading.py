"""Reads versions for callers: samples, what is said of them, differences, thumbnails."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from itertools import islice
from typing import TypeVar

from sqlalchemy import Connection

from sfumato_chassis.blobs import BlobFolder, digest_of
from sfumato_chassis.errors import DataLoss, NotFound, Reason
from sfumato_chassis.platform import Platform
from sfumato_datasets.differences import Difference, find_differences
from sfumato_datasets.image_rows import find_image
from sfumato_datasets.images import Preview, StoredImage
from sfumato_datasets.library import EVERY_SAMPLE, ManifestReader, SampleFilter
from sfumato_datasets.manifest import Manifest, ManifestError, Sample
from sfumato_datasets.references import owns_image
from sfumato_datasets.statistics import Duplicates, VersionStatistics
from sfumato_datasets.storage import Version

Read = TypeVar("Read")


class Reading:
    """What is read of versions. Every method raises DataLoss for stored bytes that are damaged."""

    def __init__(self, platform: Platform) -> None:
        self._database = platform.database
        self._folder = platform.blobs.folder
        self._manifests = ManifestReader(lambda digest: stored_bytes(self._folder, digest))

    async def manifest(self, version: Version) -> Manifest:
        """All samples of a version."""
        return await self._read(version, lambda: self._manifests.manifest(version.digest))

    async def samples(
        self, version: Version, *, after: str, limit: int, fitting: SampleFilter = EVERY_SAMPLE
    ) -> Sequence[Sample]:
        """At most ``limit`` samples with names after ``after``, by name."""

        def read() -> Sequence[Sample]:
            found = self._manifests.samples_after(version.digest, after, fitting=fitting)
            return list(islice(found, limit))

        return await self._read(version, read)

    async def stream(self, version: Version) -> AsyncIterator[Sample]:
        """Every sample of a version, by name."""
        index = await self._read(version, lambda: self._manifests.index(version.digest))
        for reference in index.blocks:
            block = await self._read(version, partial(self._manifests.block, reference.digest))
            for sample in block.samples:
                yield sample

    async def statistics(self, version: Version) -> VersionStatistics:
        """What is said of a version."""
        return await self._read(
            version,
            lambda: VersionStatistics.from_bytes(
                stored_bytes(self._folder, version.statistics_digest)
            ),
        )

    async def duplicates(self, version: Version) -> Duplicates:
        """Groups of samples that show the same picture."""
        return await self._read(
            version,
            lambda: Duplicates.from_bytes(stored_bytes(self._folder, version.duplicates_digest)),
        )

    async def differences(self, base: Version, target: Version) -> Sequence[Difference]:
        """What became of each sample, by name."""
        return await self._read(
            target, lambda: find_differences(self._manifests, base.digest, target.digest)
        )

    async def thumbnail(self, owner: str, digest: str, side: int) -> tuple[Preview, bytes]:
        """The preview of one of the owner's images, and its bytes.

        Raises:
            NotFound: None of the owner's datasets has the image.
        """

        def find(connection: Connection) -> StoredImage | None:
            return find_image(connection, digest) if owns_image(connection, owner, digest) else None

        image = await self._database.read(find)
        if image is None:
            raise NotFound.resource("image", digest)
        preview = next(preview for preview in image.previews if preview.side == side)
        try:
            data = await asyncio.to_thread(stored_bytes, self._folder, image.previews_digest)
        except LookupError as error:
            raise damaged(f"a thumbnail of {digest}") from error
        return preview, data[preview.offset : preview.offset + preview.length]

    async def _read(self, version: Version, read: Callable[[], Read]) -> Read:
        try:
            return await asyncio.to_thread(read)
        except (ManifestError, LookupError, ValueError) as error:
            raise damaged(f"the manifest of {version.dataset} version {version.number}") from error


def stored_bytes(folder: BlobFolder, digest: str) -> bytes:
    """The whole of a blob. Raises LookupError where it is not there, or has other bytes by now."""
    try:
        data = folder.path(digest).read_bytes()
    except OSError as error:
        raise LookupError(digest) from error
    if digest_of(data) != digest:
        raise LookupError(digest)
    return data


def damaged(what: str) -> DataLoss:
    """The error of stored bytes that are not what they were, or not there."""
    return DataLoss(Reason.BLOB_CORRUPT, f"{what} is damaged")
