import json
from pathlib import PurePosixPath

import pytest

from sfumato_datasets.archives import Member
from sfumato_datasets.captions import (
    CaptionEncodingError,
    CaptionMetadataError,
    CaptionSource,
    read_metadata,
    resolve_caption,
)
from sfumato_datasets.folder_metadata import joined_metadata
from sfumato_datasets.sources import FileKind


def file(path: str, content: bytes) -> Member:
    return Member(path=path, kind=FileKind.FILE, read=lambda max_bytes: content[:max_bytes])


def joined(files: dict[str, bytes], shared: str = ".") -> dict[str, bytes]:
    members = [file(path, content) for path, content in files.items()]
    found = joined_metadata(members, PurePosixPath(shared))
    return {member.path: member.read(1 << 20) for member in found}


def captions(files: dict[str, bytes], *names: str, shared: str = ".") -> list[str]:
    tables = [
        read_metadata(CaptionSource(PurePosixPath(path).name), content)
        for path, content in joined(files, shared).items()
    ]
    return [resolve_caption(name, tables=tables).text for name in names]


def test_one_beside_all_images_stays_as_it_is() -> None:
    content = b"\xef\xbb\xbf{'not even': JSON}\r\n"
    assert joined({"a/metadata.jsonl": content}, "a") == {"a/metadata.jsonl": content}


def test_each_describes_the_images_of_its_folder() -> None:
    files = {
        "metadata.jsonl": b'{"file_name": "test/c.png", "text": "of the root"}',
        "train/metadata.jsonl": b'{"file_name": "a.png", "text": "of train"}\r\n',
        "train/deep/metadata.jsonl": b'{"image": "./a.png", "text": "of deep"}',
    }
    found = captions(files, "train__a.png", "train__deep__a.png", "test__c.png", "a.png")
    assert found == ["of train", "of deep", "of the root", ""]


def test_one_in_a_deeper_folder() -> None:
    files = {"train/metadata.csv": b"file_name,text\na.png,a cat\n"}
    assert captions(files, "train__a.png", "a.png") == ["a cat", ""]


def test_tables_with_different_columns() -> None:
    files = {
        "a/metadata.csv": b'file_name,text\na.png,"a, ""cat"""\n',
        "b/metadata.csv": "file,score,text\nb.png,1,é\n".encode(),
    }
    assert captions(files, "a__a.png", "b__b.png") == ['a, "cat"', "é"]


def test_tags_and_lists_survive() -> None:
    row = {"file_name": "a.png", "text": ["one", "two"], "tags": ["x"], "half": "\ud800"}
    files = {
        "a/metadata.jsonl": json.dumps(row).encode(),
        "b/metadata.jsonl": b"",
    }
    (content,) = joined(files).values()
    table = read_metadata(CaptionSource.METADATA_JSONL, content)
    assert table.captions == {"a__a.png": ("one", "two")}
    assert table.tags == {"a__a.png": ("x",)}


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"no JSON", CaptionMetadataError),
        (b'{"text": "of nothing"}', CaptionMetadataError),
        (b"\xff", CaptionEncodingError),
    ],
)
def test_a_bad_one_is_named(content: bytes, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"b/metadata\.jsonl: "):
        joined({"a/metadata.jsonl": b"", "b/metadata.jsonl": content})


def test_a_file_is_described_by_several_rows() -> None:
    rows = b'{"file_name": "a.png", "text": "one"}\n{"file_name": "./A.png", "text": "two"}\n'
    table = read_metadata(CaptionSource.METADATA_JSONL, rows + rows)
    found = resolve_caption("a.png", tables=[table], all_captions=True)
    assert (found.text, found.variants) == ("one", ("two",))
    first = resolve_caption("a.png", tables=[table])
    assert [note.reason for note in first.notes] == ["FIRST_CAPTION_USED"]
