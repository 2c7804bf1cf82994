"""What an import says while it runs: of single files, and how far it is."""

from dataclasses import dataclass
from typing import Final

MAX_PRINTED_CHARACTERS: Final = 300
"""Of a name in a note; no name of an accepted file is longer, but those of archives can be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportNote:
    """`refused`: the file is not in the new version. `reason` is stable and upper snake case."""

    file_name: str
    refused: bool
    reason: str
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestProgress:
    """`num_files` counts images; `num_bytes_done` the bytes of those done."""

    num_files_done: int
    num_files: int
    num_bytes_done: int


def printable_name(file_name: str) -> str:
    """The name with everything escaped that would not survive UTF-8 or a terminal, cut where too long."""
    shown = "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in file_name[: MAX_PRINTED_CHARACTERS + 1]
    )
    if len(shown) <= MAX_PRINTED_CHARACTERS:
        return shown
    return shown[: MAX_PRINTED_CHARACTERS - 1] + "…"


def refusal(file_name: str, reason: str, message: str) -> ImportNote:
    """A note that the file was left out."""
    return ImportNote(
        file_name=printable_name(file_name), refused=True, reason=reason, message=message
    )


def remark(file_name: str, reason: str, message: str) -> ImportNote:
    """A note that keeps no file out."""
    return ImportNote(
        file_name=printable_name(file_name), refused=False, reason=reason, message=message
    )
