"""Where an import reads from: a folder on this server, or uploaded blobs."""

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import ClassVar, Protocol

from sfumato_chassis.allowed_paths import absence_of


class FileKind(Enum):
    """Only files are read; a symbolic link is OTHER, wherever it points.

    SYSTEM is what operating systems put beside files; it is nobody's picture.
    """

    FILE = "file"
    FOLDER = "folder"
    OTHER = "other"
    SYSTEM = "system"


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceEntry:
    """A name and what is behind it. `is_sidecar`: a `.json` that belongs to the image of its stem."""

    name: str
    kind: FileKind = FileKind.FILE
    is_sidecar: bool = False


class PathNotFoundError(Exception):
    """The folder is missing, no folder, or outside the allowed roots; all answer alike."""

    reason: ClassVar[str] = "PATH_NOT_FOUND"


class FileUnreadableError(Exception):
    """The file vanished, may not be read, or is no regular file."""

    reason: ClassVar[str] = "FILE_UNREADABLE"


class FileTooLargeError(Exception):
    """The file holds more bytes than the reader asked for at most."""

    reason: ClassVar[str] = "FILE_TOO_LARGE"


class SourceFiles(Protocol):
    """A flat set of named files."""

    def entries(self) -> Sequence[SourceEntry]:
        """Everything there is, in any order; a name may come twice in an upload."""

    def read(self, name: str, max_bytes: int) -> bytes:
        """The whole content.

        Raises:
            FileUnreadableError, FileTooLargeError
        """


class ServerFolder:
    """A folder under an allowed root, pinned by an open descriptor.

    Use `open_server_folder`. No link is followed inside it, so that nothing outside is read.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def entries(self) -> Sequence[SourceEntry]:
        with os.scandir(self._descriptor) as found:
            return [SourceEntry(name=entry.name, kind=_kind(entry)) for entry in found]

    def read(self, name: str, max_bytes: int) -> bytes:
        # O_NONBLOCK: opening a named pipe would otherwise wait for a writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(name, flags, dir_fd=self._descriptor)
            with open(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise FileUnreadableError("no regular file")
                data = file.read(max_bytes + 1)
        except OSError as error:
            code = errno.errorcode.get(error.errno or 0, "unknown error")
            raise FileUnreadableError(f"cannot be read ({code})") from error
        if len(data) > max_bytes:
            raise FileTooLargeError(f"larger than {max_bytes} bytes")
        return data


class UploadedFiles:
    """Blobs under the names that their uploader gives them.

    Args:
        files: (file name, digest) pairs.
        read_blob: digest and most bytes wanted to content; what it raises passes through.
    """

    def __init__(
        self, files: Sequence[tuple[str, str]], read_blob: Callable[[str, int], bytes]
    ) -> None:
        self._names = tuple(name for name, _ in files)
        self._digests: Mapping[str, str] = dict(files)
        self._read_blob = read_blob

    def entries(self) -> Sequence[SourceEntry]:
        return [SourceEntry(name=name) for name in self._names]

    def read(self, name: str, max_bytes: int) -> bytes:
        data = self._read_blob(self._digests[name], max_bytes + 1)
        if len(data) > max_bytes:
            raise FileTooLargeError(f"larger than {max_bytes} bytes")
        return data


@contextmanager
def open_server_folder(path: str, allowed_roots: Sequence[Path]) -> Iterator[ServerFolder]:
    """Open a folder for an import.

    Args:
        path: absolute, or relative to one of the roots (the first that has it).
        allowed_roots: folders under which imports may read, links in their paths resolved.

    Raises:
        PathNotFoundError: as the class says; the message names no path but the caller's.
    """
    descriptor = _open_under_roots(path, allowed_roots)
    try:
        yield ServerFolder(descriptor)
    finally:
        os.close(descriptor)


def _open_under_roots(path: str, allowed_roots: Sequence[Path]) -> int:
    for root in allowed_roots:
        try:
            resolved_root = root.resolve(strict=True)
            resolved = (resolved_root / path).resolve(strict=True)
            if not resolved.is_relative_to(resolved_root):
                continue
            return _open_step_by_step(resolved_root, resolved.relative_to(resolved_root))
        except (OSError, ValueError, RuntimeError):  # RuntimeError: a loop of links
            continue
    raise PathNotFoundError(absence_of("folder", path))


def _open_step_by_step(root: Path, relative: Path) -> int:
    """Open without following links, so that a link put there meanwhile does not lead outside."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(root, flags)
    for part in relative.parts:
        try:
            inner = os.open(part, flags, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = inner
    return descriptor


def _kind(entry: os.DirEntry[str]) -> FileKind:
    if entry.is_file(follow_symlinks=False):
        return FileKind.FILE
    return FileKind.FOLDER if entry.is_dir(follow_symlinks=False) else FileKind.OTHER
