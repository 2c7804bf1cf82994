import io
import zipfile
from pathlib import Path

import pytest

from sfumato_datasets.archive_files import open_archives
from sfumato_datasets.archives import ArchiveInvalidError


def entries(tmp_path: Path, data: bytes) -> list[str]:
    (tmp_path / "archive").write_bytes(data)
    archives = [("archive", tmp_path / "archive")]
    with open_archives(archives, spool_folder=tmp_path, cancelled=lambda: False) as files:
        return [entry.name for entry in files.entries()]


def test_an_empty_zip_holds_nothing(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w"):
        pass
    assert entries(tmp_path, buffer.getvalue()) == []


def test_the_folder_of_all_files_is_dropped_and_others_become_names(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("cats/a.png", b"a")
        archive.writestr("cats/inner/b.png", b"b")
    assert entries(tmp_path, buffer.getvalue()) == ["a.png", "inner__b.png"]


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArchiveInvalidError, match="archive: neither a zip nor a tar"):
        entries(tmp_path, b"text")
