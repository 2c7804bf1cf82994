"""Cases of hostile archives and metadata files, each with its answer."""

from __future__ import annotations

import gzip
import json
import lzma
import random
import tarfile
import zlib
from dataclasses import dataclass

from hostile_archives import (
    DEFLATED,
    GOOD,
    OTHER,
    TAR_END,
    ArchiveCase,
    ZipEntry,
    compressed,
    make_zip,
    old_sparse_tar,
    overlapping_zip,
    pax_record,
    quoting_zip,
    tar_header,
    tar_of,
    tar_record,
    tar_with,
    zip64_entry_at,
    zip64_with_two_ends,
    zip_of,
)
from pictures import picture

INVALID, TOO_LARGE, EMPTY = "ARCHIVE_INVALID", "ARCHIVE_TOO_LARGE", "DATASET_EMPTY"
UNREADABLE = "FILE_UNREADABLE"
FILES = [(b"good.png", GOOD), (b"other.png", OTHER)]
_ENTRY = ZipEntry(name=b"good.png", data=GOOD)


def _with(**fields: object) -> bytes:
    """A zip of a good entry and one that has these fields."""
    values = {"name": b"bad.png", "data": OTHER, **fields}
    return make_zip([_ENTRY, ZipEntry(**values)])  # type: ignore[arg-type]


def _zips() -> list[ArchiveCase]:
    noise = random.Random(1).randbytes(1 << 20)
    long_list = make_zip(ZipEntry(name=b"%d" % index) for index in range(100_001))
    bad = {"bad.png": UNREADABLE}
    refused = {
        "encrypted": (_with(flags=0x0801), INVALID),
        "strongly encrypted": (_with(flags=0x0840), INVALID),
        "cut short": (zip_of(FILES)[:-30], INVALID),
        "only its start": (zip_of(FILES)[:40], INVALID),
        "prefix": (b"#!/bin/sh\nexit\n" + zip_of(FILES), INVALID),
        "list cut by a byte": (_without_a_byte(zip_of(FILES)), INVALID),
        "bomb by ratio": (_with(data=bytes(8 << 20), method=DEFLATED), TOO_LARGE),
        "says that it expands to 4 GiB": (_with(listed_size_bytes=0xFFFFFFFE), TOO_LARGE),
        "100,001 entries": (long_list, TOO_LARGE),
        "100,001 entries that say they are one": (
            make_zip((ZipEntry(name=b"%d" % index) for index in range(100_001)), count=1),
            TOO_LARGE,
        ),
        "entries share bytes": (overlapping_zip(500), INVALID),
        "entries quote each other": (quoting_zip(100), INVALID),
        "entry at 2^64 - 1": (zip64_entry_at(2**64 - 1), INVALID),
        "entry at 2^63": (zip64_entry_at(2**63), INVALID),
        "zip64 field without number": (_with(listed_offset=0xFFFFFFFF), INVALID),
        "two zip64 ends": (zip64_with_two_ends(8 << 20), TOO_LARGE),
        "list longer than the file": (_end_says(zip_of(FILES), 12, 0xFFFFFF), INVALID),
        "list that starts beyond the end": (_end_says(zip_of(FILES), 16, 0xFFFFFF), INVALID),
        "nothing in it": (make_zip([]), EMPTY),
    }
    taken = {
        "symbolic link": (_with(data=b"/etc/passwd", attributes=0o120777 << 16), bad),
        "device": (_with(attributes=0o060644 << 16), bad),
        "unknown compression": (_with(method=93), bad),
        "lzma, which is not read": (_with(method=14), bad),
        "checksum is wrong": (_with(listed_crc32=1), bad),
        "size is too small": (_with(listed_size_bytes=20), bad),
        "size is too large": (_with(method=DEFLATED, listed_size_bytes=9999), bad),
        "stored, but of two sizes": (_with(listed_size_bytes=len(OTHER) + 1), bad),
        "own header of another name": (_with(own_name=b"xyz.png"), bad),
        "own header of another compression": (_with(own_method=DEFLATED), bad),
        "no deflate": (_with(data=b"\xff" * 200, packed=b"\xff" * 150, method=DEFLATED), bad),
        "given twice": (_twice(), {"twice.png": "NAME_DUPLICATE"}),
        "zip64 count lies": (make_zip([_ENTRY], zip64_count=2**40), {}),
        "count lies": (make_zip([_ENTRY], count=77), {}),
        "garbage after the end": (zip_of(FILES) + noise[:5000], {}),
        "sizes after the data": (_with(has_descriptor=True, method=DEFLATED), {}),
        "bomb in an inner zip": (
            _with(name=b"inner.zip", data=_with(data=bytes(8 << 20), method=DEFLATED)),
            {"inner.zip": "FILE_IGNORED"},
        ),
    }
    return [
        *(ArchiveCase(name=f"zip: {n}", data=d, failure=f) for n, (d, f) in refused.items()),
        *(ArchiveCase(name=f"zip: {n}", data=d, notes=f) for n, (d, f) in taken.items()),
    ]


def _twice() -> bytes:
    entries = [ZipEntry(name=b"twice.png", data=picture(index)) for index in (3, 4)]
    return make_zip([_ENTRY, *entries])


def _without_a_byte(data: bytes) -> bytes:
    at = data.index(b"PK\x01\x02")
    return data[: at + 50] + data[at + 51 :]


def _end_says(data: bytes, at: int, value: int) -> bytes:
    end = len(data) - 22
    return data[: end + at] + value.to_bytes(4, "little") + data[end + at + 4 :]


def _refused_tars() -> list[ArchiveCase]:
    whole, good = tar_of(FILES), tar_record(b"good.png", GOOD)
    noise = random.Random(2).randbytes(2000)
    long_name = tar_record(b"././@LongLink", b"x" * 65537, b"L")
    records = tar_record(b"x", pax_record(b"size", b"-1000"), b"x")
    wide = tar_record(b"x", pax_record(b"size", b"9" * 19), b"x")
    refused = {
        "cut short in a file": (whole[: len(whole) - 1024 - 9000], INVALID),
        "cut short before its end": (good, INVALID),
        "cut short in a header": (good + tar_header(b"b.png", b"1")[:300], INVALID),
        "checksum is wrong": (good + bytes(range(256)) * 2, INVALID),
        "no tar": (noise, INVALID),
        "empty": (b"", INVALID),
        "negative size": (good + tar_header(b"b.png", b"\xff" * 12) + TAR_END, INVALID),
        "size of 2^88": (good + tar_header(b"b.png", b"\x80" + b"\xff" * 11) + TAR_END, INVALID),
        "pax size is negative": (records + good + TAR_END, INVALID),
        "pax size is too large": (wide + good + TAR_END, INVALID),
        "pax record of length 0": (tar_record(b"x", b"0 a=b\n", b"x") + good + TAR_END, INVALID),
        "pax record beyond its header": (
            tar_record(b"x", b"99 a=b\n", b"x") + good + TAR_END,
            INVALID,
        ),
        "name of 64 KiB": (long_name + good + TAR_END, INVALID),
        "100,001 entries": (tar_header(b"a.dat", b"0") * 100_001 + TAR_END, TOO_LARGE),
    }
    return [ArchiveCase(name=f"tar: {n}", data=d, failure=f) for n, (d, f) in refused.items()]


def _refused_compressed_tars() -> list[ArchiveCase]:
    whole, good = tar_of(FILES), tar_record(b"good.png", GOOD)
    noise = random.Random(2).randbytes(2000)
    refused = {
        "tar.gz cut short": (compressed("gz", whole)[:-20], INVALID),
        "tar.bz2 cut short": (compressed("bz2", whole)[:-20], INVALID),
        "tar.xz cut short": (compressed("xz", whole)[:-20], INVALID),
        "tar.gz damaged": (_flipped(compressed("gz", whole)), INVALID),
        "tar.xz damaged": (_flipped(compressed("xz", whole)), INVALID),
        "tar.xz that wants a gigabyte": (_hungry_xz(whole), INVALID),
        "tar.gz of no tar": (compressed("gz", noise), INVALID),
        "tar.gz with garbage behind": (compressed("gz", whole) + b"garbage", INVALID),
        "gz of zeros": (compressed("gz", bytes(64 << 20)), TOO_LARGE),
        "bz2 of zeros": (compressed("bz2", bytes(32 << 20)), TOO_LARGE),
        "xz of zeros": (compressed("xz", bytes(32 << 20)), TOO_LARGE),
        "gz of gz of zeros": (gzip.compress(compressed("gz", bytes(32 << 20))), INVALID),
        "gz of a tar of zeros": (
            compressed("gz", good + tar_record(b"a.png", bytes(16 << 20)) + TAR_END),
            TOO_LARGE,
        ),
    }
    return [ArchiveCase(name=f"tar: {n}", data=d, failure=f) for n, (d, f) in refused.items()]


def _taken_tars() -> list[ArchiveCase]:
    whole, good = tar_of(FILES), tar_record(b"good.png", GOOD)
    pax = pax_record(b"path", b"../../etc/cron.d/x.png")
    unreadable = {"bad.png": UNREADABLE}
    path = "../../etc/cron.d/x.png"
    taken = {
        "symbolic link": (tar_with(("bad.png", tarfile.SYMTYPE), linkname="/etc/passwd"), unreadable),
        "hard link": (tar_with(("bad.png", tarfile.LNKTYPE), linkname="good.png"), unreadable),
        "FIFO": (tar_with(("bad.png", tarfile.FIFOTYPE)), unreadable),
        "character device": (tar_with(("bad.png", tarfile.CHRTYPE)), unreadable),
        "block device": (tar_with(("bad.png", tarfile.BLKTYPE)), unreadable),
        "unknown type": (tar_with(("bad.png", b"Z")), unreadable),
        "pax path that leads up": (
            tar_record(b"x", pax, b"x") + tar_record(b"in.png", OTHER) + good + TAR_END,
            {path: "NAME_UNSAFE"},
        ),
        "GNU long name that leads up": (
            tar_record(b"././@LongLink", path.encode() + b"\0", b"L")
            + tar_record(b"in.png", OTHER) + good + TAR_END,
            {path: "NAME_UNSAFE"},
        ),
        "sparse by pax": (
            tar_record(b"x", pax_record(b"GNU.sparse.major", b"1"), b"x")
            + tar_record(b"bad.png", OTHER) + good + TAR_END,
            unreadable,
        ),
        "sparse of old GNU tar": (old_sparse_tar(2), {"sparse.png": UNREADABLE}),
        "global header says a path": (tar_record(b"g", pax, b"g") + good + TAR_END, {}),
        "two streams of xz": (lzma.compress(whole[:2048]) + lzma.compress(whole[2048:]), {}),
        "two members of gz": (gzip.compress(whole[:2048]) + gzip.compress(whole[2048:]), {}),
        "plain": (whole, {}),
        "bz2": (compressed("bz2", whole), {}),
    }  # fmt: skip
    return [ArchiveCase(name=f"tar: {n}", data=d, notes=f) for n, (d, f) in taken.items()]


def _flipped(data: bytes) -> bytes:
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]


def _hungry_xz(data: bytes) -> bytes:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 4096}]
    packed = bytearray(lzma.compress(data, filters=filters, check=lzma.CHECK_NONE))
    # The block header follows 12 bytes: size, flags, filter id, size of properties, dictionary size.
    packed[12 + 4] = 37  # 1.5 GiB
    packed[20:24] = zlib.crc32(packed[12:20]).to_bytes(4, "little")
    return bytes(packed)


def archive_cases() -> list[ArchiveCase]:
    """Every case."""
    return [*_zips(), *_refused_tars(), *_refused_compressed_tars(), *_taken_tars()]


@dataclass(frozen=True, kw_only=True)
class MetadataCase:
    """A metadata file beside `good.png`: the reason of its note, and whether the import fails."""

    name: str
    file_name: str
    data: bytes
    reason: str = ""
    fails: bool = True


def metadata_cases() -> list[MetadataCase]:
    """Every case."""
    row = b'{"file_name": "good.png", "text": "a dog"}\n'
    invalid = "CAPTION_METADATA_INVALID"
    lines = {
        "no JSON": (row + b'{"file_name": \n', invalid),
        "no object": (b"[1, 2]\n", invalid),
        "nested 100,000 deep": (b'{"x": ' + b"[" * 100_000 + b"\n", invalid),
        "nested deep and closed": (b'{"x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}\n", invalid),
        "caption is 1e309": (b'{"file_name": "good.png", "text": 1e309}\n', invalid),
        "caption is an object": (b'{"file_name": "good.png", "text": {"a": 1}}\n', invalid),
        "number of 5,000 digits": (
            b'{"file_name": "good.png", "x": ' + b"9" * 5000 + b"}",
            invalid,
        ),
        "without a file name": (b'{"text": "a dog"}\n', invalid),
        "file name is a number": (b'{"file_name": 7, "text": "a dog"}\n', invalid),
        "line of 2 MiB": (row + b'{"file_name": "' + b"x" * (2 << 20) + b'"}\n', invalid),
        "a million lists": (b'{"file_name": "a", "x": [' + b"[]," * 1_000_000 + b"0]}", invalid),
        "a million rows and one": (
            b"".join(b'{"file":"%d"}\n' % index for index in range(1_000_001)),
            invalid,
        ),
        "file of 65 MiB": (b"\n" * (65 << 20), "FILE_TOO_LARGE"),
        "NUL": (row + b"\0", "CAPTION_ENCODING"),
        "escaped NUL": (b'{"file_name": "good.png", "text": "a\\u0000b"}', "CAPTION_ENCODING"),
        "half a pair": (b'{"file_name": "good.png", "text": "\\ud800"}', "CAPTION_ENCODING"),
        "UTF-16": (row.decode().encode("utf-16"), "CAPTION_ENCODING"),
        "Windows-1252": ('{"file_name": "ä"}'.encode("cp1252"), "CAPTION_ENCODING"),
    }
    tables = {
        "bad quoting": (b'file_name,text\n"good.png"x,"a\n', invalid),
        "open quote": (b'file_name,text\ngood.png,"a dog\n', invalid),
        "no head": (b"good.png,a dog\n1.png,b\n", invalid),
        "column twice": (b"file_name,text,text\ngood.png,a,b\n", invalid),
        "too many columns": (b"file_name,text\ngood.png,a,b,c\n", invalid),
        "NUL": (b"file_name,text\ngood.png,a\0b\n", "CAPTION_ENCODING"),
        "field of 200,000 characters": (b"file_name,text\ngood.png," + b"x" * 200_000, invalid),
    }
    escape = {"file_name": "../../etc/passwd", "text": "a"}
    control = {"file_name": "\u202e\x1b[2J\ud800", "text": "a"}
    remarks = {
        "path that leads up": (json.dumps(escape).encode(), "METADATA_WITHOUT_IMAGE"),
        "file name of controls": (json.dumps(control).encode(), "METADATA_WITHOUT_IMAGE"),
        "no captions": (b'{"file_name": "good.png"}\n', "METADATA_IGNORED"),
        "tags are no list": (row[:-2] + b', "tags": {"a": 1}}\n', "TAGS_IGNORED"),
        "keys twice, of which the last counts": (b'{"text": 7, ' + row[1:], ""),
        "other numbers are infinite": (row[:-2] + b', "x": 1e309, "y": NaN}\n', ""),
        "a file twice": (row * 2, ""),
        "mark and Windows lines": (b"\xef\xbb\xbf" + row.replace(b"\n", b"\r\n"), ""),
    }
    return [
        *(_metadata("metadata.jsonl", *case, fails=True) for case in lines.items()),
        *(_metadata("metadata.csv", *case, fails=True) for case in tables.items()),
        *(_metadata("metadata.jsonl", *case, fails=False) for case in remarks.items()),
        *(_metadata("captions.jsonl", *case, fails=True) for case in list(lines.items())[:1]),
    ]


def _metadata(file_name: str, name: str, answer: tuple[bytes, str], *, fails: bool) -> MetadataCase:
    data, reason = answer
    return MetadataCase(
        name=f"{file_name}: {name}", file_name=file_name, data=data, reason=reason, fails=fails
    )
