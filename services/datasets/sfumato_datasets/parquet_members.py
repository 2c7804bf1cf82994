"""Rows of Parquet as files of an import: images under names, and one metadata file."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final

from sfumato_datasets.archives import Member
from sfumato_datasets.captions import (
    DEFAULT_COLUMN,
    MAX_METADATA_BYTES,
    TAGS_COLUMN,
    CaptionSource,
)
from sfumato_datasets.hub_request import (
    MAX_IMAGES,
    HubCancelledError,
    HubDamagedError,
    HubError,
    HubRequest,
    HubTooLargeError,
    HubUnsupportedError,
)
from sfumato_datasets.names import UnsafeNameError, check_file_name, is_unicode, stem_key
from sfumato_datasets.notes import printable_name
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

MAX_EMPTY_ROWS: Final = 1000
"""Rows without an image, each of which has a note, of one import."""
MAX_RATIO: Final = 100
"""Bytes of images for each byte of the file, as of an archive; images are compressed already."""
MIN_EXTRACTED_BYTES: Final = 1 << 20
"""That a file may hold whatever its own size."""

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
    column = source.caption_column or DEFAULT_COLUMN
    extraction = _Extraction(
        source, column, staging=staging, max_bytes=max_bytes, cancelled=cancelled
    )
    # Together where all of them are needed, so that they are fetched side by side.
    locations = locate(paths) if source.max_samples is None else {}
    for path in paths:
        if extraction.is_complete:
            break
        extraction.add(path, (locations or locate([path]))[path])
    rows = extraction.rows
    names = _names(rows, source.split)
    images = [
        Member(path=name, kind=FileKind.FILE, read=partial(_read, each))
        for name, each in zip(names, rows, strict=True)
    ]
    described = partial(_metadata, names, rows, column if extraction.has_column else None)
    metadata = CaptionSource.METADATA_JSONL.value
    return [*images, Member(path=metadata, kind=FileKind.FILE, read=described)]


class _Extraction:
    """Takes the rows out of one file after another, within limits that hold for all together."""

    def __init__(
        self,
        source: HubRequest,
        column: str,
        *,
        staging: Path,
        max_bytes: int,
        cancelled: Callable[[], bool],
    ) -> None:
        self.rows: list[_PackedRow] = []
        self.has_column = False
        self._source = source
        self._column = column
        self._staging = staging
        self._cancelled = cancelled
        self._num_files = 0
        self._bytes_left = max_bytes
        self._text_bytes_left = MAX_METADATA_BYTES
        self._empty_rows_left = MAX_EMPTY_ROWS

    @property
    def is_complete(self) -> bool:
        """Whether there are as many rows as were asked for."""
        return self._num_missing == 0

    @property
    def _num_missing(self) -> int | None:
        wanted = self._source.max_samples
        return None if wanted is None else max(0, wanted - len(self.rows))

    def add(self, path: str, location: Path | None) -> None:
        """Takes the rows of one more file. Raises HubError, HubCancelledError, OSError."""
        pack = self._staging / f"images-{self._num_files}"
        pack.unlink(missing_ok=True)  # of an attempt that was broken off
        self._num_files += 1
        with _naming(path):
            if location is None:
                raise ParquetDamagedError("the cache has no file there")
            extracted = extract_rows(
                location,
                pack,
                ParquetQuery(
                    image_column=self._source.image_column,
                    caption_column=self._column,
                    max_rows=self._num_missing,
                ),
                self._limits(location.stat().st_size),
                cancelled=self._cancelled,
            )
            self._check(extracted.rows)
        self.has_column = self.has_column or extracted.has_caption_column
        self._text_bytes_left -= extracted.text_bytes
        self._bytes_left -= sum(row.size_bytes for row in extracted.rows)
        self.rows += (_PackedRow(row=row, pack=pack) for row in extracted.rows)

    def _limits(self, file_bytes: int) -> ParquetLimits:
        most = max(MIN_EXTRACTED_BYTES, MAX_RATIO * file_bytes)
        return ParquetLimits(
            max_bytes=min(self._bytes_left, most),
            max_text_bytes=self._text_bytes_left,
            max_rows=MAX_IMAGES - len(self.rows),
        )

    def _check(self, rows: Sequence[ParquetRow]) -> None:
        """Raises ParquetUnsupportedError for rows of which no sample can be made."""
        self._empty_rows_left -= sum(1 for row in rows if row.size_bytes == 0)
        if self._empty_rows_left < 0:
            raise ParquetUnsupportedError(f"more than {MAX_EMPTY_ROWS} rows have no image")
        for number, row in enumerate(rows, start=1):
            captions = row.caption if isinstance(row.caption, list) else [row.caption]
            if not all(map(_is_text, captions)):
                shown = printable_name(self._column)
                raise ParquetUnsupportedError(f"column {shown} holds no UTF-8 text in row {number}")


def _is_text(caption: object) -> bool:
    return caption is None or (isinstance(caption, str) and is_unicode(caption))


@contextmanager
def _naming(path: str) -> Iterator[None]:
    try:
        yield
    except ParquetCancelledError as error:
        raise HubCancelledError("cancelled") from error
    except ParquetError as error:
        if type(error) not in _HUB_ERRORS:
            raise
        raise _HUB_ERRORS[type(error)](f"{printable_name(path)}: {error}") from error


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
