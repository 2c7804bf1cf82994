import json

import pytest

from sfumato_datasets.captions import (
    MAX_CAPTION_CHARACTERS,
    CaptionEncodingError,
    CaptionMetadataError,
    CaptionSource,
    CaptionTooLongError,
    ResolvedCaption,
    read_json_sidecar,
    read_metadata,
    resolve_caption,
)

TXT, CAPTION, NONE = CaptionSource.TXT, CaptionSource.CAPTION, CaptionSource.NONE
JSONL, JSONL_2, CSV = (
    CaptionSource.METADATA_JSONL,
    CaptionSource.CAPTIONS_JSONL,
    CaptionSource.METADATA_CSV,
)


def jsonl(*rows: object) -> bytes:
    return "\n".join(json.dumps(row) for row in rows).encode()


def resolve(*tables: tuple[CaptionSource, bytes], **sidecars: bytes) -> ResolvedCaption:
    by_source = {"txt": TXT, "caption": CAPTION}
    return resolve_caption(
        "a.png",
        sidecars={by_source[k]: (lambda content=v: content) for k, v in sidecars.items()},
        tables=[read_metadata(source, content) for source, content in tables],
    )


def test_precedence() -> None:
    first = (JSONL, jsonl({"file_name": "a.png", "text": "from metadata.jsonl"}))
    second = (JSONL_2, jsonl({"file_name": "a.png", "text": "from captions.jsonl"}))
    third = (CSV, b"file_name,text\na.png,from metadata.csv\n")
    everything = (first, second, third)
    both = resolve(*everything, txt=b"from txt", caption=b"from caption")
    assert (both.text, both.source) == ("from txt", TXT)
    assert [note.reason for note in both.notes] == ["SIDECAR_IGNORED"]
    assert resolve(*everything, caption=b"c") == ResolvedCaption(text="c", source=CAPTION)
    for index, source in enumerate((JSONL, JSONL_2, CSV)):
        found = resolve(*everything[index:])
        assert found == ResolvedCaption(text=f"from {source}", source=source)
    assert resolve() == ResolvedCaption(text="", source=NONE)


def test_only_the_winning_sidecar_is_read() -> None:
    assert resolve(txt=b"fine", caption=b"\xff").text == "fine"


@pytest.mark.parametrize("empty", [b"", b"\n", b" \r\n ", b"\xef\xbb\xbf"])
def test_an_empty_sidecar_hides_the_metadata_caption(empty: bytes) -> None:
    table = (JSONL, jsonl({"file_name": "a.png", "text": "hidden"}))
    assert resolve(table, txt=empty) == ResolvedCaption(text="", source=TXT)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("Möwe".encode(), "Möwe"),
        ("\ufeffMöwe".encode(), "Möwe"),
        (b"one\r\ntwo\rthree\n", "one\ntwo\nthree"),
        ("a\u2028b".encode(), "a\u2028b"),
    ],
)
def test_utf_8_with_any_line_ends(content: bytes, text: str) -> None:
    assert resolve(txt=content).text == text


@pytest.mark.parametrize(
    "content",
    [
        "Möwe".encode("cp1252"),
        "Möwe".encode("utf-16"),
        "gull".encode("utf-16-le"),
        b"a\0b",
        b"\xc3",
    ],
)
def test_other_encodings_are_refused(content: bytes) -> None:
    with pytest.raises(CaptionEncodingError) as refusal:
        resolve(txt=content)
    assert refusal.value.reason == "CAPTION_ENCODING"
    with pytest.raises(CaptionEncodingError):
        read_metadata(JSONL, content)


def test_the_length_limit_counts_characters() -> None:
    assert len(resolve(txt=("ö" * MAX_CAPTION_CHARACTERS + "\n").encode()).text) == 8192
    with pytest.raises(CaptionTooLongError):
        resolve(txt=b"x" * (MAX_CAPTION_CHARACTERS + 1))
    with pytest.raises(CaptionTooLongError):
        resolve((JSONL, jsonl({"file": "a.png", "text": "x" * 8193})))


@pytest.mark.parametrize("key", ["file_name", "image", "file"])
def test_metadata_keys_and_column(key: str) -> None:
    content = jsonl({key: "a.png", "prompt": "a cat", "text": "no"}) + b"\r\n\r\n"
    table = read_metadata(JSONL, content, column="prompt")
    assert table.captions == {"a.png": ("a cat",)}
    assert table.has_column
    assert not read_metadata(JSONL, content, column="absent").has_column
    head = f"{key},prompt\r\n".encode()
    table = read_metadata(CSV, head + b'a.png,"a cat, ""red"""\r\n', column="prompt")
    assert table.captions == {"a.png": ('a cat, "red"',)}


def test_of_a_list_of_captions_the_first() -> None:
    found = resolve((JSONL, jsonl({"file_name": "a.png", "text": ["", "one", "two"]})))
    assert found.text == "one"
    assert [note.reason for note in found.notes] == ["FIRST_CAPTION_USED"]


@pytest.mark.parametrize("value", [None, "", " ", [], [None]])
def test_no_caption_in_a_row_falls_through(value: object) -> None:
    first = (JSONL, jsonl({"file_name": "a.png", "text": value}))
    second = (CSV, b"file_name,text\na.png,below\n")
    assert resolve(first, second).text == "below"
    assert resolve(first).source is NONE


def test_names_in_metadata_match_as_file_systems_do() -> None:
    table = read_metadata(JSONL, jsonl({"file_name": "Cafe\u0301.PNG", "text": "yes"}))
    assert resolve_caption("caf\u00e9.png", tables=[table]).text == "yes"


@pytest.mark.parametrize(
    ("source", "content"),
    [
        (JSONL, b"{"),
        (JSONL, b"[]"),
        (JSONL, b"[" * 100_000),
        (JSONL, b'{"text": "no file"}'),
        (JSONL, b'{"file_name": 3, "text": "a"}'),
        (JSONL, b'{"file_name": "a.png", "text": 3}'),
        (CSV, b"text\nno file"),
        (CSV, b'file_name,text\na.png,"open'),
        (CSV, b"file_name,text\na.png,b,c"),
    ],
)
def test_malformed_metadata_is_refused(source: CaptionSource, content: bytes) -> None:
    with pytest.raises(CaptionMetadataError) as refusal:
        read_metadata(source, content)
    assert refusal.value.reason == "CAPTION_METADATA_INVALID"


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(CaptionEncodingError):
        read_metadata(JSONL, b'{"file_name": "a.png", "text": "\\ud800"}')


def test_a_column_without_a_name_is_left_alone() -> None:
    """As pandas writes its index."""
    table = read_metadata(CSV, b",file_name,text\n0,a.png,a cat\n")
    assert (table.file_names, table.captions["a.png"]) == (("a.png",), ("a cat",))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"file_name,text\na.png,a cat,more\n", "line 2 has more columns than the head"),
        (b"file_name,text,text\na.png,a cat,a dog\n", "line 1 names a column twice"),
    ],
)
def test_columns_that_cannot_be_told_apart_are_refused(content: bytes, told: str) -> None:
    with pytest.raises(CaptionMetadataError, match=told):
        read_metadata(CSV, content)


LISTED = b'{"file_name": "a.png", "text": ["one", null, " two ", "three"], "tags": ["x", "y", "x"]}'


def test_the_other_captions_of_a_list_are_kept_when_asked() -> None:
    table = read_metadata(CaptionSource.METADATA_JSONL, LISTED)
    first = resolve_caption("a.png", tables=[table])
    assert (first.text, first.variants) == ("one", ())
    assert [note.reason for note in first.notes] == ["FIRST_CAPTION_USED"]
    every = resolve_caption("a.png", tables=[table], all_captions=True)
    assert (every.text, every.variants) == ("one", ("two", "three"))
    assert [note.reason for note in every.notes] == ["VARIANTS_KEPT"]


def test_no_more_variants_than_an_edit_may_set() -> None:
    row = json.dumps({"file_name": "a.png", "text": [f"caption {n}" for n in range(150)]})
    table = read_metadata(CaptionSource.METADATA_JSONL, row.encode())
    resolved = resolve_caption("a.png", tables=[table], all_captions=True)
    assert resolved.variants == tuple(f"caption {n}" for n in range(1, 101))
    assert resolved.notes[0].message == "of 150 captions the first, and 100 as its variants"


def test_a_variant_that_is_too_long_is_refused() -> None:
    row = json.dumps({"file_name": "a.png", "text": ["short", "x" * 8193]})
    table = read_metadata(CaptionSource.METADATA_JSONL, row.encode())
    assert resolve_caption("a.png", tables=[table]).text == "short"
    with pytest.raises(CaptionTooLongError):
        resolve_caption("a.png", tables=[table], all_captions=True)


def test_tags_come_with_whatever_caption_wins() -> None:
    table = read_metadata(CaptionSource.METADATA_JSONL, LISTED)
    hidden = resolve_caption("a.png", sidecars={CaptionSource.TXT: lambda: b""}, tables=[table])
    assert (hidden.text, hidden.source, hidden.tags) == ("", CaptionSource.TXT, ("x", "y"))


@pytest.mark.parametrize("tags", ["red, blue", [1], [""], ["a\nb"], ["x" * 101], ["\ud800"]])
def test_tags_that_are_none_are_left_out_and_said(tags: object) -> None:
    row = json.dumps({"file_name": "a.png", "text": "a", "tags": tags})
    table = read_metadata(CaptionSource.METADATA_JSONL, row.encode())
    assert table.tags == {}
    assert table.without_tags == ("a.png",)


def test_tags_may_be_the_captions() -> None:
    table = read_metadata(CaptionSource.METADATA_JSONL, LISTED, column="tags")
    assert resolve_caption("a.png", tables=[table]).text == "x"
    assert table.tags == {}


def test_a_json_sidecar_comes_behind_texts_and_before_tables() -> None:
    row = read_json_sidecar("a.png", b'{"text": "json", "tags": ["t"]}', column="text")
    table = read_metadata(CaptionSource.METADATA_JSONL, LISTED)
    without = resolve_caption("a.png", tables=[row, table])
    assert (without.text, without.source, without.tags) == ("json", CaptionSource.JSON, ("t",))
    text = resolve_caption(
        "a.png", sidecars={CaptionSource.TXT: lambda: b"txt"}, tables=[row, table]
    )
    assert (text.text, text.source, text.tags) == ("txt", CaptionSource.TXT, ("t",))
    silent = read_json_sidecar("a.png", b'{"text": null}', column="text")
    assert resolve_caption("a.png", tables=[silent, table]).text == "one"


@pytest.mark.parametrize("content", [b"[]", b"{", b'{"text": 1}', b"[" * 100_000])
def test_a_json_sidecar_that_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(CaptionMetadataError):
        read_json_sidecar("a.png", content, column="text")


def test_a_row_may_name_a_file_in_a_folder() -> None:
    rows = jsonl(
        {"file_name": "images/a.png", "text": "inner"}, {"file_name": "./b.png", "text": "here"}
    )
    table = read_metadata(CaptionSource.METADATA_JSONL, rows)
    assert resolve_caption("images__a.png", tables=[table]).text == "inner"
    assert resolve_caption("b.png", tables=[table]).text == "here"
    assert resolve_caption("a.png", tables=[table]).text == ""
