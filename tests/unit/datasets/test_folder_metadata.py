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


def joined(files: dict[str, bytes], shared: str = ".", *, column: str = "text") -> dict[str, bytes]:
    members = [file(path, content) for path, content in files.items()]
    found = joined_metadata(members, PurePosixPath(shared), column=column)
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
        (b'\n\n{"file_name": "a.png", "text": 3}', CaptionMetadataError),
    ],
)
def test_a_bad_one_is_named_with_its_line(content: bytes, kind: type[Exception]) -> None:
    rows = b'{"file_name": "a.png", "text": "a cat"}\n' * 5
    line = "byte 0" if content == b"\xff" else f"line {content.count(bytes([10])) + 1}"
    with pytest.raises(kind, match=rf"b/metadata\.jsonl: .*{line}"):
        joined({"a/metadata.jsonl": rows, "b/metadata.jsonl": content})


def test_the_column_of_the_captions_is_the_one_that_counts() -> None:
    row = b'{"file_name": "a.png", "text": 3, "prompt": "a cat"}'
    assert joined({"a/metadata.jsonl": row}, column="prompt")
    with pytest.raises(CaptionMetadataError):
        joined({"a/metadata.jsonl": row})


@pytest.mark.parametrize("name", ["metadata.jsonl", "metadata.csv"])
def test_they_are_bounded_together(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What they hold, and what comes of it: each row gets the columns and the folder of its file."""
    monkeypatch.setattr("sfumato_datasets.folder_metadata.MAX_METADATA_BYTES", 2000)
    content = {
        "metadata.jsonl": b'{"file_name": "a.png", "text": "a cat"}\n' * 20,
        "metadata.csv": b"file_name,text\n" + b"a.png,a cat\n" * 60,
    }[name]
    assert joined({f"a/{name}": content, f"b/{name}": content})
    with pytest.raises(CaptionMetadataError, match="larger than 2000 bytes"):
        joined({f"{folder}/{name}": content for folder in "abc"})
    with pytest.raises(CaptionMetadataError, match="larger than 2000 bytes"):
        joined({f"{'long' * 10}/{name}": content, f"b/{name}": content})
    with pytest.raises(CaptionMetadataError, match=rf"^a/{name}: larger than 2000 bytes"):
        joined({f"a/{name}": content * 3, f"b/{name}": content})


def test_a_file_is_described_by_several_rows() -> None:
    rows = b'{"file_name": "a.png", "text": "one"}\n{"file_name": "./A.png", "text": "two"}\n'
    table = read_metadata(CaptionSource.METADATA_JSONL, rows + rows)
    found = resolve_caption("a.png", tables=[table], all_captions=True)
    assert (found.text, found.variants) == ("one", ("two",))
    first = resolve_caption("a.png", tables=[table])
    assert [note.reason for note in first.notes] == ["FIRST_CAPTION_USED"]
