import os
from pathlib import Path

import pytest

from sfumato_datasets.sources import (
    FileKind,
    FileTooLargeError,
    FileUnreadableError,
    PathNotFoundError,
    UploadedFiles,
    open_server_folder,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root" / "pets"
    folder.mkdir(parents=True)
    (folder / "a.txt").write_bytes(b"hello")
    (tmp_path / "secret.txt").write_bytes(b"secret")
    return tmp_path / "root"


@pytest.mark.parametrize("path", ["pets", "./pets", "pets/../pets"])
def test_a_folder_under_a_root(root: Path, path: str) -> None:
    for name in (path, str(root / path)):
        with open_server_folder(name, [root.parent / "absent", root]) as folder:
            assert [entry.name for entry in folder.entries()] == ["a.txt"]
            assert folder.read("a.txt", 5) == b"hello"


def test_the_root_itself_may_be_a_link(root: Path) -> None:
    (root.parent / "link").symlink_to(root)
    with open_server_folder("pets", [root.parent / "link"]) as folder:
        assert folder.read("a.txt", 5) == b"hello"


@pytest.mark.parametrize(
    "path",
    ["absent", "..", "../..", "/", "/etc", "pets/a.txt", "pets\0", "out", "itself", "itself/pets"],
)
def test_missing_and_forbidden_answer_alike(root: Path, path: str) -> None:
    (root / "out").symlink_to(root.parent)
    (root / "itself").symlink_to("itself")
    with (
        pytest.raises(PathNotFoundError) as refusal,
        open_server_folder(path, [root]),
    ):
        pass
    assert str(refusal.value) == f"no folder {path!r} under the allowed folders"


def test_without_roots_nothing_may_be_read(root: Path) -> None:
    with pytest.raises(PathNotFoundError), open_server_folder(str(root), []):
        pass


def test_links_pipes_and_folders_are_never_read(root: Path) -> None:
    pets = root / "pets"
    (pets / "link.txt").symlink_to(root.parent / "secret.txt")
    os.mkfifo(pets / "pipe.txt")
    (pets / "inner").mkdir()
    with open_server_folder("pets", [root]) as folder:
        kinds = {entry.name: entry.kind for entry in folder.entries()}
        assert kinds == {
            "a.txt": FileKind.FILE,
            "link.txt": FileKind.OTHER,
            "pipe.txt": FileKind.OTHER,
            "inner": FileKind.FOLDER,
        }
        for name in ("link.txt", "pipe.txt", "inner", "absent"):
            with pytest.raises(FileUnreadableError):
                folder.read(name, 100)


def test_large_files_are_not_read_whole(root: Path) -> None:
    with open_server_folder("pets", [root]) as folder, pytest.raises(FileTooLargeError):
        folder.read("a.txt", 4)


def test_uploaded_files() -> None:
    blobs = {"sha256:1": b"one", "sha256:2": b"two"}
    files = UploadedFiles(
        [("a.png", "sha256:1"), ("b.png", "sha256:2")], lambda digest, size: blobs[digest][:size]
    )
    assert [entry.name for entry in files.entries()] == ["a.png", "b.png"]
    assert files.read("b.png", 3) == b"two"
    with pytest.raises(FileTooLargeError):
        files.read("a.png", 2)
