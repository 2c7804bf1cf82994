"""What archives of every kind have in common: entries, limits, and what is wrong with them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from sfumato_datasets.sources import FileKind


class ArchiveError(Exception):
    """Base of what makes a whole archive unusable; the message names it."""

    reason: ClassVar[str] = "ARCHIVE_INVALID"


class ArchiveInvalidError(ArchiveError):
    """Damaged, encrypted, or of no kind that is read."""


class ArchiveTooLargeError(ArchiveError):
    """It holds more entries or bytes than an import takes, or expands too much."""

    reason = "ARCHIVE_TOO_LARGE"


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchiveLimits:
    """What an import takes of one archive.

    Attributes:
        max_entries: Of every kind.
        max_bytes: Uncompressed, in all.
        max_ratio: Uncompressed bytes for one compressed, in all and for each entry; what stays below
            `free_bytes` may expand as it likes.
        max_directory_bytes: Of a zip's list of its entries, which is read as a whole, and of all of a
            tar's extended headers.
        max_header_bytes: Of a tar's extended header of one entry.
    """

    max_entries: int = 100_000
    max_bytes: int = 200 << 30
    max_ratio: int = 100
    free_bytes: int = 1 << 20
    max_directory_bytes: int = 64 << 20
    max_header_bytes: int = 64 << 10

    def check_entries(self, count: int) -> None:
        """Raises ArchiveTooLargeError."""
        if count > self.max_entries:
            raise ArchiveTooLargeError(f"more than {self.max_entries} entries")

    def check_expansion(self, num_bytes: int, num_compressed_bytes: int) -> None:
        """Raises ArchiveTooLargeError for what is, or says that it is, too large or a bomb."""
        if num_bytes > self.max_bytes:
            raise ArchiveTooLargeError(f"more than {self.max_bytes} bytes")
        if num_bytes > max(self.free_bytes, self.max_ratio * num_compressed_bytes):
            raise ArchiveTooLargeError(f"expands to more than {self.max_ratio} times its size")


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """An entry that is no folder.

    Attributes:
        path: As the archive has it, whatever it holds.
        read: At most so many bytes of it; may be called by several threads at once. Raises
            FileUnreadableError.
    """

    path: str
    kind: FileKind
    read: Callable[[int], bytes]
