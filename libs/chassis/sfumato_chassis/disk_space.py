"""Recognises a full disk, whichever library met it."""

import errno
import re
import sqlite3
from collections.abc import Iterator

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
# The second: the file of shared memory that goes with a write-ahead log could not grow.
_SQLITE_NO_SPACE = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE})
# Libraries written in Rust hand the number over in their text alone, as std::io::Error displays it.
_RUST_LIBRARIES = frozenset({"obstore", "safetensors", "tokenizers"})
_RUST_ERROR_NUMBER = re.compile(r"\(os error (\d+)\)")


def is_disk_full(error: BaseException) -> bool:
    """Whether ``error``, or one that led to it, says that there is no space for more bytes."""
    return any(_says_disk_full(met) for met in _chain(error))


def _says_disk_full(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in _NO_SPACE
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) in _SQLITE_NO_SPACE
    if type(error).__module__.partition(".")[0] in _RUST_LIBRARIES:
        return any(int(number) in _NO_SPACE for number in _RUST_ERROR_NUMBER.findall(str(error)))
    return False


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """``error``, what it was raised from or while handling, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
