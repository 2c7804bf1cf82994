"""Entries of a zip archive, read where they lie.

Format: PKWARE's APPNOTE.TXT 6.3.10; 4.3.14 to 4.3.16 for the end of the archive.
"""

import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import BinaryIO, Final

from sfumato_datasets.archives import (
    ArchiveInvalidError,
    ArchiveLimits,
    ArchiveTooLargeError,
    Member,
)
from sfumato_datasets.sources import FileKind, FileUnreadableError

_END: Final = struct.Struct("<4s4H2LH")
_END_SIGNATURE: Final = b"PK\x05\x06"
_END64_LOCATOR: Final = struct.Struct("<4sLQL")
_END64: Final = struct.Struct("<4sQ2H2L4Q")
_MAX_COMMENT_BYTES: Final = 0xFFFF
_ENCRYPTED: Final = 1
_READ_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The decoders of others have no limit to what one step may yield."""
_DAMAGE: Final = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    ValueError,
    OSError,
)


def list_zip(file: BinaryIO, limits: ArchiveLimits, stack: ExitStack) -> Sequence[Member]:
    """The members of a zip.

    Args:
        stack: Keeps the archive open for as long as its members are read.

    Raises:
        ArchiveInvalidError, ArchiveTooLargeError
    """
    _check_directory(file, limits)
    try:
        archive = stack.enter_context(zipfile.ZipFile(file))
    except (*_DAMAGE, UnicodeDecodeError, struct.error) as error:
        raise ArchiveInvalidError("a damaged zip") from error
    infos = archive.infolist()
    limits.check_entries(len(infos))
    limits.check_expansion(sum(info.file_size for info in infos), _size_of(file))
    members: list[Member] = []
    for info in infos:
        if info.flag_bits & _ENCRYPTED:
            raise ArchiveInvalidError("an encrypted zip")
        if not info.is_dir():
            limits.check_expansion(info.file_size, info.compress_size)
            # Not `filename`, which ends at the first NUL.
            path = info.orig_filename
            members.append(Member(path=path, kind=_kind(info), read=partial(_read, archive, info)))
    return members


def _check_directory(file: BinaryIO, limits: ArchiveLimits) -> None:
    """Refuses a list of entries that would fill the memory before anybody can count them."""
    size = _size_of(file)
    start = max(0, size - _MAX_COMMENT_BYTES - _END.size - _END64_LOCATOR.size)
    tail = os.pread(file.fileno(), size - start, start)
    at = tail.rfind(_END_SIGNATURE, 0, len(tail) - _END.size + len(_END_SIGNATURE))
    if at < 0:
        raise ArchiveInvalidError("a zip without its end")
    num_directory_bytes = _END.unpack_from(tail, at)[5]
    if at >= _END64_LOCATOR.size:
        locator = _END64_LOCATOR.unpack_from(tail, at - _END64_LOCATOR.size)
        record = b""
        if locator[0] == b"PK\x06\x07" and locator[2] < size:
            record = os.pread(file.fileno(), _END64.size, locator[2])
        if len(record) == _END64.size and record.startswith(b"PK\x06\x06"):
            num_directory_bytes = max(num_directory_bytes, _END64.unpack(record)[8])
    if num_directory_bytes > min(limits.max_directory_bytes, size):
        if num_directory_bytes > size:
            raise ArchiveInvalidError("a damaged zip")
        raise ArchiveTooLargeError(f"more than {limits.max_entries} entries")


def _kind(info: zipfile.ZipInfo) -> FileKind:
    file_type = stat.S_IFMT(info.external_attr >> 16)
    return FileKind.FILE if file_type in (0, stat.S_IFREG) else FileKind.OTHER


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo, max_bytes: int) -> bytes:
    if info.compress_type not in _READ_METHODS:
        raise FileUnreadableError("compressed in a way that is not read")
    try:
        with archive.open(info) as entry:
            return entry.read(max_bytes)
    except _DAMAGE as error:
        raise FileUnreadableError("damaged in the archive") from error


def _size_of(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size
