"""Names of datasets and of the files in them.

File names never reach this machine's file system, but datasets are exported to any: a name must be
usable on Linux, macOS and Windows, and no two may mean one file on any of them.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import ClassVar, Final

MAX_FILE_NAME_BYTES: Final = 255
SEPARATOR: Final = "__"
"""Stands for each separator in the names of files that lie in folders."""

_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")
_DATASET_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,127}")
_FORBIDDEN_CHARACTERS: Final = frozenset('/\\:*?"<>|')
_FORBIDDEN_CATEGORIES: Final = ("Cc", "Cs", "Zl", "Zp")
_TURNING_CHARACTERS: Final = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Embeddings, overrides and isolates of writing direction, with which a name shows another suffix."""
_DEVICES: Final = frozenset(
    ["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"]
    + [f"{port}{number}" for port in ("COM", "LPT") for number in "0123456789¹²³"]
)
"""Windows opens these as devices, whatever suffix follows."""


class DatasetNameError(Exception):
    """The name of a dataset breaks the rule."""

    reason: ClassVar[str] = "FIELD_INVALID"


class UnsafeNameError(Exception):
    """The name of a file is not usable everywhere."""

    reason: ClassVar[str] = "NAME_UNSAFE"


def check_dataset_name(name: str) -> None:
    """Letters, digits, dot, underscore, space, hyphen; at most 128, beginning with the first two.

    Raises:
        DatasetNameError: another character, `..`, a trailing dot or space, a Windows device name.
    """
    if _DATASET_NAME.fullmatch(name) is None:
        raise DatasetNameError(
            "must be 1 to 128 letters, digits, dots, underscores, spaces and hyphens,"
            " the first a letter or digit"
        )
    if ".." in name:
        raise DatasetNameError("must not contain two dots in a row")
    _check_ending_and_device(name, DatasetNameError)


def check_file_name(name: str) -> None:
    """One path component, usable on every file system.

    Raises:
        UnsafeNameError: empty, too long, a separator, drive or stream mark, wildcard, control
            character, change of writing direction or lone surrogate, `.` or `..`, a leading
            space, a trailing dot or space, or a Windows device name.
    """
    if not name:
        raise UnsafeNameError("must not be empty")
    if len(name.encode("utf-8", "surrogatepass")) > MAX_FILE_NAME_BYTES:
        raise UnsafeNameError(f"must not be longer than {MAX_FILE_NAME_BYTES} bytes")
    for character in name:
        if character in _FORBIDDEN_CHARACTERS:
            raise UnsafeNameError(f"must not contain {character}")
        category = unicodedata.category(character)
        if category in _FORBIDDEN_CATEGORIES or character in _TURNING_CHARACTERS:
            raise UnsafeNameError(f"must not contain U+{ord(character):04X}")
    if name.startswith(" "):
        raise UnsafeNameError("must not begin with a space")
    _check_ending_and_device(name, UnsafeNameError)


def is_unicode(text: str) -> bool:
    """Whether text survives UTF-8: no half of a surrogate pair stands alone in it."""
    return text.isascii() or _SURROGATE.search(text) is None


def collision_key(name: str) -> str:
    """Equal for names that some file system takes for one: by case or Unicode normalisation."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def stem_key(file_name: str) -> str:
    """What an image and its caption files share."""
    return collision_key(PurePosixPath(file_name).stem)


def colliding(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Each name that is not alone under its collision key, with the others under it, sorted."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[collision_key(name)].append(name)
    return _others_in(groups)


def sharing_stem(media_names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Each media file whose stem another has too, with the others, sorted."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in media_names:
        groups[stem_key(name)].append(name)
    return _others_in(groups)


def _others_in(groups: dict[str, list[str]]) -> dict[str, tuple[str, ...]]:
    others: dict[str, tuple[str, ...]] = {}
    for group in groups.values():
        for index, name in enumerate(group):
            if len(group) > 1:
                others[name] = tuple(sorted(group[:index] + group[index + 1 :]))
    return others


def _check_ending_and_device(
    name: str, error: type[DatasetNameError] | type[UnsafeNameError]
) -> None:
    if name.endswith((".", " ")):
        raise error("must not end with a dot or a space")
    device = name.partition(".")[0].rstrip(" ").upper()
    if device in _DEVICES:
        raise error(f"must not be the device name {device}")
