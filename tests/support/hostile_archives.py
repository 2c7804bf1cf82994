"""Archives that no tool should make, each with the answer it is due."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import struct
import tarfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pictures import picture

STORED, DEFLATED = 0, 8
GOOD = picture(1)
OTHER = picture(2)


@dataclass(frozen=True, kw_only=True)
class ArchiveCase:
    """An archive; `failure` is the reason why its import fails, empty where it succeeds.

    `notes` are the reasons of what is said of single members.
    """

    name: str
    data: bytes
    failure: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ZipEntry:
    """An entry of a zip; what is None is as it should be.

    `listed_` fields are what the list at the end says, the others what the entry's own header says.
    """

    name: bytes
    data: bytes = b""
    packed: bytes | None = None
    method: int = STORED
    flags: int = 0x0800
    attributes: int = 0o100644 << 16
    own_name: bytes | None = None
    own_method: int | None = None
    listed_size_bytes: int | None = None
    listed_compressed_bytes: int | None = None
    listed_crc32: int | None = None
    listed_offset: int | None = None
    extra: bytes = b""
    has_descriptor: bool = False


def make_zip(
    entries: Iterable[ZipEntry], *, count: int | None = None, zip64_count: int | None = None
) -> bytes:
    """A zip of just these entries, right or wrong.

    Args:
        count: What its end says that they are.
        zip64_count: The same of the zip64 end, which is there only if it is given.
    """
    body, directory = bytearray(), bytearray()
    num_entries = 0
    for entry in entries:
        offset = len(body) if entry.listed_offset is None else entry.listed_offset
        packed = _packed(entry)
        body += _own_header(entry, packed) + packed
        if entry.has_descriptor:
            body += struct.pack(
                "<4s3L", b"PK\x07\x08", zlib.crc32(entry.data), len(packed), len(entry.data)
            )
        directory += _listed_header(entry, packed, offset)
        num_entries += 1
    start, size = len(body), len(directory)
    end = b""
    if zip64_count is not None:
        numbers = (44, 45, 45, 0, 0, zip64_count, zip64_count, size, start)
        end = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", *numbers)
        end += struct.pack("<4sLQL", b"PK\x06\x07", 0, start + size, 1)
    said = min(num_entries if count is None else count, 0xFFFF)
    end += struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, said, said, size, start, 0)
    return bytes(body + directory + end)


def _packed(entry: ZipEntry) -> bytes:
    if entry.packed is not None:
        return entry.packed
    if entry.method != DEFLATED:
        return entry.data
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    return deflate.compress(entry.data) + deflate.flush()


def _own_header(entry: ZipEntry, packed: bytes) -> bytes:
    name = entry.name if entry.own_name is None else entry.own_name
    method = entry.method if entry.own_method is None else entry.own_method
    sizes = (zlib.crc32(entry.data), len(packed), len(entry.data))
    flags = entry.flags
    if entry.has_descriptor:
        sizes, flags = (0, 0, 0), flags | 8
    fields = (b"PK\x03\x04", 20, flags, method, 0, 0x21, *sizes, len(name), 0)
    return struct.pack("<4s5H3L2H", *fields) + name


def _listed_header(entry: ZipEntry, packed: bytes, offset: int) -> bytes:
    def said(value: int | None, truth: int) -> int:
        return truth if value is None else value

    fields = (
        *(b"PK\x01\x02", 0x0314, 20, entry.flags, entry.method, 0, 0x21),
        said(entry.listed_crc32, zlib.crc32(entry.data)),
        said(entry.listed_compressed_bytes, len(packed)),
        said(entry.listed_size_bytes, len(entry.data)),
        *(len(entry.name), len(entry.extra), 0, 0, 0, entry.attributes, offset),
    )
    return struct.pack("<4s6H3L5H2L", *fields) + entry.name + entry.extra


def zip_of(files: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A good zip, except perhaps for its names."""
    return make_zip(ZipEntry(name=name, data=data) for name, data in files)


def tar_of(files: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A good pax tar, except perhaps for its names."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in files:
            member = tarfile.TarInfo("placeholder")
            member.pax_headers = {"path": name.decode("utf-8", "surrogateescape")}
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def tar_with(*members: tuple[str, bytes], **fields: object) -> bytes:
    """A tar of a good picture and members of these names and types."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        good = tarfile.TarInfo("good.png")
        good.size = len(GOOD)
        archive.addfile(good, io.BytesIO(GOOD))
        for name, kind in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            for field_name, value in fields.items():
                setattr(member, field_name, value)
            archive.addfile(member)
    return buffer.getvalue()


def tar_header(name: bytes, size: bytes, kind: bytes = b"0") -> bytes:
    """A header with the bytes of its size as they are given, and a right checksum."""
    block = bytearray(512)
    block[: len(name)] = name
    block[100:124] = b"0000644\0" + b"0000000\0" * 2
    block[124:136] = size.ljust(12, b"\0")
    block[136:148] = b"00000000000\0"
    block[148:156] = b" " * 8
    block[156:157] = kind
    block[257:265] = b"ustar\x0000"
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def tar_record(name: bytes, data: bytes, kind: bytes = b"0") -> bytes:
    """A header and its content."""
    return tar_header(name, b"%011o" % len(data), kind) + data + bytes(-len(data) % 512)


def pax_record(key: bytes, value: bytes) -> bytes:
    """A record of an extended header, with its length in front."""
    length = len(key) + len(value) + 3
    length += len(str(length + len(str(length))))
    return b"%d %s=%s\n" % (length, key, value)


TAR_END = bytes(1024)


def old_sparse_tar(num_blocks: int) -> bytes:
    """A sparse file of old GNU tar, whose map goes on in so many blocks, and a good picture after it."""
    header = bytearray(tar_header(b"sparse.png", b"%011o" % 512, b"S"))
    header[482] = 1
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    blocks = bytearray(512 * num_blocks)
    for index in range(num_blocks - 1):
        blocks[512 * index + 504] = 1
    return bytes(header + blocks) + b"x" * 512 + tar_record(b"good.png", GOOD) + TAR_END


def overlapping_zip(count: int) -> bytes:
    """Many entries that share the bytes of one, as the bombs of 2019 do."""
    data = random.Random(5).randbytes(1000)
    entries = [ZipEntry(name=b"a.png", data=data, own_name=b"a.png")]
    shared = [
        ZipEntry(
            name=b"a.png",
            own_name=b"a.png",
            listed_offset=0,
            listed_size_bytes=len(data),
            listed_compressed_bytes=len(data),
        )
        for _ in range(count)
    ]
    return make_zip([*entries, *shared])


def quoting_zip(count: int) -> bytes:
    """Each entry holds the headers of all that follow it, and the last its bytes."""
    data = random.Random(6).randbytes(1000)
    names = [b"quoted%04d.png" % index for index in range(count)]
    stride = 30 + len(names[0])
    entries = []
    for index, name in enumerate(names):
        size = (count - 1 - index) * stride + len(data)
        content = data if index == count - 1 else b""
        entries.append(
            ZipEntry(name=name, data=content, listed_size_bytes=size, listed_compressed_bytes=size)
        )
    return make_zip(entries)


def zip64_entry_at(offset: int) -> bytes:
    """An entry whose zip64 field says that it begins there."""
    extra = struct.pack("<2HQ", 1, 8, offset)
    return make_zip([ZipEntry(name=b"a.png", data=GOOD, listed_offset=0xFFFFFFFF, extra=extra)])


def zip64_with_two_ends(true_bytes: int) -> bytes:
    """The locator points to a zip64 end that lists nothing; the one before it lists so many bytes."""
    body = bytearray(b"PK\x03\x04" + bytes(26))
    decoy = len(body)
    body += struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 0, 0, 0, 0)
    start = len(body)
    listed = struct.pack("<4s6H3L5H2L", b"PK\x01\x02", *([0] * 16))
    count = true_bytes // len(listed)
    body += listed * count
    numbers = (44, 45, 45, 0, 0, count, count, count * len(listed), start)
    body += struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", *numbers)
    body += struct.pack("<4sLQL", b"PK\x06\x07", 0, decoy, 1)
    return bytes(body + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0, 0, 0, 0, 0))


def compressed(kind: str, data: bytes) -> bytes:
    """As gz, bz2 or xz."""
    pack = {"gz": lambda raw: gzip.compress(raw, mtime=0), "bz2": bz2.compress, "xz": lzma.compress}
    return pack[kind](data)
