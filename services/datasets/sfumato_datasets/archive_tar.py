"""Entries of a tar archive, read where they lie.

Headers are walked here rather than by `tarfile`, which takes extended headers of any size into memory.
Format: POSIX.1-2001 (ustar and pax) and GNU long names.
"""

import bz2
import gzip
import lzma
import os
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from sfumato_datasets.archives import ArchiveInvalidError, ArchiveLimits, Member
from sfumato_datasets.sources import FileKind, FileUnreadableError

BLOCK_BYTES: Final = 512
CHUNK_BYTES: Final = 1 << 20


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


_OPENERS: Final[dict[str, Callable[[BinaryIO], _Stream]]] = {
    "gz": lambda file: gzip.GzipFile(fileobj=file),
    "bz2": bz2.BZ2File,
    "xz": lzma.LZMAFile,
}
_DAMAGE: Final = (EOFError, OSError, zlib.error, lzma.LZMAError, ValueError)
_REGULAR: Final = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_EXTENDED: Final = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


def spool_compressed(
    file: BinaryIO,
    compression: str,
    folder: Path,
    limits: ArchiveLimits,
    cancelled: Callable[[], bool],
) -> BinaryIO:
    """Unpacks a compressed tar into a file without a name; answers it, to be closed after use.

    Raises:
        ArchiveInvalidError: It is damaged.
        ArchiveTooLargeError: It expands too much.
        OSError: There is no space for it.
    """
    num_compressed_bytes = os.fstat(file.fileno()).st_size
    file.seek(0)
    with ExitStack() as stack:
        spool = stack.enter_context(tempfile.TemporaryFile(dir=folder))
        num_bytes = 0
        for chunk in _unpacked(_OPENERS[compression](file), cancelled):
            num_bytes += len(chunk)
            limits.check_expansion(num_bytes, num_compressed_bytes)
            spool.write(chunk)
        spool.flush()
        stack.pop_all()
    return spool


def list_tar(file: BinaryIO, limits: ArchiveLimits) -> Sequence[Member]:
    """The members of a tar that is not compressed, and stays open for as long as they are read.

    Raises:
        ArchiveInvalidError, ArchiveTooLargeError
    """
    walk = _Walk(descriptor=file.fileno(), limits=limits)
    return [
        Member(path=entry.path, kind=entry.kind, read=partial(_read, file.fileno(), entry))
        for entry in walk.entries()
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Entry:
    path: str
    kind: FileKind
    offset: int
    size_bytes: int


@dataclass(kw_only=True, slots=True)
class _Walk:
    """From header to header; `extended` is what extended headers say of the next entry."""

    descriptor: int
    limits: ArchiveLimits
    num_headers: int = 0
    extended: dict[str, str] = field(default_factory=dict)

    def entries(self) -> Iterator[_Entry]:
        end = os.fstat(self.descriptor).st_size
        at = 0
        while (header := self._header(at)) is not None:
            at += BLOCK_BYTES
            size = self._size_of(header)
            if size > end - at:
                raise ArchiveInvalidError("a tar that is cut short")
            if header.type in _EXTENDED:
                self._extend(header, os.pread(self.descriptor, self._extension(size), at))
            else:
                path = self.extended.get("path", header.name)
                if not (header.isdir() or path.endswith("/")):
                    yield _Entry(path=path, kind=self._kind(header), offset=at, size_bytes=size)
                self.extended = {}
            at += -(-size // BLOCK_BYTES) * BLOCK_BYTES

    def _header(self, at: int) -> tarfile.TarInfo | None:
        """The header there; None at the end of the archive."""
        block = os.pread(self.descriptor, BLOCK_BYTES, at)
        if at and not block.strip(b"\0"):
            return None
        self.num_headers += 1
        # Each entry may have a few extended headers.
        self.limits.check_entries(self.num_headers // 4)
        try:
            return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except (tarfile.TarError, ValueError) as error:
            what = "a damaged tar" if at else "neither a zip nor a tar"
            raise ArchiveInvalidError(what) from error

    def _size_of(self, header: tarfile.TarInfo) -> int:
        if header.type in (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE):
            return 0
        size = header.size
        if header.type not in _EXTENDED and "size" in self.extended:
            text = self.extended["size"]
            size = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
        if size < 0:
            raise ArchiveInvalidError("a damaged tar")
        return size

    def _extension(self, size: int) -> int:
        if size > self.limits.max_header_bytes:
            raise ArchiveInvalidError("a tar with an extended header that is too large")
        return size

    def _extend(self, header: tarfile.TarInfo, data: bytes) -> None:
        if header.type == tarfile.GNUTYPE_LONGNAME:
            self.extended["path"] = data.rstrip(b"\0").decode("utf-8", "surrogateescape")
        elif header.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
            self.extended |= _pax_records(data)

    def _kind(self, header: tarfile.TarInfo) -> FileKind:
        is_sparse = any(key.startswith("GNU.sparse") for key in self.extended)
        return FileKind.FILE if header.type in _REGULAR and not is_sparse else FileKind.OTHER


def _pax_records(data: bytes) -> dict[str, str]:
    """`length key=value` lines, as the pax format has them."""
    records: dict[str, str] = {}
    while data.strip(b"\0"):
        length_text, _, _ = data.partition(b" ")
        length = int(length_text) if length_text.isdigit() and len(length_text) < 9 else 0
        record, data = data[:length], data[length:]
        key, separator, value = record[len(length_text) + 1 :].partition(b"=")
        if not separator or not record.endswith(b"\n"):
            raise ArchiveInvalidError("a damaged tar")
        records[key.decode("utf-8", "replace")] = value[:-1].decode("utf-8", "surrogateescape")
    return records


def _read(descriptor: int, entry: _Entry, max_bytes: int) -> bytes:
    wanted = min(entry.size_bytes, max_bytes)
    try:
        data = os.pread(descriptor, wanted, entry.offset)
    except OSError as error:
        raise FileUnreadableError("damaged in the archive") from error
    if len(data) != wanted:
        raise FileUnreadableError("damaged in the archive")
    return data


def _unpacked(stream: _Stream, cancelled: Callable[[], bool]) -> Iterator[bytes]:
    while not cancelled():
        try:
            chunk = stream.read(CHUNK_BYTES)
        except _DAMAGE as error:
            raise ArchiveInvalidError("a compressed tar that is damaged") from error
        if not chunk:
            return
        yield chunk
