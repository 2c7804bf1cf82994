"""A version as an archive: where each byte of it comes from, known before the first is sent.

The bytes follow from the version alone, so a reader that was cut off goes on at any offset. Images are
stored as they are, since they are compressed already.

Formats: PKWARE's APPNOTE.TXT 6.3.10 (4.3 for the records, 4.5.3 for Zip64), and POSIX.1-2001 pax with
the naming of WebDataset (github.com/webdataset/webdataset).
"""

import json
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from sfumato_datasets.manifest import Sample
from sfumato_imaging.formats import FILE_SUFFIXES

TAR_BLOCK_BYTES: Final = 512
METADATA_FILE: Final = "metadata.jsonl"
_UTF8_NAMES: Final = 1 << 11
_EPOCH_DATE: Final = (1 << 5) | 1
"""1 January 1980 in MS-DOS format, the earliest that there is."""
_VERSION: Final = 20
_ZIP64_VERSION: Final = 45
_REGULAR_FILE: Final = 0o100644 << 16
_UNIX: Final = 3 << 8
_MAX_16: Final = 0xFFFF
_MAX_32: Final = 0xFFFF_FFFF


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """An image as it goes into an archive. `crc32` is that of its bytes."""

    digest: str
    size_bytes: int
    crc32: int


Part = bytes | Image
"""Bytes of the archive itself, or those of an image."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """What an archive consists of, in order."""

    parts: tuple[Part, ...]

    @property
    def size_bytes(self) -> int:
        """Of the whole archive."""
        return sum(size_of(part) for part in self.parts)

    def after(self, offset: int) -> Iterator[tuple[Part, int]]:
        """The parts that are not over by `offset`, and where in each to begin."""
        at = 0
        for part in self.parts:
            end = at + size_of(part)
            if end > offset:
                yield part, max(0, offset - at)
            at = end


def size_of(part: Part) -> int:
    """In bytes."""
    return len(part) if isinstance(part, bytes) else part.size_bytes


def zip_layout(samples: Sequence[Sample], crc32_of: Callable[[Sample], int]) -> Layout:
    """A zip of metadata.jsonl, and for each sample its image and its caption in a `.txt`.

    A sample with variants of its caption has no `.txt`, which would hide them from an import.

    Args:
        crc32_of: CRC-32 of a sample's image bytes.
    """
    rows = "".join(f"{_json(_metadata_row(sample))}\n" for sample in samples)
    writer = _ZipWriter()
    writer.add(METADATA_FILE, rows.encode("utf-8"))
    for sample in samples:
        writer.add(sample.file_name, _image(sample, crc32_of(sample)))
        if sample.caption_source and not sample.caption_variants:
            stem = PurePosixPath(sample.file_name).stem
            writer.add(f"{stem}.txt", sample.caption.encode("utf-8"))
    return writer.finish()


def webdataset_layout(samples: Sequence[Sample], crc32_of: Callable[[Sample], int]) -> Layout:
    """A tar with each sample's image, `.txt` and `.json`, under a key without dots.

    Args:
        crc32_of: CRC-32 of a sample's image bytes; a tar has none of them.
    """
    del crc32_of
    parts: list[Part] = []
    for sample, key in zip(samples, _keys(samples), strict=True):
        parts += _tar_member(f"{key}{FILE_SUFFIXES[sample.media_type]}", _image(sample, 0))
        if sample.caption_source and not sample.caption_variants:
            parts += _tar_member(f"{key}.txt", sample.caption.encode("utf-8"))
        parts += _tar_member(f"{key}.json", _json(_metadata_row(sample)).encode("utf-8"))
    return Layout(parts=(*parts, bytes(2 * TAR_BLOCK_BYTES)))


class _ZipWriter:
    """Lays out local headers, contents and, at the end, the central directory."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._directory: list[bytes] = []
        self._offset = 0

    def add(self, name: str, content: Part) -> None:
        size = size_of(content)
        checksum = zlib.crc32(content) if isinstance(content, bytes) else content.crc32
        encoded = name.encode("utf-8")
        shared = struct.pack(
            "<HHHHIII", _UTF8_NAMES, 0, 0, _EPOCH_DATE, checksum, size, size
        ) + struct.pack("<H", len(encoded))
        offset, extra, version = self._offset, b"", _VERSION
        if offset >= _MAX_32:
            extra, version = struct.pack("<HHQ", 1, 8, offset), _ZIP64_VERSION
        self._directory.append(
            struct.pack("<4sHH", b"PK\x01\x02", _UNIX | version, version)
            + shared
            + struct.pack("<HHHHII", len(extra), 0, 0, 0, _REGULAR_FILE, min(offset, _MAX_32))
            + encoded
            + extra
        )
        self._append(
            struct.pack("<4sH", b"PK\x03\x04", _VERSION) + shared + bytes(2) + encoded, content
        )

    def finish(self) -> Layout:
        start, directory = self._offset, b"".join(self._directory)
        count, size = len(self._directory), len(directory)
        self._append(directory)
        if count >= _MAX_16 or start >= _MAX_32 or size >= _MAX_32:
            self._append(
                struct.pack(
                    "<4sQHHIIQQQQ",
                    *(b"PK\x06\x06", 44, _UNIX | _ZIP64_VERSION, _ZIP64_VERSION, 0, 0),
                    *(count, count, size, start),
                ),
                struct.pack("<4sIQI", b"PK\x06\x07", 0, start + size, 1),
            )
        self._append(
            struct.pack(
                "<4sHHHHIIH",
                *(b"PK\x05\x06", 0, 0, min(count, _MAX_16), min(count, _MAX_16)),
                *(min(size, _MAX_32), min(start, _MAX_32), 0),
            )
        )
        return Layout(parts=tuple(self._parts))

    def _append(self, *parts: Part) -> None:
        for part in parts:
            self._parts.append(part)
            self._offset += size_of(part)


def _tar_member(name: str, content: Part) -> list[Part]:
    size = size_of(content)
    header = tarfile.TarInfo(name)
    header.size = size
    padding = bytes(-size % TAR_BLOCK_BYTES)
    return [header.tobuf(tarfile.PAX_FORMAT, "utf-8"), content, padding]


def _keys(samples: Iterable[Sample]) -> Iterator[str]:
    """A key for each sample, its stem without dots; of two that would be one, the later is numbered."""
    taken: set[str] = set()
    for sample in samples:
        stem = PurePosixPath(sample.file_name).stem.replace(".", "_")
        key, number = stem, 1
        while key.casefold() in taken:
            number += 1
            key = f"{stem}_{number}"
        taken.add(key.casefold())
        yield key


def _image(sample: Sample, crc32: int) -> Image:
    return Image(digest=sample.image_digest, size_bytes=sample.size_bytes, crc32=crc32)


def _metadata_row(sample: Sample) -> dict[str, Any]:
    row: dict[str, Any] = {"file_name": sample.file_name}
    if sample.caption_variants:
        row["text"] = [sample.caption, *sample.caption_variants]
    elif sample.caption:
        row["text"] = sample.caption
    if sample.tags:
        row["tags"] = list(sample.tags)
    return row


def _json(document: object) -> str:
    return json.dumps(document, ensure_ascii=False, sort_keys=True, allow_nan=False)
