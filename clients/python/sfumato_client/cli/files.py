"""Looks at the files that a command will need, before it asks a server for anything."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def check_folder(folder: Path) -> None:
    """Whether files can be written below `folder`, which need not be there yet.

    Raises:
        OSError: they cannot; it names the place that stands in the way.
    """
    place = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not place.is_dir():
        raise _error(errno.ENOTDIR, place)
    if not os.access(place, os.W_OK | os.X_OK):
        raise _error(errno.EACCES, place)


def check_file(file: Path) -> None:
    """Whether `file` can be written, anew or over one that is there.

    Raises:
        OSError: it cannot; it names the place that stands in the way.
    """
    if file.is_dir():
        raise _error(errno.EISDIR, file)
    if not file.absolute().parent.exists():
        raise _error(errno.ENOENT, file.parent)
    check_folder(file.absolute().parent)


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
