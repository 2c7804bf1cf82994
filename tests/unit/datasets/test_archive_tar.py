"""Tars are walked within bounds, and compressed ones unpacked within them."""

import io
import lzma
import random
import tarfile
import tracemalloc
import zlib
from pathlib import Path

import pytest

from hostile_archives import (
    TAR_END,
    compressed,
    old_sparse_tar,
    pax_record,
    tar_header,
    tar_of,
    tar_record,
)
from sfumato_datasets.archive_tar import list_tar, spool_compressed
from sfumato_datasets.archives import (
    ArchiveInvalidError,
    ArchiveLimits,
    ArchiveTooLargeError,
    Member,
)
from sfumato_datasets.sources import FileKind

LIMITS = ArchiveLimits()
FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
FILES = {"a.txt": b"", "folder/b.txt": b"x" * 700, "folder/c.bin": bytes(range(256)) * 8}
NUM_ENTRIES = 20_000
MAX_BYTES_AN_ENTRY = 1000


@pytest.fixture
def listed(tmp_path: Path):
    """Lists a tar, whose file stays open until the test ends."""
    with (tmp_path / "archive.tar").open("w+b") as file:

        def list_bytes(data: bytes, limits: ArchiveLimits = LIMITS) -> list[Member]:
            file.seek(0)
            file.truncate()
            file.write(data)
            file.flush()
            return list(list_tar(file, limits))

        yield list_bytes


@pytest.fixture
def unpacked(tmp_path: Path):
    """What a compressed file unpacks to."""

    def unpack(kind: str, data: bytes, limits: ArchiveLimits = LIMITS) -> bytes:
        path = tmp_path / "packed"
        path.write_bytes(data)
        with (
            path.open("rb") as file,
            spool_compressed(file, kind, tmp_path, limits, lambda: False) as spool,
        ):
            spool.seek(0)
            return spool.read()

    return unpack


def contents(members: list[Member]) -> dict[str, bytes]:
    return {member.path: member.read(1 << 20) for member in members}


@pytest.mark.parametrize("format", FORMATS)
def test_what_tarfile_writes_is_read(listed, format: int) -> None:
    files = {**FILES, "deep/" * 40 + "long.txt": b"deep"} if format else FILES
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    assert contents(listed(buffer.getvalue())) == files


@pytest.mark.parametrize("name", ["../a", "/a", "a\0b", "ä", "\udcff", "x" * 5000])
def test_a_pax_path_replaces_the_name_whatever_it_is(listed, name: str) -> None:
    data = tar_of([(name.encode("utf-8", "surrogateescape"), b"x")])
    assert contents(listed(data)) == {name: b"x"}


def test_an_extended_header_speaks_of_the_next_entry_alone(listed) -> None:
    renamed = tar_record(b"x", pax_record(b"path", b"new"), b"x") + tar_record(b"old", b"1")
    assert contents(listed(renamed + tar_record(b"other", b"2") + TAR_END)) == {
        "new": b"1",
        "other": b"2",
    }


def test_a_pax_size_says_where_the_next_header_is(listed) -> None:
    size = tar_record(b"x", pax_record(b"size", b"600"), b"x")
    header = tar_header(b"a", b"00000000001\0")
    data = size + header + b"y" * 600 + bytes(424) + tar_record(b"b", b"2") + TAR_END
    assert contents(listed(data)) == {"a": b"y" * 600, "b": b"2"}


@pytest.mark.parametrize("size", [b"-1", b"+1", b"1e3", b" 1", b"9" * 30, "١".encode(), b""])
def test_a_pax_size_that_is_none_is_refused(listed, size: bytes) -> None:
    header = tar_record(b"x", pax_record(b"size", size), b"x")
    with pytest.raises(ArchiveInvalidError):
        listed(header + tar_record(b"a", b"1") + TAR_END)


@pytest.mark.parametrize(
    "records", [b"0 a=b\n", b"x", b"99 a=b\n", b"5 a=b\n", b"-6 a=b\n", b"6 ab\n\n", b"7 a=b\0\0"]
)
def test_damaged_records_are_refused(listed, records: bytes) -> None:
    with pytest.raises(ArchiveInvalidError):
        listed(tar_record(b"x", records, b"x") + tar_record(b"a", b"1") + TAR_END)


@pytest.mark.parametrize("size", [b"\xff" * 12, b"\x80" + b"\xff" * 11, b"77777777777\0", b"9"])
def test_sizes_that_no_file_has_are_refused(listed, size: bytes) -> None:
    with pytest.raises(ArchiveInvalidError):
        listed(tar_record(b"a", b"1") + tar_header(b"b", size) + TAR_END)


@pytest.mark.parametrize("num_blocks", [1, 2, 5])
def test_the_map_of_a_sparse_file_is_passed_over(listed, num_blocks: int) -> None:
    members = listed(old_sparse_tar(num_blocks))
    assert [(member.path, member.kind) for member in members] == [
        ("sparse.png", FileKind.OTHER),
        ("good.png", FileKind.FILE),
    ]
    assert members[1].read(8) == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("key", [b"GNU.sparse.major", b"GNU.sparse.map", b"GNU.sparse.name"])
def test_a_sparse_file_of_newer_gnu_tar_is_no_file(listed, key: bytes) -> None:
    header = tar_record(b"x", pax_record(key, b"1"), b"x")
    members = listed(header + tar_record(b"a", b"1") + tar_record(b"b", b"2") + TAR_END)
    assert [member.kind for member in members] == [FileKind.OTHER, FileKind.FILE]


@pytest.mark.parametrize("kind", [b"1", b"2", b"3", b"4", b"6", b"V", b"M", b"Z"])
def test_what_is_no_regular_file_is_none(listed, kind: bytes) -> None:
    (member,) = listed(tar_header(b"a", b"0", kind) + TAR_END)
    assert member.kind is FileKind.OTHER


def test_a_link_has_no_content_whatever_size_it_says(listed) -> None:
    link = tar_header(b"a", b"00000001000\0", b"2")
    assert [m.path for m in listed(link + tar_record(b"b", b"1") + TAR_END)] == ["a", "b"]


def test_every_cut_of_a_tar_is_refused(listed) -> None:
    data = tar_record(b"a", b"one") + tar_record(b"b", b"two") + TAR_END
    assert len(listed(data[: 2048 + 512])) == 2  # one block of the end is enough
    for length in range(0, 2049, 64):
        with pytest.raises(ArchiveInvalidError):
            listed(data[:length])


def test_the_bounds_hold_to_the_last_entry(listed) -> None:
    limits = ArchiveLimits(max_entries=3, max_header_bytes=600, max_directory_bytes=1000)
    headers = tar_header(b"a", b"0")
    assert len(listed(headers * 15 + TAR_END, limits)) == 15  # list_tar bounds headers alone
    with pytest.raises(ArchiveTooLargeError, match="entries"):
        listed(headers * 16 + TAR_END, limits)
    small = tar_record(b"x", pax_record(b"comment", b"y" * 400), b"x")
    assert len(listed(small * 2 + headers + TAR_END, limits)) == 1
    with pytest.raises(ArchiveTooLargeError, match="extended"):
        listed(small * 3 + headers + TAR_END, limits)
    with pytest.raises(ArchiveInvalidError, match="too large"):
        listed(tar_record(b"x", pax_record(b"c", b"y" * 600), b"x") + headers + TAR_END, limits)


def test_a_long_list_takes_bounded_memory(listed) -> None:
    data = b"".join(tar_header(b"picture_%06d.png" % index, b"0") for index in range(NUM_ENTRIES))
    tracemalloc.start()
    try:
        members = listed(data + TAR_END)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(members) == NUM_ENTRIES
    assert peak - len(data) < MAX_BYTES_AN_ENTRY * NUM_ENTRIES


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_compressed_data_is_unpacked_or_refused(unpacked, kind: str) -> None:
    data = bytes(range(256)) * 2000
    packed = compressed(kind, data)
    assert unpacked(kind, packed) == data
    assert unpacked(kind, packed * 2) == data * 2
    for length in (1, 10, len(packed) // 2, len(packed) - 1):
        with pytest.raises(ArchiveInvalidError):
            unpacked(kind, packed[:length])
    with pytest.raises(ArchiveTooLargeError):
        unpacked(kind, packed, ArchiveLimits(max_bytes=len(data) - 1))
    with pytest.raises(ArchiveTooLargeError):
        unpacked(kind, compressed(kind, bytes(4 << 20)))


def test_xz_is_padded_only_with_zeros(unpacked) -> None:
    packed = lzma.compress(b"one")
    assert unpacked("xz", packed + bytes(8) + packed + bytes(4)) == b"oneone"
    with pytest.raises(ArchiveInvalidError):
        unpacked("xz", packed + b"garbage")


def test_no_more_memory_is_given_to_xz_than_the_strongest_preset_needs(unpacked) -> None:
    strongest = lzma.compress(b"x" * 1000, preset=9 | lzma.PRESET_EXTREME)
    assert unpacked("xz", strongest) == b"x" * 1000
    greedy = lzma.LZMACompressor(
        filters=[{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 4096}],
    )
    packed = bytearray(greedy.compress(b"x" * 1000) + greedy.flush())
    packed[16] = 37  # 1.5 GiB, as the format writes sizes of dictionaries
    packed[20:24] = zlib.crc32(packed[12:20]).to_bytes(4, "little")
    with pytest.raises(ArchiveInvalidError):
        unpacked("xz", bytes(packed))


def test_unpacking_ends_when_it_is_cancelled(tmp_path: Path) -> None:
    path = tmp_path / "packed"
    path.write_bytes(compressed("gz", random.Random(1).randbytes(5 << 20)))
    asked = iter([False, False, True])
    with (
        path.open("rb") as file,
        spool_compressed(file, "gz", tmp_path, LIMITS, lambda: next(asked)) as spool,
    ):
        assert 0 < spool.seek(0, io.SEEK_END) <= 2 << 20
