"""Files that are whole or absent, even when the process dies or the power goes. No torch.

Every step that a crash can fall between is announced to a failpoint, so that a test can make
the process die there.
"""

import os
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

Failpoint = Callable[[str], None]
"""Called with the name of a place just before it is passed."""


def no_failpoint(name: str) -> None:
    """The failpoint of production: nothing happens."""


def write_file(path: Path, chunks: Iterable[bytes], *, failpoint: Failpoint = no_failpoint) -> int:
    """Write beside, fsync, rename onto `path`, fsync the directory. Returns the size in bytes.

    A file that was there before stays whole until the rename. Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        size_bytes = 0
        with temporary.open("xb") as file:
            for chunk in chunks:
                size_bytes += file.write(chunk)
            failpoint(f"{path.name}:written")
            file.flush()
            os.fsync(file.fileno())
        failpoint(f"{path.name}:synced")
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    failpoint(f"{path.name}:renamed")
    sync_directory(path.parent)
    return size_bytes


def sync_directory(directory: Path) -> None:
    """Make renames inside a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
