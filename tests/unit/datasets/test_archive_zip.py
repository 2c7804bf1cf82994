"""Zips are listed within bounds and read where they lie."""

import io
import struct
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from hostile_archives import (
    DEFLATED,
    ZipEntry,
    make_zip,
    overlapping_zip,
    quoting_zip,
    zip64_entry_at,
    zip64_with_two_ends,
    zip_of,
)
from sfumato_datasets.archive_zip import list_zip
from sfumato_datasets.archives import (
    ArchiveInvalidError,
    ArchiveLimits,
    ArchiveTooLargeError,
    Member,
)
from sfumato_datasets.sources import FileKind, FileUnreadableError

LIMITS = ArchiveLimits()
NUM_ENTRIES = 20_000
MAX_BYTES_AN_ENTRY = 1000


@pytest.fixture
def listed(tmp_path: Path):
    """Lists a zip, whose file stays open until the test ends."""
    with (tmp_path / "archive.zip").open("w+b") as file:

        def list_bytes(data: bytes, limits: ArchiveLimits = LIMITS) -> list[Member]:
            file.seek(0)
            file.truncate()
            file.write(data)
            file.flush()
            return list(list_zip(file, limits))

        yield list_bytes


def contents(members: list[Member]) -> dict[str, bytes]:
    return {member.path: member.read(1 << 20) for member in members}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_what_zipfile_writes_is_read(listed, method: int) -> None:
    files = {"a.txt": b"", "folder/ä.txt": b"x" * 5000, "日本.bin": bytes(range(256)) * 40}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression=method) as archive:
        archive.mkdir("folder")
        for name, data in files.items():
            archive.writestr(name, data)
    assert contents(listed(buffer.getvalue())) == files


def test_a_zip_written_to_a_pipe_is_read(listed) -> None:
    class Pipe(io.RawIOBase):
        def __init__(self) -> None:
            self.parts: list[bytes] = []

        def writable(self) -> bool:
            return True

        def write(self, data: bytes) -> int:
            self.parts.append(bytes(data))
            return len(data)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", compression=zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", b"hello" * 100)
        with archive.open("large.txt", "w", force_zip64=True) as entry:
            entry.write(b"there" * 100)
    assert contents(listed(b"".join(pipe.parts))) == {
        "a.txt": b"hello" * 100,
        "large.txt": b"there" * 100,
    }


def test_offsets_count_from_where_the_archive_begins(listed) -> None:
    assert contents(listed(b"before" + zip_of([(b"a", b"one")]))) == {"a": b"one"}


def test_only_as_much_is_read_as_is_wanted(listed) -> None:
    for method in (0, DEFLATED):
        data = make_zip([ZipEntry(name=b"a", data=bytes(range(250)) * 4, method=method)])
        (member,) = listed(data)
        assert member.read(10) == bytes(range(10))
        assert len(member.read(1000)) == len(member.read(1001)) == 1000


@pytest.mark.parametrize("name", [b"", b"\0a.png", b"../a", b"\xff"])
def test_a_name_is_kept_whatever_it_is(listed, name: bytes) -> None:
    (member,) = listed(zip_of([(name, b"x")]))
    assert member.path == name.decode("utf-8", "surrogateescape")[: len(name)]
    assert member.read(5) == b"x"


def test_an_old_name_is_in_the_code_page_of_the_format(listed) -> None:
    (member,) = listed(make_zip([ZipEntry(name=b"\x84.txt", data=b"x", flags=0)]))
    assert member.path == "ä.txt"


def test_links_and_devices_are_no_files(listed) -> None:
    modes = {0o120777: FileKind.OTHER, 0o060600: FileKind.OTHER, 0o100600: FileKind.FILE}
    entries = [ZipEntry(name=b"%o" % mode, attributes=mode << 16) for mode in modes]
    assert [member.kind for member in listed(make_zip(entries))] == list(modes.values())


@pytest.mark.parametrize("data", [overlapping_zip(2), overlapping_zip(300), quoting_zip(40)])
def test_entries_that_share_bytes_are_refused(listed, data: bytes) -> None:
    with pytest.raises(ArchiveInvalidError, match="overlap"):
        listed(data)


def test_an_entry_that_reaches_into_the_list_is_refused(listed) -> None:
    data = make_zip([ZipEntry(name=b"a", data=b"x" * 50, listed_compressed_bytes=51)])
    with pytest.raises(ArchiveInvalidError, match="overlap"):
        listed(data)


@pytest.mark.parametrize("offset", [2**32, 2**63 - 1, 2**63, 2**64 - 1])
def test_offsets_beyond_the_file_are_refused(listed, offset: int) -> None:
    with pytest.raises(ArchiveInvalidError):
        listed(zip64_entry_at(offset))


@pytest.mark.parametrize(
    "fields",
    [
        {"own_name": b"b.png"},
        {"own_name": b"longer.png"},
        {"own_method": DEFLATED},
        {"listed_crc32": 7},
        {"listed_size_bytes": 3},
        {"listed_size_bytes": 50},
        {"listed_compressed_bytes": 5},
        {"method": DEFLATED, "packed": b"\xff" * 20},
        {"method": DEFLATED, "listed_compressed_bytes": 3},
        {"method": DEFLATED, "listed_size_bytes": 9},
        {"method": DEFLATED, "listed_size_bytes": 11},
        {"method": 12},
    ],
)
def test_one_damaged_entry_spoils_only_itself(listed, fields: dict[str, object]) -> None:
    bad = ZipEntry(**{"name": b"a.png", "data": b"0123456789", **fields})
    members = listed(make_zip([bad, ZipEntry(name=b"good.png", data=b"good")]))
    with pytest.raises(FileUnreadableError):
        members[0].read(1 << 20)
    assert members[1].read(100) == b"good"


@pytest.mark.parametrize("flag", [0x0001, 0x0040, 0x2000])
def test_an_encrypted_zip_is_refused(listed, flag: int) -> None:
    with pytest.raises(ArchiveInvalidError, match="encrypted"):
        listed(make_zip([ZipEntry(name=b"a", data=b"x", flags=flag)]))


def test_the_bounds_hold_to_the_last_entry_and_byte(listed) -> None:
    limits = ArchiveLimits(max_entries=3, max_bytes=300, free_bytes=100)
    three = [ZipEntry(name=b"%d" % index, data=b"x" * 100) for index in range(3)]
    assert len(listed(make_zip(three), limits)) == 3
    for extra in (ZipEntry(name=b"more"), ZipEntry(name=b"folder/")):
        with pytest.raises(ArchiveTooLargeError, match="entries"):
            listed(make_zip([*three, extra], count=1), limits)
    with pytest.raises(ArchiveTooLargeError, match="300 bytes"):
        listed(make_zip([*three[:2], ZipEntry(name=b"a", data=b"x" * 101)]), limits)
    bomb = ZipEntry(name=b"a", data=bytes(20_000), method=DEFLATED)
    with pytest.raises(ArchiveTooLargeError, match="times"):
        listed(make_zip([bomb]), ArchiveLimits(free_bytes=100))


def test_the_list_that_counts_is_the_one_that_is_read(listed) -> None:
    with pytest.raises(ArchiveTooLargeError, match="entries"):
        listed(zip64_with_two_ends(8 << 20))
    with pytest.raises(ArchiveTooLargeError, match="entries"):
        listed(zip64_with_two_ends(1 << 20), ArchiveLimits(max_directory_bytes=1 << 19))


def test_every_cut_of_a_zip_is_refused(listed) -> None:
    data = zip_of([(b"a", b"one"), (b"b", b"two")])
    for length in range(len(data)):
        with pytest.raises(ArchiveInvalidError):
            listed(data[:length])


def test_a_long_list_takes_bounded_memory(listed) -> None:
    data = make_zip(
        ZipEntry(name=b"folder/picture_%06d.png" % index, data=b"x") for index in range(NUM_ENTRIES)
    )
    tracemalloc.start()
    try:
        members = listed(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(members) == NUM_ENTRIES
    assert peak < MAX_BYTES_AN_ENTRY * NUM_ENTRIES
    assert members[-1].read(9) == b"x"


def test_zip64_fields_are_read_in_their_order(listed) -> None:
    extra = struct.pack("<2H", 0x5455, 1) + b"t" + struct.pack("<2H3Q", 1, 24, 3, 3, 0)
    wide = 0xFFFFFFFF
    entry = ZipEntry(
        name=b"a",
        data=b"one",
        extra=extra,
        listed_size_bytes=wide,
        listed_compressed_bytes=wide,
        listed_offset=wide,
    )
    assert contents(listed(make_zip([entry], zip64_count=1))) == {"a": b"one"}
