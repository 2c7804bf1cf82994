"""Takes images and their captions out of Parquet files of strangers.

A process of its own reads the file, with limits on memory, time and what it writes; a file that
kills it is refused, and the service goes on. The images go to a file, one after another, and never
through the memory of the service.
"""

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, BinaryIO, ClassVar, Final

from sfumato_datasets.captions import MAX_METADATA_BYTES, MAX_METADATA_ROWS
from sfumato_datasets.reader_environment import reader_environment

READY: Final = {"ready": True}
"""The first line of the process."""
LARGEST_LINE_BYTES: Final = 16 << 20
"""Of the process: more than every caption and tag of a row, each cut, can take."""

_POLL_SECONDS: Final = 0.1
_DISK_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})
# The kernel kills what takes more memory than the machine has.
_LIMIT_SIGNALS: Final = frozenset({signal.SIGXFSZ, signal.SIGXCPU, signal.SIGKILL})


class ParquetError(Exception):
    """Base of what makes a whole file unusable; the message names no path."""

    reason: ClassVar[str] = "PARQUET_INVALID"


class ParquetUnsupportedError(ParquetError):
    """No column holds images, or several do and none was chosen, or the chosen one does not."""

    reason = "PARQUET_UNSUPPORTED"


class ParquetDamagedError(ParquetError):
    """No Parquet, truncated, corrupt, or such that reading it ended the process that did it."""


class ParquetTooLargeError(ParquetError):
    """It takes more bytes, rows, memory or time than allowed."""

    reason = "PARQUET_TOO_LARGE"


class ParquetCancelledError(ParquetError):
    """The caller did not want to wait any more."""


class ParquetStartError(ParquetError):
    """The process does not start; no file is to blame."""


_REFUSALS: Final[Mapping[str, type[ParquetError]]] = MappingProxyType(
    {
        each.reason: each
        for each in (ParquetUnsupportedError, ParquetDamagedError, ParquetTooLargeError)
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ParquetQuery:
    """What is asked of a file. Names of columns are matched exactly.

    Attributes:
        image_column: None for the only column that holds images.
        max_rows: Rows after it are not read; None for all.
    """

    image_column: str | None
    caption_column: str
    max_rows: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ParquetLimits:
    """What one file may take; more is refused.

    Attributes:
        max_bytes: Of all images.
        max_text_bytes: Of all captions, tags and paths, as lines of JSON.
        max_rows: That are read.
        memory_limit_bytes: Address space of the process.
    """

    max_bytes: int
    max_text_bytes: int = MAX_METADATA_BYTES
    max_rows: int = MAX_METADATA_ROWS
    memory_limit_bytes: int = 4 << 30
    timeout_seconds: float = 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ParquetRow:
    """A row. Text is as stored, and may hold surrogates in place of bytes that are no UTF-8.

    Attributes:
        path: What the image column says of the file's name.
        offset: Of the image in the pack.
        size_bytes: Of the image; 0 where the row has none.
        caption: Text, a list, a number, a truth value or None; a dictionary whose key is
            "unsupported" for what has no place in JSON. A text that is too long is cut, yet stays
            longer than a caption may be. A list is cut after as many captions as an image may have.
        tags: The same of the column of tags.
    """

    path: str | None
    offset: int
    size_bytes: int
    caption: object
    tags: object


@dataclass(frozen=True, kw_only=True, slots=True)
class ExtractedRows:
    """All rows that were asked for, in order, and the column that their images came from.

    Attributes:
        text_bytes: That they took as lines of JSON.
    """

    rows: tuple[ParquetRow, ...]
    has_caption_column: bool
    image_column: str
    text_bytes: int


def extract_rows(
    file: Path,
    pack: Path,
    query: ParquetQuery,
    limits: ParquetLimits,
    *,
    cancelled: Callable[[], bool],
    monotonic: Callable[[], float] = time.monotonic,
) -> ExtractedRows:
    """Writes the images of a Parquet file into `pack`, one after another; answers its rows.

    Args:
        pack: A new file; on failure it is removed.
        cancelled: Asked several times a second.
        monotonic: Seconds of a clock that never goes back.

    Raises:
        ParquetUnsupportedError, ParquetDamagedError, ParquetTooLargeError: The file is no good.
        ParquetCancelledError: `cancelled` said so; the process is gone.
        ParquetStartError: The process cannot be started.
        OSError: `pack` cannot be written, as where the disk is full.
    """
    try:
        if not file.is_file():
            raise ParquetDamagedError("no regular file")
        source = file.open("rb")
    except OSError as error:
        raise ParquetDamagedError("the file cannot be read") from error
    with source, pack.open("xb") as images:
        try:
            # It has no name, so that no end of this process leaves it behind.
            with tempfile.TemporaryFile(dir=pack.parent) as index:
                reader = _start(source, images, index, query, limits)
                status = _await(reader, limits, cancelled, monotonic)
                index.seek(0)
                return _result(index, status, os.fstat(images.fileno()).st_size, limits)
        except BaseException:
            pack.unlink(missing_ok=True)
            raise


def _start(
    source: BinaryIO, images: BinaryIO, index: IO[bytes], query: ParquetQuery, limits: ParquetLimits
) -> subprocess.Popen[bytes]:
    """It is given open files and no path, so that nothing it says can hold one."""
    request = {
        "query": asdict(query),
        "limits": asdict(limits),
        "pack_descriptor": images.fileno(),
        "parent_process_id": os.getpid(),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "sfumato_datasets.parquet_process", json.dumps(request)],
        stdin=source,
        stdout=index,
        stderr=subprocess.DEVNULL,
        pass_fds=(images.fileno(),),
        # Other allocators reserve address space, which is limited; threads' stacks take some too.
        env=reader_environment(ARROW_DEFAULT_MEMORY_POOL="system", ARROW_IO_THREADS="1"),
        start_new_session=True,
    )


def _await(
    reader: subprocess.Popen[bytes],
    limits: ParquetLimits,
    cancelled: Callable[[], bool],
    monotonic: Callable[[], float],
) -> int:
    """The exit status of the process; however this ends, so has the process."""
    deadline = monotonic() + limits.timeout_seconds
    try:
        while not cancelled():
            if monotonic() > deadline:
                raise ParquetTooLargeError(
                    f"reading takes longer than {limits.timeout_seconds:g} s"
                )
            with suppress(subprocess.TimeoutExpired):
                return reader.wait(_POLL_SECONDS)
        raise ParquetCancelledError("reading was cancelled")
    finally:
        reader.kill()
        reader.wait()


def _result(index: IO[bytes], status: int, pack_bytes: int, limits: ParquetLimits) -> ExtractedRows:
    documents = _documents(index)
    if next(documents, None) != READY:
        if status < 0 or status in _DISK_ERRORS:
            raise _death(status)
        raise ParquetStartError("the reader of Parquet does not start")
    rows: list[ParquetRow] = []
    offset = 0
    for document in documents:
        if isinstance(document, dict):
            if "reason" in document:
                raise _refusal(document)
            return _complete(tuple(rows), document, offset == pack_bytes, index.tell())
        if len(rows) == limits.max_rows:
            break
        rows.append(_row(document, offset))
        offset += rows[-1].size_bytes
    raise _death(status)


def _documents(index: IO[bytes]) -> Iterator[Any]:
    """What the process said, up to a line that it did not end."""
    while (line := index.readline(LARGEST_LINE_BYTES)).endswith(b"\n"):
        try:
            yield json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _incoherent() from error


def _row(document: Any, offset: int) -> ParquetRow:
    try:
        path, size_bytes, caption, tags = document
    except (TypeError, ValueError) as error:
        raise _incoherent() from error
    if not isinstance(path, str | None) or not isinstance(size_bytes, int) or size_bytes < 0:
        raise _incoherent()
    return ParquetRow(path=path, offset=offset, size_bytes=size_bytes, caption=caption, tags=tags)


def _complete(
    rows: tuple[ParquetRow, ...], document: dict[str, Any], fills_pack: bool, text_bytes: int
) -> ExtractedRows:
    image_column = document.get("image_column")
    if not fills_pack or not isinstance(image_column, str):
        raise _incoherent()
    return ExtractedRows(
        rows=rows,
        has_caption_column=document.get("has_caption_column") is True,
        image_column=image_column,
        text_bytes=text_bytes,
    )


def _refusal(document: dict[str, Any]) -> ParquetError:
    refusal = _REFUSALS.get(str(document["reason"]), ParquetDamagedError)
    return refusal(str(document.get("message")))


def _incoherent() -> ParquetDamagedError:
    """The process is not what was started any more."""
    return ParquetDamagedError("reading it made its reader give answers that make no sense")


def _death(status: int) -> Exception:
    """Why the process ended before it came to a conclusion."""
    if status in _DISK_ERRORS:
        return OSError(status, os.strerror(status))
    if -status in _LIMIT_SIGNALS:
        return ParquetTooLargeError("reading it takes more memory, space or time than allowed")
    return ParquetDamagedError("reading it ended the process that did it")
