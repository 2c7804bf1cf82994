"""Rows of Parquet as files of an import: images under names, and one metadata file."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final

from sfumato_datasets.archives import Member
from sfumato_datasets.captions import DEFAULT_COLUMN, TAGS_COLUMN, CaptionSource
from sfumato_datasets.hub_request import (
    HubCancelledError,
    HubDamagedError,
    HubError,
    HubRequest,
    HubTooLargeError,
    HubUnsupportedError,
)
from sfumato_datasets.names import UnsafeNameError, check_file_name, stem_key
from sfumato_datasets.parquet import (
    ParquetCancelledError,
    ParquetDamagedError,
    ParquetError,
    ParquetLimits,
    ParquetQuery,
    ParquetRow,
    ParquetTooLargeError,
    ParquetUnsupportedError,
    extract_rows,
)
from sfumato_datasets.sources import FileKind, FileUnreadableError
from sfumato_imaging.formats import FILE_SUFFIXES, MEDIA_TYPES, SUFFIXES, recognise

_HUB_ERRORS: Final[Mapping[type[ParquetError], type[HubError]]] = {
    ParquetUnsupportedError: HubUnsupportedError,
    ParquetDamagedError: HubDamagedError,
    ParquetTooLargeError: HubTooLargeError,
}
_SIGNATURE_BYTES: Final = 64
_UNKNOWN_SUFFIX: Final = ".png"
"""Of bytes that are no image, which the import refuses by their name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _PackedRow:
    """A row and the file that holds its image."""

    row: ParquetRow
    pack: Path


def parquet_members(
    paths: Sequence[str],
    source: HubRequest,
    *,
    staging: Path,
    locate: Callable[[Sequence[str]], Mapping[str, Path | None]],
    max_bytes: int,
    cancelled: Callable[[], bool],
) -> list[Member]:
    """The images of a split, as many as were asked for, and a metadata file with their captions.

    A file is fetched and read only when those before it hold too few rows. Images have the names that
    the rows give them where all of these can be used side by side; otherwise the split's name and the
    row's number.

    Args:
        paths: Of the Parquet files, in order.
        staging: Where the images are put.
        locate: Paths to where they lie on this machine.
        max_bytes: Of the images of all files together.

    Raises:
        HubError: One of them cannot be read; the message names it.
        HubCancelledError: `cancelled` said so.
        ParquetStartError: The reader does not start.
        OSError: There is no space.
    """
    rows: list[_PackedRow] = []
    column = source.caption_column or DEFAULT_COLUMN
    has_column = False
    for number, path in enumerate(paths):
        missing = None if source.max_samples is None else source.max_samples - len(rows)
        if missing == 0:
            break
        location = locate([path])[path]
        pack = staging / f"images-{number}"
        pack.unlink(missing_ok=True)  # of an attempt that was broken off
        with _naming(path):
            if location is None:
                raise ParquetDamagedError("the cache has no file there")
            extracted = extract_rows(
                location,
                pack,
                ParquetQuery(
                    image_column=source.image_column, caption_column=column, max_rows=missing
                ),
                ParquetLimits(max_bytes=max_bytes - sum(each.row.size_bytes for each in rows)),
                cancelled=cancelled,
            )
        has_column = has_column or extracted.has_caption_column
        rows += (_PackedRow(row=row, pack=pack) for row in extracted.rows)
    names = _names(rows, source.split)
    images = [
        Member(path=name, kind=FileKind.FILE, read=partial(_read, each))
        for name, each in zip(names, rows, strict=True)
    ]
    described = partial(_metadata, names, rows, column if has_column else None)
    metadata = CaptionSource.METADATA_JSONL.value
    return [*images, Member(path=metadata, kind=FileKind.FILE, read=described)]


@contextmanager
def _naming(path: str) -> Iterator[None]:
    try:
        yield
    except ParquetCancelledError as error:
        raise HubCancelledError("cancelled") from error
    except ParquetError as error:
        if type(error) not in _HUB_ERRORS:
            raise
        raise _HUB_ERRORS[type(error)](f"{path}: {error}") from error


def _names(rows: Sequence[_PackedRow], split: str) -> list[str]:
    given = [PurePosixPath(each.row.path or "").name for each in rows]
    stems = {stem_key(name) for name in given}
    if len(stems) == len(given) and all(map(_is_usable, given)):
        return given
    return [f"{split}-{index:06d}{_suffix(each)}" for index, each in enumerate(rows)]


def _is_usable(name: str) -> bool:
    try:
        check_file_name(name)
    except UnsafeNameError:
        return False
    return not name.startswith(".") and PurePosixPath(name).suffix.lower() in SUFFIXES


def _suffix(packed: _PackedRow) -> str:
    recognised = recognise(_bytes(packed, _SIGNATURE_BYTES))
    return _UNKNOWN_SUFFIX if recognised is None else FILE_SUFFIXES[MEDIA_TYPES[recognised.format]]


def _read(packed: _PackedRow, max_bytes: int) -> bytes:
    if packed.row.size_bytes == 0:
        raise FileUnreadableError("its row has no image")
    try:
        return _bytes(packed, max_bytes)
    except OSError as error:
        raise FileUnreadableError("cannot be read any more") from error


def _bytes(packed: _PackedRow, max_bytes: int) -> bytes:
    with packed.pack.open("rb") as pack:
        pack.seek(packed.row.offset)
        return pack.read(min(max_bytes, packed.row.size_bytes))


def _metadata(
    names: Sequence[str], rows: Sequence[_PackedRow], column: str | None, max_bytes: int
) -> bytes:
    """JSON lines, no longer than was asked for."""
    written = bytearray()
    for name, each in zip(names, rows, strict=True):
        row: dict[str, object] = {"file_name": name}
        if each.row.tags is not None:
            row[TAGS_COLUMN] = each.row.tags
        if column is not None:
            row[column] = each.row.caption
        written += json.dumps(row).encode("ascii") + b"\n"
        if len(written) > max_bytes:
            break
    return bytes(written[:max_bytes])
