"""The one place that decides an image's caption.

Precedence: sidecar `<stem>.txt`, sidecar `<stem>.caption`, `metadata.jsonl`, `captions.jsonl`,
`metadata.csv`. The instance prompt of a training run comes after all of these and is the trainer's.
"""

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, Final

from sfumato_datasets.names import collision_key

MAX_CAPTION_CHARACTERS: Final = 8192
MAX_SIDECAR_BYTES: Final = 1 << 20
MAX_METADATA_BYTES: Final = 64 << 20
DEFAULT_COLUMN: Final = "text"

_FILE_KEYS: Final = ("file_name", "image", "file")


class CaptionSource(StrEnum):
    """Where a caption came from, in order of precedence. The values are stored and shown."""

    TXT = "sidecar.txt"
    CAPTION = "sidecar.caption"
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
    notes: tuple[CaptionNote, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class MetadataTable:
    """Captions of one metadata file, each a list, by the collision key of the image's name.

    `file_names` are those it names, as written; `has_column`: some row has the caption column.
    """

    source: CaptionSource
    captions: Mapping[str, tuple[str, ...]]
    file_names: tuple[str, ...]
    has_column: bool


def resolve_caption(
    file_name: str,
    *,
    sidecars: Mapping[CaptionSource, Callable[[], bytes]] = MappingProxyType({}),
    tables: Sequence[MetadataTable] = (),
) -> ResolvedCaption:
    """The caption of one image.

    Args:
        file_name: of the image.
        sidecars: how to read those it has; only the one that wins is read.
        tables: of the metadata files, in order of precedence.

    Raises:
        CaptionEncodingError: the sidecar is not UTF-8 text.
        CaptionTooLongError: over MAX_CAPTION_CHARACTERS.
    """
    notes: list[CaptionNote] = []
    for source in SIDECAR_SOURCES:
        if source in sidecars:
            if len(sidecars) > 1:
                notes.append(CaptionNote(reason="SIDECAR_IGNORED", message=f"{source} wins"))
            return _resolved(decode_text(sidecars[source]()), source, notes)
    key = collision_key(file_name)
    for table in tables:
        listed = table.captions.get(key, ())
        if len(listed) > 1:
            notes.append(
                CaptionNote(
                    reason="FIRST_CAPTION_USED", message=f"the first of {len(listed)} captions"
                )
            )
        if listed:
            return _resolved(listed[0], table.source, notes)
    return ResolvedCaption(text="", source=CaptionSource.NONE)


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

    Args:
        source: one of METADATA_SOURCES, which says how the file is written.
        column: key (JSON lines) or column (CSV) of the captions. A JSON value may be a list of
            captions. Null, blank text, an empty list and an absent key mean no caption.

    Raises:
        CaptionEncodingError: not UTF-8.
        CaptionMetadataError: malformed, without a file key, or naming a file twice.
    """
    text = decode_text(content)
    rows = _csv_rows(text) if source is CaptionSource.METADATA_CSV else _json_rows(text)
    captions: dict[str, tuple[str, ...]] = {}
    file_names: list[str] = []
    has_column = False
    for line, row in rows:
        file_name = _file_name(row, line)
        key = collision_key(file_name)
        if key in captions:
            raise CaptionMetadataError(f"line {line} names a file that an earlier line names")
        captions[key] = _captions(row.get(column), line)
        file_names.append(file_name)
        has_column = has_column or column in row
    return MetadataTable(
        source=source, captions=captions, file_names=tuple(file_names), has_column=has_column
    )


def _resolved(text: str, source: CaptionSource, notes: list[CaptionNote]) -> ResolvedCaption:
    text = text.strip()
    if len(text) > MAX_CAPTION_CHARACTERS:
        raise CaptionTooLongError(f"{len(text)} characters, over {MAX_CAPTION_CHARACTERS}")
    return ResolvedCaption(text=text, source=source, notes=tuple(notes))


def _json_rows(text: str) -> Iterable[tuple[int, dict[str, Any]]]:
    # Not splitlines(): it would also split at U+2028, which JSON strings may hold.
    for line, row_text in enumerate(text.split("\n"), start=1):
        if not row_text.strip():
            continue
        try:
            row = json.loads(row_text)
        except (ValueError, RecursionError) as error:
            raise CaptionMetadataError(f"line {line} is not JSON") from error
        if not isinstance(row, dict):
            raise CaptionMetadataError(f"line {line} is not a JSON object")
        yield line, row


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


def _file_name(row: Mapping[str, Any], line: int) -> str:
    for key in _FILE_KEYS:
        value = row.get(key)
        if isinstance(value, str) and value:
            return value
    raise CaptionMetadataError(f"line {line} names no file (keys {', '.join(_FILE_KEYS)})")


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
