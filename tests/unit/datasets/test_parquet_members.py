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
    HubUnsupportedError,
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


def test_all_files_are_located_together_where_all_are_wanted(split: Split) -> None:
    files = [split.write(f"{number}.parquet", None) for number in range(3)]
    calls: list[Sequence[str]] = []

    def locate(paths: Sequence[str]) -> Mapping[str, Path | None]:
        calls.append(paths)
        return {path: split.folder / path for path in paths}

    split.locate = locate  # type: ignore[method-assign]
    split.members(*files)
    assert calls == [tuple(files)]


def test_images_that_are_far_larger_than_their_file(split: Split) -> None:
    path = split.folder / "0.parquet"
    for zeros, fits in ((1 << 20, True), (2 << 20, False)):
        table = pa.table({"image": [{"bytes": bytes(zeros), "path": None}]})
        pq.write_table(table, path, compression="zstd")
        assert 100 * path.stat().st_size < 1 << 20
        if fits:
            assert split.names("0.parquet", max_bytes=1 << 30)
        else:
            with pytest.raises(HubTooLargeError, match=r"^0\.parquet: its images take more"):
                split.members("0.parquet", max_bytes=1 << 30)


@pytest.mark.parametrize(
    ("bound", "most", "kind", "message"),
    [
        ("MAX_IMAGES", 5, HubTooLargeError, "more than 2 rows"),
        ("MAX_METADATA_BYTES", 300, HubTooLargeError, "captions and names take more"),
        ("MAX_EMPTY_ROWS", 1, HubUnsupportedError, "more than 1 rows have no image"),
    ],
)
def test_limits_of_rows_hold_for_all_files_together(
    split: Split,
    monkeypatch: pytest.MonkeyPatch,
    bound: str,
    most: int,
    kind: type[Exception],
    message: str,
) -> None:
    images = [{"bytes": picture(0), "path": None}] * 2 + [None]
    for number in range(2):
        table = pa.table({"image": images, "text": ["x" * 50] * 3})
        pq.write_table(table, split.folder / f"{number}.parquet")
    assert len(split.names("0.parquet", "1.parquet")) == 6
    monkeypatch.setattr(f"sfumato_datasets.parquet_members.{bound}", most)
    assert len(split.names("0.parquet")) == 3
    with pytest.raises(kind, match=rf"^1\.parquet: .*{message}"):
        split.members("0.parquet", "1.parquet")


@pytest.mark.parametrize(
    "captions",
    [
        pa.array([None, 3]),
        pa.array([None, True]),
        pa.array([["a cat"], ["a", None]]).cast(pa.list_(pa.binary())),
        pa.array([["a cat"], ["a", "b"]]).cast(pa.list_(pa.binary())).slice(0, 2),
        pa.array([b"ok", b"\xff"]).view(pa.string()),
        pa.array([{"en": "a cat"}, None]),
    ],
)
def test_captions_that_are_no_text(split: Split, captions: pa.Array) -> None:
    images = [{"bytes": picture(0), "path": None}] * 2
    pq.write_table(pa.table({"image": images, "text": captions}), split.folder / "0.parquet")
    expected = r"^0\.parquet: column text holds no UTF-8 text in row [12]$"
    with pytest.raises(HubUnsupportedError, match=expected):
        split.members("0.parquet")


def test_captions_that_are_lists(split: Split) -> None:
    images = [{"bytes": picture(0), "path": None}] * 3
    captions = pa.array([["one", None, "two"], [], None])
    pq.write_table(pa.table({"image": images, "text": captions}), split.folder / "0.parquet")
    metadata = split.members("0.parquet")[-1].read(1 << 20)
    assert [json.loads(line)["text"] for line in metadata.splitlines()] == [
        ["one", None, "two"],
        [],
        None,
    ]


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
