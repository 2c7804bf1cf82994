"""The one place that decides an image's caption.

Precedence: sidecar `<stem>.txt`, sidecar `<stem>.caption`, `<stem>.json` of a WebDataset,
`metadata.jsonl`, `captions.jsonl`, `metadata.csv`. The instance prompt of a training run comes after all
of these and is the trainer's.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, Final

from sfumato_datasets.names import SEPARATOR, collision_key

MAX_CAPTION_CHARACTERS: Final = 8192
MAX_SIDECAR_BYTES: Final = 1 << 20
MAX_METADATA_BYTES: Final = 64 << 20
MAX_METADATA_ROWS: Final = 1_000_000
MAX_ROW_CHARACTERS: Final = MAX_SIDECAR_BYTES
"""Of one line of JSON, which can stand for fifty times as much memory."""
DEFAULT_COLUMN: Final = "text"
MAX_TAGS: Final = 100
MAX_TAG_CHARACTERS: Final = 100
MAX_VARIANTS: Final = 100
TAGS_COLUMN: Final = "tags"

FILE_KEYS: Final = ("file_name", "image", "file")
"""Under one of these a row names its file."""

# Without control characters and halves of surrogate pairs, which JSON can spell.
_TAG: Final = re.compile(rf"[^\x00-\x1f\x7f\ud800-\udfff]{{1,{MAX_TAG_CHARACTERS}}}")


class CaptionSource(StrEnum):
    """Where a caption came from, in order of precedence. The values are stored and shown."""

    TXT = "sidecar.txt"
    CAPTION = "sidecar.caption"
    JSON = "sidecar.json"
    METADATA_JSONL = "metadata.jsonl"
    CAPTIONS_JSONL = "captions.jsonl"
    METADATA_CSV = "metadata.csv"
    NONE = ""


SIDECAR_SOURCES: Final = (CaptionSource.TXT, CaptionSource.CAPTION)
"""In order of precedence."""
METADATA_SOURCES: Final = (
    CaptionSource.METADATA_JSONL,
    CaptionSource.CAPTIONS_JSONL,
    CaptionSource.METADATA_CSV,
)
"""In order of precedence; their values are the names of the files."""


class CaptionError(Exception):
    """Base of every refusal of a caption; `reason` is stable and upper snake case."""

    reason: ClassVar[str] = "CAPTION_INVALID"


class CaptionEncodingError(CaptionError):
    reason = "CAPTION_ENCODING"


class CaptionTooLongError(CaptionError):
    reason = "CAPTION_TOO_LONG"


class CaptionMetadataError(CaptionError):
    """A metadata file is not what its suffix says; no caption of it can be trusted."""

    reason = "CAPTION_METADATA_INVALID"


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptionNote:
    reason: str
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedCaption:
    """An empty `text` with a source other than NONE is a tombstone."""

    text: str
    source: CaptionSource
    variants: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    notes: tuple[CaptionNote, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class MetadataTable:
    """Captions and tags of one metadata file, each a list, by the collision key of the image's name.

    `file_names` are those it names, as written; `has_column`: some row has the caption column;
    `without_tags`: those whose tags are no list of short texts.
    """

    source: CaptionSource
    captions: Mapping[str, tuple[str, ...]]
    tags: Mapping[str, tuple[str, ...]]
    file_names: tuple[str, ...]
    has_column: bool
    without_tags: tuple[str, ...] = ()


def resolve_caption(
    file_name: str,
    *,
    sidecars: Mapping[CaptionSource, Callable[[], bytes]] = MappingProxyType({}),
    tables: Sequence[MetadataTable] = (),
    all_captions: bool = False,
) -> ResolvedCaption:
    """The caption and the tags of one image.

    Args:
        file_name: of the image.
        sidecars: how to read those it has; only the one that wins is read.
        tables: of the metadata files, in order of precedence.
        all_captions: of a list, keep the others as variants of the first.

    Raises:
        CaptionEncodingError: the sidecar is not UTF-8 text.
        CaptionTooLongError: over MAX_CAPTION_CHARACTERS.
    """
    notes: list[CaptionNote] = []
    key = collision_key(file_name)
    tags = next((table.tags[key] for table in tables if key in table.tags), ())
    present = [source for source in SIDECAR_SOURCES if source in sidecars]
    if present:
        if len(present) > 1:
            notes.append(CaptionNote(reason="SIDECAR_IGNORED", message=f"{present[0]} wins"))
        text = _bounded(decode_text(sidecars[present[0]]()))
        return ResolvedCaption(text=text, source=present[0], tags=tags, notes=tuple(notes))
    for table in tables:
        listed = table.captions.get(key, ())
        if len(listed) > 1:
            notes.append(_note_on_list(len(listed), all_captions))
        if listed:
            kept = listed[: 1 + MAX_VARIANTS] if all_captions else listed[:1]
            text, *variants = (_bounded(caption) for caption in kept)
            return ResolvedCaption(
                text=text,
                source=table.source,
                variants=tuple(variants),
                tags=tags,
                notes=tuple(notes),
            )
    return ResolvedCaption(text="", source=CaptionSource.NONE, tags=tags)


def _note_on_list(num_captions: int, all_captions: bool) -> CaptionNote:
    if not all_captions:
        message = f"the first of {num_captions} captions"
        return CaptionNote(reason="FIRST_CAPTION_USED", message=message)
    num_variants = min(num_captions - 1, MAX_VARIANTS)
    message = f"of {num_captions} captions the first, and {num_variants} as its variants"
    return CaptionNote(reason="VARIANTS_KEPT", message=message)


def decode_text(content: bytes) -> str:
    """UTF-8 with or without a byte order mark; line ends become LF.

    Raises:
        CaptionEncodingError: not UTF-8, or U+0000 in it (as UTF-16 read as UTF-8 has).
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CaptionEncodingError(f"not UTF-8 at byte {error.start}") from error
    if "\0" in text:
        raise CaptionEncodingError("holds U+0000; it may be UTF-16")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_metadata(
    source: CaptionSource, content: bytes, *, column: str = DEFAULT_COLUMN
) -> MetadataTable:
    """Read a metadata file.

    Several rows of one file are several captions of it; equal ones count once. Its tags are those of the
    first row that has any.

    Args:
        source: one of METADATA_SOURCES, which says how the file is written.
        column: key (JSON lines) or column (CSV) of the captions. A JSON value may be a list of
            captions. Null, blank text, an empty list and an absent key mean no caption.

    Raises:
        CaptionEncodingError: not UTF-8.
        CaptionMetadataError: malformed, or without a file key.
    """
    rows = metadata_rows(source, content)
    return _table(source, ((line, row[file_key(row, line)], row) for line, row in rows), column)


def metadata_rows(source: CaptionSource, content: bytes) -> Iterable[tuple[int, dict[str, Any]]]:
    """The rows of a metadata file with the numbers of their lines. Raises what `read_metadata` does."""
    text = decode_text(content)
    return _csv_rows(text) if source is CaptionSource.METADATA_CSV else _json_rows(text)


def file_key(row: Mapping[str, Any], line: int) -> str:
    """Under which of FILE_KEYS a row names its file. Raises CaptionMetadataError where it names none."""
    for key in FILE_KEYS:
        if isinstance(row.get(key), str) and row[key]:
            return key
    raise CaptionMetadataError(f"line {line} names no file (keys {', '.join(FILE_KEYS)})")


def row_key(file_name: str) -> str:
    """The collision key of the image that a row names, whose path may lead into folders."""
    return collision_key(file_name.removeprefix("./").replace("/", SEPARATOR))


def read_json_sidecar(file_name: str, content: bytes, *, column: str) -> MetadataTable:
    """Read the `.json` that belongs to an image of a WebDataset, as a table of one row.

    Args:
        file_name: of the image.
        column: key of the caption, which may be a list of captions.

    Raises:
        CaptionEncodingError: not UTF-8.
        CaptionMetadataError: no JSON object, or a caption that is not text.
    """
    row = _json_object(decode_text(content), 1)
    return _table(CaptionSource.JSON, [(1, file_name, row)], column)


def _table(
    source: CaptionSource, rows: Iterable[tuple[int, str, Mapping[str, Any]]], column: str
) -> MetadataTable:
    captions: dict[str, dict[str, None]] = {}
    tags: dict[str, tuple[str, ...]] = {}
    file_names: list[str] = []
    without_tags: list[str] = []
    has_column = False
    for line, file_name, row in rows:
        if len(file_names) == MAX_METADATA_ROWS:
            raise CaptionMetadataError(f"more than {MAX_METADATA_ROWS} rows")
        key = row_key(file_name)
        captions.setdefault(key, {}).update(dict.fromkeys(_captions(row.get(column), line)))
        file_names.append(file_name)
        has_column = has_column or column in row
        if column != TAGS_COLUMN and row.get(TAGS_COLUMN) is not None:
            found = _tags(row[TAGS_COLUMN])
            if found is None:
                without_tags.append(file_name)
            else:
                tags.setdefault(key, found)
    return MetadataTable(
        source=source,
        captions={key: tuple(listed) for key, listed in captions.items()},
        tags=tags,
        file_names=tuple(file_names),
        has_column=has_column,
        without_tags=tuple(without_tags),
    )


def _tags(value: object) -> tuple[str, ...] | None:
    """Each once, in order; None for anything but a list of what tags may be."""
    if not isinstance(value, list) or len(value) > MAX_TAGS:
        return None
    if not all(isinstance(tag, str) and _TAG.fullmatch(tag) is not None for tag in value):
        return None
    return tuple(dict.fromkeys(value))


def _bounded(text: str) -> str:
    text = text.strip()
    if len(text) > MAX_CAPTION_CHARACTERS:
        raise CaptionTooLongError(f"{len(text)} characters, over {MAX_CAPTION_CHARACTERS}")
    return text


def _json_rows(text: str) -> Iterable[tuple[int, dict[str, Any]]]:
    # Not splitlines(): it would also split at U+2028, which JSON strings may hold.
    for line, row_text in enumerate(text.split("\n"), start=1):
        if not row_text.strip():
            continue
        if len(row_text) > MAX_ROW_CHARACTERS:
            raise CaptionMetadataError(
                f"line {line} is longer than {MAX_ROW_CHARACTERS} characters"
            )
        yield line, _json_object(row_text, line)


def _json_object(text: str, line: int) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CaptionMetadataError(f"line {line} is not JSON") from error
    if not isinstance(row, dict):
        raise CaptionMetadataError(f"line {line} is not a JSON object")
    return row


def _csv_rows(text: str) -> Iterable[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        names = [name for name in reader.fieldnames or () if name]
        if len(names) != len(set(names)):
            raise CaptionMetadataError("line 1 names a column twice")
        for row in reader:
            if None in row:  # where DictReader puts what is beyond the head
                raise CaptionMetadataError(f"line {reader.line_num} has more columns than the head")
            yield reader.line_num, row
    except csv.Error as error:
        raise CaptionMetadataError(f"line {reader.line_num} is not CSV") from error


def _captions(value: object, line: int) -> tuple[str, ...]:
    captions: list[str] = []
    for caption in value if isinstance(value, list) else [value]:
        if caption is None:
            continue
        if not isinstance(caption, str):
            raise CaptionMetadataError(f"line {line} has a caption that is not text")
        try:
            text = decode_text(caption.encode("utf-8")).strip()
        except UnicodeEncodeError as error:
            raise CaptionEncodingError(f"line {line} holds half of a surrogate pair") from error
        if text:
            captions.append(text)
    return tuple(captions)
