"""Exports: opens a version as an archive and reads it from any byte on."""

import asyncio
import hashlib
import zlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sfumato_chassis.blobs import Blob, corrupt
from sfumato_chassis.errors import FailedPrecondition, OutOfRange, Reason
from sfumato_chassis.platform import Platform
from sfumato_datasets.exporting import Image, Layout, webdataset_layout, zip_layout
from sfumato_datasets.image_rows import find_images
from sfumato_datasets.images import StoredImage
from sfumato_datasets.manifest import Sample
from sfumato_datasets.reading import Reading, damaged, stored_bytes
from sfumato_datasets.storage import Version

CHUNK_BYTES: Final = 1 << 20
LAYOUT_VERSION: Final = 1
"""Raise it whenever any version would become other bytes than before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportFormat:
    """A kind of archive."""

    name: str
    suffix: str
    media_type: str
    layout: Callable[[Sequence[Sample], Callable[[Sample], int]], Layout]


FORMATS: Final = {
    format.name: format
    for format in (
        ExportFormat(name="zip", suffix=".zip", media_type="application/zip", layout=zip_layout),
        ExportFormat(
            name="webdataset",
            suffix=".tar",
            media_type="application/x-tar",
            layout=webdataset_layout,
        ),
    )
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """An archive that can be read. Its bytes are the same wherever `etag` is."""

    format: ExportFormat
    file_name: str
    etag: str
    layout: Layout
    media_types: Mapping[str, str]


class Exporter:
    """Makes archives of versions, without writing one to the disk."""

    def __init__(self, platform: Platform, reading: Reading) -> None:
        self._database = platform.database
        self._blobs = platform.blobs
        self._reading = reading

    async def open(self, version: Version, format_name: str, *, offset: int) -> Export:
        """Lays the archive out.

        Args:
            format_name: One of FORMATS.
            offset: Where it will be read from.

        Raises:
            FailedPrecondition: DATASET_EMPTY.
            OutOfRange: `offset` lies past the end.
            DataLoss: The version's stored bytes are damaged.
        """
        if version.num_samples == 0:
            raise FailedPrecondition(Reason.DATASET_EMPTY, f"{version.dataset} holds no sample")
        format = FORMATS[format_name]
        samples = (await self._reading.manifest(version)).samples
        digests = [sample.image_digest for sample in samples]
        images = await self._database.read(lambda connection: find_images(connection, digests))
        layout = await asyncio.to_thread(
            format.layout, samples, lambda sample: self._crc32_of(sample, images)
        )
        if offset > layout.size_bytes:
            raise OutOfRange(
                Reason.OFFSET_OUT_OF_RANGE,
                f"the archive has {layout.size_bytes} bytes",
                details={"size_bytes": str(layout.size_bytes)},
            )
        named = f"{LAYOUT_VERSION}:{format.name}:{version.digest}"
        return Export(
            format=format,
            file_name=f"{version.dataset}-{version.number}{format.suffix}",
            etag=hashlib.sha256(named.encode()).hexdigest()[:32],
            layout=layout,
            media_types={sample.image_digest: sample.media_type for sample in samples},
        )

    async def read(self, export: Export, offset: int) -> AsyncIterator[bytes]:
        """The bytes from `offset` on, in chunks of at most 1 MiB.

        Raises:
            DataLoss: The stored bytes of an image are damaged.
        """
        gathered = bytearray()
        for part, start in export.layout.after(offset):
            if isinstance(part, bytes):
                gathered += part[start:]
            else:
                async for chunk in self._image(part, start, export):
                    gathered += chunk
                    while len(gathered) >= CHUNK_BYTES:
                        yield bytes(gathered[:CHUNK_BYTES])
                        del gathered[:CHUNK_BYTES]
        for begin in range(0, len(gathered), CHUNK_BYTES):
            yield bytes(gathered[begin : begin + CHUNK_BYTES])

    async def _image(self, image: Image, start: int, export: Export) -> AsyncIterator[bytes]:
        blob = Blob(
            digest=image.digest,
            size_bytes=image.size_bytes,
            media_type=export.media_types[image.digest],
        )
        # Read from its start, an image is checked on the way; entered midway it cannot be.
        if start and not await asyncio.to_thread(self._blobs.folder.holds, image.digest):
            raise corrupt(blob)
        async for chunk in self._blobs.read(blob, start, None):
            yield chunk

    def _crc32_of(self, sample: Sample, images: Mapping[str, StoredImage]) -> int:
        known = images.get(sample.image_digest)
        if known is not None:
            return known.crc32
        try:
            return zlib.crc32(stored_bytes(self._blobs.folder, sample.image_digest))
        except LookupError as error:
            raise damaged(f"image {sample.image_digest}") from error
