"""Archives of every kind, as one flat set of files."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from hostile_archives import (
    TAR_END,
    ZipEntry,
    compressed,
    make_zip,
    tar_of,
    tar_record,
    zip_of,
)
from sfumato_datasets.archive_files import (
    DEFAULT_LIMITS,
    ArchiveFiles,
    open_archives,
    safe_parts,
)
from sfumato_datasets.archives import ArchiveInvalidError, ArchiveLimits, ArchiveTooLargeError
from sfumato_datasets.sources import FileKind, FileTooLargeError

A, B = (b"set/a.png", b"one"), (b"set/b.png", b"two")


@contextmanager
def opened(
    folder: Path, archives: Mapping[str, bytes], limits: ArchiveLimits = DEFAULT_LIMITS
) -> Iterator[ArchiveFiles]:
    paths = []
    for index, (name, data) in enumerate(archives.items()):
        paths.append((name, folder / f"{index}"))
        paths[-1][1].write_bytes(data)
    with open_archives(paths, spool_folder=folder, cancelled=lambda: False, limits=limits) as files:
        yield files


def names(files: ArchiveFiles, kind: FileKind = FileKind.FILE) -> list[str]:
    return [entry.name for entry in files.entries() if entry.kind is kind]


@pytest.mark.parametrize("kind", ["zip", "tar", "gz", "bz2", "xz"])
def test_the_kind_is_found_by_content(tmp_path: Path, kind: str) -> None:
    tar = tar_of([A, B])
    data = {"zip": zip_of([A, B]), "tar": tar}.get(kind) or compressed(kind, tar)
    with opened(tmp_path, {"anything.dat": data}) as files:
        assert names(files) == ["a.png", "b.png"]
        assert files.read("a.png", 3) == b"one"
        with pytest.raises(FileTooLargeError):
            files.read("a.png", 2)
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


def test_folders_below_the_common_one_are_part_of_the_name(tmp_path: Path) -> None:
    files = [(b"top/x/a.png", b"1"), (b"top/b.png", b"2"), (b"./top/x/y/c.png", b"3")]
    with opened(tmp_path, {"a.zip": zip_of(files)}) as found:
        assert names(found) == ["x__a.png", "b.png", "x__y__c.png"]


def test_two_paths_of_one_name_are_both_told(tmp_path: Path) -> None:
    files = [(b"x/a.png", b"1"), (b"x__a.png", b"2"), (b"b.png", b"3")]
    with opened(tmp_path, {"a.zip": zip_of(files)}) as found:
        assert names(found) == ["x__a.png", "x__a.png", "b.png"]


def test_what_systems_leave_behind_is_nobodys_picture(tmp_path: Path) -> None:
    left = [b"__MACOSX/._a.png", b"x/.DS_Store", b"Thumbs.db", b".git/config"]
    with opened(tmp_path, {"a.zip": zip_of([A, *((name, b"") for name in left)])}) as found:
        assert names(found) == ["a.png"]
        assert names(found, FileKind.SYSTEM) == ["__MACOSX", ".DS_Store", "Thumbs.db", ".git"]


@pytest.mark.parametrize(
    "path",
    ["../a", "a/../b", "/a", "//a/b", "a//b", "a/./b", "..", ".", "", "C:/a", "C:a", "a\\b", "a\0b",
     "..\\.x", "../.x", "./../a", "/.x", "__MACOSX/../a"],
)  # fmt: skip
def test_a_path_that_leads_elsewhere_stays_what_it_is(tmp_path: Path, path: str) -> None:
    assert safe_parts(path) is None
    with opened(tmp_path, {"a.tar": tar_of([A, (path.encode(), b"x")])}) as found:
        assert path in names(found)
        assert not names(found, FileKind.SYSTEM)


def test_json_beside_an_image_is_its_sidecar_in_a_tar_alone(tmp_path: Path) -> None:
    files = [A, (b"set/a.json", b"{}")]
    for data, expected in ((tar_of(files), True), (zip_of(files), False)):
        with opened(tmp_path, {"a": data}) as found:
            assert {entry.name: entry.is_sidecar for entry in found.entries()} == {
                "a.png": False,
                "a.json": expected,
            }


def test_several_archives_are_one_set_within_one_bound(tmp_path: Path) -> None:
    archives = {"1.tar": tar_of([A]), "2.zip": zip_of([B])}
    with opened(tmp_path, archives) as found:
        assert names(found) == ["a.png", "b.png"]
        assert found.read("b.png", 10) == b"two"
    with (
        pytest.raises(ArchiveTooLargeError, match=r"^2\.zip: more than 1 entries$"),
        opened(tmp_path, archives, ArchiveLimits(max_entries=1)),
    ):
        raise AssertionError("opened")


@pytest.mark.parametrize(
    "data",
    [b"", b"x", b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b", b"BZh9", b"\xfd7zXZ\0", b"\0" * 2048],
)
def test_the_message_names_the_archive_and_no_path(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ArchiveInvalidError) as refusal, opened(tmp_path, {"my\n.zip": data}):
        raise AssertionError("opened")
    assert str(refusal.value).startswith("my\\n.zip: ")
    assert str(tmp_path) not in str(refusal.value)
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


def test_bytes_that_are_gone_are_told(tmp_path: Path) -> None:
    with (
        pytest.raises(ArchiveInvalidError, match=r"^a\.zip: its bytes are gone$"),
        open_archives(
            [("a.zip", tmp_path / "absent")], spool_folder=tmp_path, cancelled=lambda: False
        ),
    ):
        raise AssertionError("opened")


def test_a_link_keeps_its_name_and_cannot_be_read(tmp_path: Path) -> None:
    link = ZipEntry(name=b"set/link.png", data=b"/etc/passwd", attributes=0o120777 << 16)
    with opened(tmp_path, {"a.zip": make_zip([ZipEntry(name=A[0], data=A[1]), link])}) as found:
        assert names(found, FileKind.OTHER) == ["link.png"]
        with pytest.raises(KeyError):
            found.read("link.png", 100)


def test_a_tar_without_entries_is_an_empty_set_only_with_a_header(tmp_path: Path) -> None:
    folder = tar_record(b"folder/", b"", b"5")
    with opened(tmp_path, {"a.tar": folder + TAR_END}) as found:
        assert not found.entries()
