import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pictures import picture
from sfumato_datasets.archives import Member
from sfumato_datasets.hub_request import (
    HubCancelledError,
    HubDamagedError,
    HubRequest,
    HubTooLargeError,
)
from sfumato_datasets.parquet_members import parquet_members
from sfumato_datasets.sources import FileUnreadableError


class Split:
    """Parquet files of one split."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.located: list[str] = []

    def write(self, name: str, *names: str | None, text: Sequence[str] | None = None) -> str:
        """A file with a row for each name; the picture of a row is that of its number."""
        images = [{"bytes": picture(index), "path": path} for index, path in enumerate(names)]
        columns: dict[str, Any] = {"image": images}
        if text is not None:
            columns["text"] = text
        pq.write_table(pa.table(columns), self.folder / name)
        return name

    def locate(self, paths: Sequence[str]) -> Mapping[str, Path | None]:
        self.located += paths
        return {path: self.folder / path for path in paths}

    def members(self, *paths: str, **asked: Any) -> list[Member]:
        limits = {"max_bytes": asked.pop("max_bytes", 1 << 20)}
        return parquet_members(
            paths,
            HubRequest(id="org/cats", **asked),
            staging=self.folder,
            locate=self.locate,
            cancelled=lambda: False,
            **limits,
        )

    def names(self, *paths: str, **asked: Any) -> list[str]:
        *images, metadata = (member.path for member in self.members(*paths, **asked))
        assert metadata == "metadata.jsonl"
        return images


@pytest.fixture
def split(tmp_path: Path) -> Split:
    return Split(tmp_path)


def test_names_of_the_rows_where_they_can_stand_side_by_side(split: Split) -> None:
    first = split.write("0.parquet", "pets/a.png", "B.JPG")
    assert split.names(first) == ["a.png", "B.JPG"]


@pytest.mark.parametrize(
    "given",
    [
        ("a.png", "x/a.png"),
        ("a.png", "A.png"),
        ("a.png", "a.jpg"),
        ("a.png", None),
        ("a.png", ""),
        ("a.png", ".b.png"),
        ("a.png", "b.txt"),
        ("a.png", "b"),
        ("a.png", "con.png"),
        ("a.png", "b\u202e.png"),
    ],
)
def test_otherwise_numbers(split: Split, given: tuple[str | None, ...]) -> None:
    first = split.write("0.parquet", *given)
    assert split.names(first, split="dev") == ["dev-000000.png", "dev-000001.png"]


def test_one_name_in_two_files(split: Split) -> None:
    files = [split.write(f"{number}.parquet", "a.png", "b.png") for number in range(2)]
    assert split.names(*files) == [f"train-{row:06d}.png" for row in range(4)]


def test_no_more_files_than_it_takes(split: Split) -> None:
    files = [split.write(f"{number}.parquet", None, None) for number in range(3)]
    assert len(split.names(*files, max_samples=2)) == 2
    assert split.located == files[:1]
    assert len(split.names(*files, max_samples=3)) == 3
    assert split.located == files[:1] + files[:2]


def test_captions_stand_beside_their_names(split: Split) -> None:
    first = split.write("0.parquet", None, None, text=["one", "two"])
    second = split.write("1.parquet", None)
    *images, metadata = split.members(first, second)
    rows = [json.loads(line) for line in metadata.read(1 << 20).splitlines()]
    assert [row["text"] for row in rows] == ["one", "two", None]
    assert [row["file_name"] for row in rows] == [member.path for member in images]
    assert [member.read(1 << 20) for member in images] == [picture(0), picture(1), picture(0)]
    assert len(metadata.read(10)) == 10
    assert len(images[0].read(10)) == 10
    assert b"text" not in split.members(second)[-1].read(1 << 20)


def test_the_limit_holds_for_all_files_together(split: Split) -> None:
    files = [split.write(f"{number}.parquet", None, None) for number in range(2)]
    total = 2 * (len(picture(0)) + len(picture(1)))
    assert len(split.names(*files, max_bytes=total)) == 4
    with pytest.raises(HubTooLargeError, match=r"^1\.parquet: "):
        split.members(*files, max_bytes=total - 1)


def test_what_a_broken_off_attempt_left_is_written_over(split: Split) -> None:
    (split.folder / "images-0").write_bytes(b"of before")
    image, _ = split.members(split.write("0.parquet", None))
    assert image.read(1 << 20) == picture(0)


def test_what_cannot_be_read(split: Split) -> None:
    (split.folder / "0.parquet").write_bytes(b"PAR1")
    with pytest.raises(HubDamagedError, match=r"^0\.parquet: "):
        split.members("0.parquet")
    image, _ = split.members(split.write("1.parquet", None))
    (split.folder / "images-0").unlink()
    with pytest.raises(FileUnreadableError):
        image.read(10)


def test_a_cancelled_import(split: Split) -> None:
    with pytest.raises(HubCancelledError):
        parquet_members(
            [split.write("0.parquet", None)],
            HubRequest(id="org/cats"),
            staging=split.folder,
            locate=split.locate,
            max_bytes=1 << 20,
            cancelled=lambda: True,
        )
