"""Metadata files of several folders, put together as one that describes the images of all of them."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from sfumato_datasets.archives import Member
from sfumato_datasets.captions import (
    MAX_METADATA_BYTES,
    METADATA_SOURCES,
    CaptionError,
    CaptionMetadataError,
    CaptionSource,
    file_key,
    metadata_rows,
    read_metadata,
)
from sfumato_datasets.notes import printable_name
from sfumato_datasets.sources import FileKind

_Rows = Callable[[], Iterator[dict[str, Any]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """One file, and its folder as seen from where the whole will lie."""

    folder: PurePosixPath
    file: Member


def joined_metadata(files: Sequence[Member], shared: PurePosixPath, *, column: str) -> list[Member]:
    """One metadata file of each kind, in the folder that all images share.

    Args:
        files: Metadata files, in that folder and below it. What a row names lies beside its file.
        shared: The folder.
        column: Of the captions.
    """
    joined: list[Member] = []
    for source in METADATA_SOURCES:
        parts = [
            _Part(folder=PurePosixPath(file.path).parent.relative_to(shared), file=file)
            for file in files
            if PurePosixPath(file.path).name == source.value
        ]
        if parts:
            path = str(shared / source.value)
            read = partial(_joined, source, parts, column)
            joined.append(Member(path=path, kind=FileKind.FILE, read=read))
    return joined


def _joined(source: CaptionSource, parts: Sequence[_Part], column: str, max_bytes: int) -> bytes:
    """The content of all parts, or of the only one as it is.

    Raises:
        CaptionError: One is malformed, and named; or they are too large together.
        FileUnreadableError: One cannot be read.
    """
    if [part.folder for part in parts] == [PurePosixPath()]:
        return parts[0].file.read(max_bytes)
    contents: list[bytes] = []
    num_bytes = 0
    for part in parts:
        contents.append(_content(source, part, column))
        num_bytes += len(contents[-1])
        _check_size(num_bytes)

    def rows() -> Iterator[dict[str, Any]]:
        for part, content in zip(parts, contents, strict=True):
            for line, row in metadata_rows(source, content):
                key = file_key(row, line)
                yield {**row, key: str(part.folder / row[key])}

    written = _as_csv(rows) if source is CaptionSource.METADATA_CSV else _as_json_lines(rows)
    return written[:max_bytes]


def _content(source: CaptionSource, part: _Part, column: str) -> bytes:
    """What one file holds, once it is known to be sound."""
    try:
        content = part.file.read(MAX_METADATA_BYTES + 1)
        _check_size(len(content))
        read_metadata(source, content, column=column)
    except CaptionError as error:
        raise type(error)(f"{printable_name(part.file.path)}: {error}") from error
    return content


def _check_size(num_bytes: int) -> None:
    if num_bytes > MAX_METADATA_BYTES:
        raise CaptionMetadataError(f"larger than {MAX_METADATA_BYTES} bytes")


def _as_json_lines(rows: _Rows) -> bytes:
    written = bytearray()
    for row in rows():
        written += json.dumps(row).encode("ascii") + b"\n"
        _check_size(len(written))
    return bytes(written)


def _as_csv(rows: _Rows) -> bytes:
    written = io.StringIO(newline="")
    columns = list(dict.fromkeys(column for row in rows() for column in row))
    writer = csv.DictWriter(written, columns, restval="")
    writer.writeheader()
    for row in rows():
        writer.writerow(row)
        _check_size(written.tell())
    return written.getvalue().encode("utf-8")
