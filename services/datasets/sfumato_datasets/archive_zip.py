"""Entries of a zip archive, read where they lie.

The list of entries is read here rather than by `zipfile`, which takes a list of any length into memory,
lets entries share their bytes, and raises errors of many kinds for offsets out of range.
Format: PKWARE's APPNOTE.TXT 6.3.10; 4.3.7 and 4.3.12 for the headers, 4.3.14 to 4.3.16 for the end.
"""

import os
import stat
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import BinaryIO, Final

from sfumato_datasets.archives import (
    ArchiveInvalidError,
    ArchiveLimits,
    ArchiveTooLargeError,
    Member,
)
from sfumato_datasets.sources import FileKind, FileUnreadableError

_END: Final = struct.Struct("<4s4H2LH")
_END_SIGNATURE: Final = b"PK\x05\x06"
_END64_LOCATOR: Final = struct.Struct("<4sLQL")
_END64_LOCATOR_SIGNATURE: Final = b"PK\x06\x07"
_END64: Final = struct.Struct("<4sQ2H2L4Q")
_END64_SIGNATURE: Final = b"PK\x06\x06"
_MAX_COMMENT_BYTES: Final = 0xFFFF
_LISTED: Final = struct.Struct("<4s6H3L5H2L")
_LISTED_SIGNATURE: Final = b"PK\x01\x02"
_LOCAL: Final = struct.Struct("<4s5H3L2H")
_LOCAL_SIGNATURE: Final = b"PK\x03\x04"
_EXTRA: Final = struct.Struct("<2H")
_EXTRA_ZIP64: Final = 1
_IN_EXTRA: Final = 0xFFFFFFFF
"""Stands for a number that is in the zip64 extra field."""
_ENCRYPTED: Final = 0x0001 | 0x0040 | 0x2000
_NAME_IS_UTF8: Final = 0x0800
_STORED: Final = 0
_DEFLATED: Final = 8
_CHUNK_BYTES: Final = 1 << 18


@dataclass(frozen=True, kw_only=True, slots=True)
class _Listed:
    """What the list says of one entry. `header_offset` is from the start of the file."""

    name: bytes
    flags: int
    method: int
    crc32: int
    num_compressed_bytes: int
    size_bytes: int
    attributes: int
    header_offset: int

    @property
    def path(self) -> str:
        if self.flags & _NAME_IS_UTF8:
            return self.name.decode("utf-8", "surrogateescape")
        return self.name.decode("cp437")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Content:
    """Where the bytes of one entry lie; `offset` is None where its own header is damaged."""

    offset: int | None
    method: int
    crc32: int
    num_compressed_bytes: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Directory:
    """The list of entries; `base` is what every offset in the archive counts from."""

    data: bytes
    start: int
    base: int


def list_zip(file: BinaryIO, limits: ArchiveLimits) -> Sequence[Member]:
    """The members of a zip, which stays open for as long as they are read.

    Raises:
        ArchiveInvalidError: It is damaged or encrypted, or its entries share bytes.
        ArchiveTooLargeError: It has too many entries, or expands too much.
    """
    descriptor = file.fileno()
    directory = _directory(descriptor, limits)
    members: list[Member] = []
    spans: list[tuple[int, int]] = []
    num_bytes = 0
    for count, listed in enumerate(_entries(directory), start=1):
        limits.check_entries(count)
        num_bytes += listed.size_bytes
        content, end = _located(descriptor, listed)
        spans.append((listed.header_offset, end))
        path = listed.path
        if not path.endswith("/"):
            limits.check_expansion(listed.size_bytes, listed.num_compressed_bytes)
            read = partial(_read, descriptor, content)
            members.append(Member(path=path, kind=_kind(listed), read=read))
    limits.check_expansion(num_bytes, _size_of(descriptor))
    _check_apart(spans, directory.start)
    return members


def _directory(descriptor: int, limits: ArchiveLimits) -> _Directory:
    """Reads the list of entries, unless it is so long that it would fill the memory."""
    size = _size_of(descriptor)
    tail_start = max(0, size - _MAX_COMMENT_BYTES - _END.size)
    tail = os.pread(descriptor, size - tail_start, tail_start)
    at = tail.rfind(_END_SIGNATURE, 0, len(tail) - _END.size + len(_END_SIGNATURE))
    if at < 0:
        raise ArchiveInvalidError("a zip without its end")
    num_bytes, offset = _END.unpack_from(tail, at)[5:7]
    end = tail_start + at
    locator_at = end - _END64_LOCATOR.size
    if _struct_at(descriptor, _END64_LOCATOR, locator_at)[0] == _END64_LOCATOR_SIGNATURE:
        end = locator_at - _END64.size
        signature, fields = _struct_at(descriptor, _END64, end)
        if signature != _END64_SIGNATURE:
            raise ArchiveInvalidError("a damaged zip")
        num_bytes, offset = fields[7:9]
    start = end - num_bytes
    if start < offset:
        raise ArchiveInvalidError("a damaged zip")
    if num_bytes > limits.max_directory_bytes:
        raise ArchiveTooLargeError(f"more than {limits.max_entries} entries")
    data = os.pread(descriptor, num_bytes, start)
    return _Directory(data=data, start=start, base=start - offset)


def _entries(directory: _Directory) -> Iterator[_Listed]:
    """In the order of the list, whatever number of entries the end of the archive tells."""
    data, at = directory.data, 0
    while at < len(data):
        if len(data) - at < _LISTED.size or not data.startswith(_LISTED_SIGNATURE, at):
            raise ArchiveInvalidError("a damaged zip")
        fields = _LISTED.unpack_from(data, at)
        name_start = at + _LISTED.size
        extra_start = name_start + fields[10]
        extra_end = extra_start + fields[11]
        at = extra_end + fields[12]
        if at > len(data):
            raise ArchiveInvalidError("a damaged zip")
        if fields[3] & _ENCRYPTED:
            raise ArchiveInvalidError("an encrypted zip")
        sizes = _zip64_sizes((fields[9], fields[8], fields[16]), data[extra_start:extra_end])
        header_offset = directory.base + sizes[2]
        if header_offset + _LOCAL.size > directory.start:
            raise ArchiveInvalidError("a damaged zip")
        yield _Listed(
            name=data[name_start:extra_start],
            flags=fields[3],
            method=fields[4],
            crc32=fields[7],
            size_bytes=sizes[0],
            num_compressed_bytes=sizes[1],
            attributes=fields[15],
            header_offset=header_offset,
        )


def _zip64_sizes(numbers: tuple[int, int, int], extra: bytes) -> list[int]:
    """Size, compressed size and offset of an entry: those of the list, or of its extra field."""
    if _IN_EXTRA not in numbers:
        return list(numbers)
    wide, at = b"", 0
    while at + _EXTRA.size <= len(extra) and not wide:
        kind, length = _EXTRA.unpack_from(extra, at)
        at += _EXTRA.size
        if kind == _EXTRA_ZIP64:
            wide = extra[at : at + length]
        at += length
    found: list[int] = []
    for number in numbers:
        if number == _IN_EXTRA:
            if len(wide) < 8:
                raise ArchiveInvalidError("a damaged zip")
            found.append(int.from_bytes(wide[:8], "little"))
            wide = wide[8:]
        else:
            found.append(number)
    return found


def _located(descriptor: int, listed: _Listed) -> tuple[_Content, int]:
    """Where the bytes of an entry lie, by its own header, and where they end."""
    signature, fields = _struct_at(descriptor, _LOCAL, listed.header_offset)
    method, num_name_bytes, num_extra_bytes = fields[2], fields[8], fields[9]
    name_start = listed.header_offset + _LOCAL.size
    offset: int | None = None
    end = name_start + len(listed.name) + listed.num_compressed_bytes
    is_alike = method == listed.method and num_name_bytes == len(listed.name)
    if signature == _LOCAL_SIGNATURE and is_alike:
        name = os.pread(descriptor, num_name_bytes, name_start)
        if name == listed.name:
            offset = name_start + num_name_bytes + num_extra_bytes
            end = offset + listed.num_compressed_bytes
    content = _Content(
        offset=offset,
        method=listed.method,
        crc32=listed.crc32,
        num_compressed_bytes=listed.num_compressed_bytes,
        size_bytes=listed.size_bytes,
    )
    return content, end


def _check_apart(spans: list[tuple[int, int]], directory_start: int) -> None:
    """Refuses entries that share bytes: a few could stand for any number."""
    in_order = [*sorted(spans), (directory_start, directory_start)]
    for (_, end), (next_start, _) in pairwise(in_order):
        if end > next_start:
            raise ArchiveInvalidError("a zip whose entries overlap")


def _kind(listed: _Listed) -> FileKind:
    file_type = stat.S_IFMT(listed.attributes >> 16)
    return FileKind.FILE if file_type in (0, stat.S_IFREG) else FileKind.OTHER


def _read(descriptor: int, content: _Content, max_bytes: int) -> bytes:
    """At most so many bytes, checked against their sum where that is all of them."""
    if content.method not in (_STORED, _DEFLATED):
        raise FileUnreadableError("compressed in a way that is not read")
    if content.offset is None:
        raise FileUnreadableError("damaged in the archive")
    wanted = min(max_bytes, content.size_bytes + 1)
    try:
        data = b"".join(_unpacked(descriptor, content, content.offset, wanted))
    except (zlib.error, OSError) as error:
        raise FileUnreadableError("damaged in the archive") from error
    is_whole = len(data) == content.size_bytes
    if not (is_whole or len(data) == max_bytes < content.size_bytes):
        raise FileUnreadableError("damaged in the archive")
    if is_whole and zlib.crc32(data) != content.crc32:
        raise FileUnreadableError("damaged in the archive")
    return data


def _unpacked(descriptor: int, content: _Content, at: int, max_bytes: int) -> Iterator[bytes]:
    """The content in parts, at most so many bytes; fewer where it ends before."""
    end = at + content.num_compressed_bytes
    if content.method == _STORED:
        yield os.pread(descriptor, min(max_bytes, end - at), at)
        return
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    while max_bytes and not inflate.eof:
        chunk = os.pread(descriptor, min(_CHUNK_BYTES, end - at), at)
        if not chunk:
            return
        at += len(chunk)
        part = inflate.decompress(chunk, max_bytes)
        max_bytes -= len(part)
        yield part


def _struct_at(descriptor: int, layout: struct.Struct, offset: int) -> tuple[bytes, list[int]]:
    """The signature and the other fields there; nothing but zeros outside of the file."""
    data = os.pread(descriptor, layout.size, offset) if offset >= 0 else b""
    signature, *fields = layout.unpack(data.ljust(layout.size, b"\0"))
    return signature, fields


def _size_of(descriptor: int) -> int:
    return os.fstat(descriptor).st_size
