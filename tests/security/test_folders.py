"""Nothing outside the allowed folders is read, whatever lies in them."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from datasets_server import Running, import_request, imported, running
from pictures import picture, write_pictures
from refusals import refusal_of
from sfumato.datasets.v1 import imports_pb2


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    return write_pictures(tmp_path / "outside", 1)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Running]:
    (tmp_path / "root").mkdir()
    overrides = {"datasets.import_roots": (tmp_path / "root",)}
    async with running(tmp_path / "data", overrides=overrides) as started:
        yield started


async def test_a_link_to_a_folder_outside_is_not_there(
    server: Running, tmp_path: Path, outside: Path
) -> None:
    (tmp_path / "root" / "link").symlink_to(outside)
    refusal = await refusal_of(server.stubs.datasets.CreateImport(import_request("link")))
    assert refusal.reason == "PATH_NOT_FOUND"
    assert "outside" not in refusal.message


async def test_links_pipes_and_devices_are_no_files(
    server: Running, tmp_path: Path, outside: Path
) -> None:
    folder = tmp_path / "root" / "mixed"
    folder.mkdir()
    (folder / "good.png").write_bytes(picture(5))
    (folder / "link.png").symlink_to(outside / "picture_0000.png")
    os.mkfifo(folder / "pipe.png")
    end = await imported(server.stubs, "mixed", refused_files=imports_pb2.REFUSED_FILE_POLICY_SKIP)
    assert end.version.num_samples == 1
    refused = {note.file_name: note.reason for note in end.notes if note.refused}
    assert refused == {"link.png": "FILE_UNREADABLE", "pipe.png": "FILE_UNREADABLE"}


async def test_without_roots_no_folder_is_read(tmp_path: Path, outside: Path) -> None:
    async with running(tmp_path / "data") as server:
        for path in (str(outside), ".", ""):
            refusal = await refusal_of(server.stubs.datasets.CreateImport(import_request(path)))
            assert refusal.reason in {"PATH_NOT_FOUND", "FIELD_INVALID"}
