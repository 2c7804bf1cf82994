"""Looks at the files that a command will need, before it asks a server for anything."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from sfumato_client.blobs import regular_file


def check_folder_writable(folder: Path) -> None:
    """Refuses a folder below which no file can be written; it need not be there yet.

    Raises:
        OSError: It is one; the error names the place that stands in the way.
    """
    place = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not place.is_dir():
        raise _error(errno.ENOTDIR, place)
    if not os.access(place, os.W_OK | os.X_OK):
        raise _error(errno.EACCES, place)


def check_file_writable(file: Path) -> None:
    """Refuses a file that can be written neither anew nor over one that is there.

    Raises:
        OSError: It is one; the error names the place that stands in the way.
    """
    real = regular_file(file)
    if real.exists() and not os.access(real, os.W_OK):
        raise _error(errno.EACCES, file)
    file = real
    if not file.absolute().parent.exists():
        raise _error(errno.ENOENT, file.parent)
    check_folder_writable(file.absolute().parent)


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
