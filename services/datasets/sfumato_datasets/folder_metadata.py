"""Metadata files of several folders, put together as one that describes the images of all of them."""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
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
)
from sfumato_datasets.sources import FileKind


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """One file, and its folder as seen from where the whole will lie."""

    folder: PurePosixPath
    file: Member


def joined_metadata(files: Sequence[Member], shared: PurePosixPath) -> list[Member]:
    """One metadata file of each kind, in the folder that all images share.

    Args:
        files: Metadata files, in that folder and below it. What a row names lies beside its file.
        shared: The folder.
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
            read = partial(_joined, source, parts)
            joined.append(Member(path=path, kind=FileKind.FILE, read=read))
    return joined


def _joined(source: CaptionSource, parts: Sequence[_Part], max_bytes: int) -> bytes:
    """The content of all parts, or of the only one as it is.

    Raises:
        CaptionError: One is malformed; the message names it.
        FileUnreadableError: One cannot be read.
    """
    if [part.folder for part in parts] == [PurePosixPath()]:
        return parts[0].file.read(max_bytes)
    rows = [row for part in parts for row in _rows(source, part)]
    written = _as_csv(rows) if source is CaptionSource.METADATA_CSV else _as_json_lines(rows)
    return written[:max_bytes]


def _rows(source: CaptionSource, part: _Part) -> Iterator[dict[str, Any]]:
    try:
        content = part.file.read(MAX_METADATA_BYTES + 1)
        if len(content) > MAX_METADATA_BYTES:
            raise CaptionMetadataError(f"larger than {MAX_METADATA_BYTES} bytes")
        for line, row in metadata_rows(source, content):
            key = file_key(row, line)
            yield {**row, key: str(part.folder / row[key])}
    except CaptionError as error:
        raise type(error)(f"{part.file.path}: {error}") from error


def _as_json_lines(rows: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode("ascii")


def _as_csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    written = io.StringIO(newline="")
    columns = list(dict.fromkeys(column for row in rows for column in row))
    writer = csv.DictWriter(written, columns, restval="")
    writer.writeheader()
    writer.writerows(rows)
    return written.getvalue().encode("utf-8")
