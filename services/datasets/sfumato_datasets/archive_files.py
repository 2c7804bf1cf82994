"""Archives as sources of an import: zip, tar, compressed tar, WebDataset shards.

Nothing is extracted: each entry is read where it lies, and only a compressed tar is unpacked as a
whole, into a file without a name. Entries that are links or devices, or whose paths lead anywhere but
down, keep their paths as names, which no import accepts.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from sfumato_datasets.archive_tar import list_tar, spool_compressed
from sfumato_datasets.archive_zip import list_zip
from sfumato_datasets.archives import (
    ArchiveError,
    ArchiveInvalidError,
    ArchiveLimits,
    Member,
)
from sfumato_datasets.names import SEPARATOR
from sfumato_datasets.notes import printable_name
from sfumato_datasets.sources import FileKind, FileTooLargeError, SourceEntry

DEFAULT_LIMITS: Final = ArchiveLimits()

_SYSTEM_FILES: Final = ("__MACOSX", "Thumbs.db", "desktop.ini")
_ZIP_SIGNATURES: Final = (b"PK\x03\x04", b"PK\x05\x06")
_COMPRESSIONS: Final = {b"\x1f\x8b": "gz", b"BZh": "bz2", b"\xfd7zXZ\x00": "xz"}


class ArchiveFiles:
    """The files of archives, as one flat set.

    Implements :class:`sfumato_datasets.sources.SourceFiles`.

    Args:
        members: Of every archive, in order.
        json_sidecars: Whether a `.json` beside an image belongs to it, as in WebDataset.
    """

    def __init__(self, members: Sequence[Member], *, json_sidecars: bool) -> None:
        named = _named(members)
        self._entries = [
            SourceEntry(
                name=name,
                kind=member.kind,
                is_sidecar=json_sidecars and name.lower().endswith(".json"),
            )
            for name, member in named
        ]
        self._entries += [SourceEntry(name=name, kind=FileKind.SYSTEM) for name in _system(members)]
        self._members = {name: member for name, member in named if member.kind is FileKind.FILE}

    def entries(self) -> Sequence[SourceEntry]:
        return self._entries

    def read(self, name: str, max_bytes: int) -> bytes:
        data = self._members[name].read(max_bytes + 1)
        if len(data) > max_bytes:
            raise FileTooLargeError(f"larger than {max_bytes} bytes")
        return data


@contextmanager
def open_archives(
    archives: Sequence[tuple[str, Path]],
    *,
    spool_folder: Path,
    cancelled: Callable[[], bool],
    limits: ArchiveLimits = DEFAULT_LIMITS,
) -> Iterator[ArchiveFiles]:
    """Opens archives, whose kinds are found by content.

    Args:
        archives: Name, for messages, and file of each.
        spool_folder: Where a compressed tar is unpacked.
        cancelled: Asked while one is unpacked.

    Raises:
        ArchiveError: One of them is unusable.
        OSError: There is no space to unpack one, or its file cannot be read.
    """
    members: list[Member] = []
    is_tar = False
    with ExitStack() as stack:
        for name, path in archives:
            try:
                file = stack.enter_context(path.open("rb"))
                start = file.read(8)
                if start.startswith(_ZIP_SIGNATURES):
                    members += list_zip(file, limits)
                else:
                    tar = _plain_tar(file, start, spool_folder, cancelled, limits, stack)
                    members += list_tar(tar, limits)
                    is_tar = True
                limits.check_entries(len(members))
            except FileNotFoundError as error:
                raise ArchiveInvalidError(f"{printable_name(name)}: its bytes are gone") from error
            except ArchiveError as error:
                raise type(error)(f"{printable_name(name)}: {error}") from error
        yield ArchiveFiles(members, json_sidecars=is_tar)


def _plain_tar(
    file: BinaryIO,
    start: bytes,
    spool_folder: Path,
    cancelled: Callable[[], bool],
    limits: ArchiveLimits,
    stack: ExitStack,
) -> BinaryIO:
    for signature, compression in _COMPRESSIONS.items():
        if start.startswith(signature):
            spool = spool_compressed(file, compression, spool_folder, limits, cancelled)
            return stack.enter_context(spool)
    return file


def _named(members: Sequence[Member]) -> list[tuple[str, Member]]:
    """Each member that is not the system's, under the name that it has in an import."""
    kept = [member for member in members if system_part(member.path) is None]
    shared = shared_folder(
        [parts for member in kept if (parts := safe_parts(member.path)) is not None]
    )
    return [(_flat_name(member.path, len(shared)), member) for member in kept]


def _flat_name(path: str, num_shared: int) -> str:
    parts = safe_parts(path)
    return path if parts is None else SEPARATOR.join(parts[num_shared:])


def safe_parts(path: str) -> tuple[str, ...] | None:
    """The parts of a path that leads down; None for every other."""
    parts = tuple(path.removeprefix("./").split("/"))
    if "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in parts):
        return None
    return None if ":" in parts[0] else parts


def shared_folder(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The folder in which all of the files lie, as deep as it is."""
    if not paths:
        return ()
    first, last = min(paths), max(paths)
    num_shared = 0
    limit = min(len(path) for path in paths) - 1
    while num_shared < limit and first[num_shared] == last[num_shared]:
        num_shared += 1
    return first[:num_shared]


def _system(members: Sequence[Member]) -> list[str]:
    """Each hidden or system file or folder that is left out, once."""
    found = (system_part(member.path) for member in members)
    return list(dict.fromkeys(part for part in found if part is not None))


def system_part(path: str) -> str | None:
    """The hidden or system file or folder in a path; None for paths that no import accepts."""
    for part in safe_parts(path) or ():
        if part in _SYSTEM_FILES or (part.startswith(".") and part.strip(".")):
            return part
    return None
