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

from sfumato_datasets.archives import (
    ArchiveInvalidError,
    ArchiveLimits,
    ArchiveTooLargeError,
    Member,
)
from sfumato_datasets.sources import FileKind, FileUnreadableError

BLOCK_BYTES: Final = 512
CUT_SHORT: Final = "a tar that is cut short"
CHUNK_BYTES: Final = 1 << 20
MAX_XZ_MEMORY_BYTES: Final = 256 << 20
"""Four times what `xz -9` needs."""

_XZ_READ_BYTES: Final = 1 << 16
_MAX_LENGTH_DIGITS: Final = 8
_TOLD: Final = (b"path", b"size")
_SPARSE: Final = b"GNU.sparse."
_IS_SPARSE: Final = "is sparse"
_SPARSE_MARK: Final = 482
_SPARSE_MARK_OF_BLOCK: Final = 504
"""Where a header of old GNU tar, and each block after it, says that another block follows."""


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _XzStream:
    """Unpacks xz; `lzma.LZMAFile` would take whatever memory the archive says that it needs."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._unpacker = _xz_unpacker()

    def read(self, size: int, /) -> bytes:
        """At most so many bytes; none at the end. Raises LZMAError, EOFError."""
        data = b""
        while not data:
            packed = self._unpacker.unused_data
            if self._unpacker.eof or self._unpacker.needs_input:
                packed += self._file.read(_XZ_READ_BYTES)
            if self._unpacker.eof:
                packed = packed.lstrip(b"\0")  # padding between streams
                if not packed:
                    return b""
                self._unpacker = _xz_unpacker()
            elif self._unpacker.needs_input and not packed:
                raise EOFError
            data = self._unpacker.decompress(packed, size)
        return data


def _xz_unpacker() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_XZ_MEMORY_BYTES)


_OPENERS: Final[dict[str, Callable[[BinaryIO], _Stream]]] = {
    "gz": lambda file: gzip.GzipFile(fileobj=file),
    "bz2": bz2.BZ2File,
    "xz": _XzStream,
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
    num_extended_bytes: int = 0
    extended: dict[str, str] = field(default_factory=dict)

    def entries(self) -> Iterator[_Entry]:
        end = os.fstat(self.descriptor).st_size
        at = 0
        while (header := self._header(at)) is not None:
            at += BLOCK_BYTES
            size = self._size_of(header)
            if size > end - at:
                raise ArchiveInvalidError(CUT_SHORT)
            if header.type in _EXTENDED:
                self._extend(header, os.pread(self.descriptor, self._extension(size), at))
            else:
                path = self.extended.get("path", header.name)
                if not (header.isdir() or path.endswith("/")):
                    yield _Entry(path=path, kind=self._kind(header), offset=at, size_bytes=size)
                self.extended = {}
                at += self._num_sparse_bytes(header, at)
            at += -(-size // BLOCK_BYTES) * BLOCK_BYTES

    def _header(self, at: int) -> tarfile.TarInfo | None:
        """The header there; None at the end of the archive."""
        block = os.pread(self.descriptor, BLOCK_BYTES, at)
        if at and not block:
            raise ArchiveInvalidError(CUT_SHORT)
        if at and not block.strip(b"\0"):
            return None
        self._count_header()
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
        self.num_extended_bytes += size
        if self.num_extended_bytes > self.limits.max_directory_bytes:
            raise ArchiveTooLargeError("too many bytes of extended headers")
        return size

    def _extend(self, header: tarfile.TarInfo, data: bytes) -> None:
        if header.type == tarfile.GNUTYPE_LONGNAME:
            self.extended["path"] = data.rstrip(b"\0").decode("utf-8", "surrogateescape")
        elif header.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
            self.extended |= _pax_records(data)

    def _kind(self, header: tarfile.TarInfo) -> FileKind:
        is_whole = header.type in _REGULAR and _IS_SPARSE not in self.extended
        return FileKind.FILE if is_whole else FileKind.OTHER

    def _num_sparse_bytes(self, header: tarfile.TarInfo, at: int) -> int:
        """Of the blocks that go on with the map of a sparse file of old GNU tar, before its content."""
        if header.type != tarfile.GNUTYPE_SPARSE:
            return 0
        num_bytes, mark = 0, _SPARSE_MARK
        while os.pread(self.descriptor, 1, at - BLOCK_BYTES + num_bytes + mark).strip(b"\0"):
            num_bytes, mark = num_bytes + BLOCK_BYTES, _SPARSE_MARK_OF_BLOCK
            self._count_header()
        return num_bytes

    def _count_header(self) -> None:
        self.num_headers += 1
        # Each entry may have a few extended headers.
        self.limits.check_entries(self.num_headers // 4)


def _pax_records(data: bytes) -> dict[str, str]:
    """`length key=value` lines, as the pax format has them; those that say something of the content."""
    records: dict[str, str] = {}
    at, end = 0, len(data.rstrip(b"\0"))
    while at < end:
        length_text = data[at : at + _MAX_LENGTH_DIGITS].partition(b" ")[0]
        length = int(length_text) if length_text.isdigit() else 0
        record = data[at : at + length]
        key, separator, value = record[len(length_text) + 1 :].partition(b"=")
        if not separator or len(record) != length or not record.endswith(b"\n"):
            raise ArchiveInvalidError("a damaged tar")
        if key in _TOLD:
            records[key.decode("ascii")] = value[:-1].decode("utf-8", "surrogateescape")
        elif key.startswith(_SPARSE):
            records[_IS_SPARSE] = ""
        at += length
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
