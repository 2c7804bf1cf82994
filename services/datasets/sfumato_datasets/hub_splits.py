"""Which Parquet files of a dataset of the Hub are those of a split, by the ways the Hub names them."""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from sfumato_datasets.hub_request import DEFAULT_SPLIT, HubUnsupportedError
from sfumato_datasets.notes import printable_name

_OTHER_SPLITS: Final = (
    "test",
    "testing",
    "eval",
    "evaluation",
    "validation",
    "valid",
    "val",
    "dev",
)
# https://huggingface.co/docs/hub/datasets-file-names-and-splits, sharded files
_SHARD: Final = re.compile(r"(.+)-[0-9]{5,}-of-[0-9]{5,}(-[0-9a-f]+)?", re.IGNORECASE)
_NUMBER: Final = re.compile(r"[-._ ]?[0-9]+$")
_PARTIAL: Final = "partial-"
"""In front of the folder of a split that the Hub has converted in part."""
_MAX_SHOWN: Final = 10


def files_of_split(parquet: Sequence[str], split: str) -> Sequence[str]:
    """The Parquet files of a split.

    They have its name in front of the number of a shard, or as their own or their folder's name; where
    none has, it is a word of their paths. The default split is else whatever names no other.

    Args:
        parquet: Paths, in order.

    Raises:
        HubUnsupportedError: There is none, or they lie in several folders, each a dataset of its own.
    """
    exact = [path for path in parquet if _is_called(path, split)]
    if exact:
        folders = list(dict.fromkeys(_folder(path, split) for path in exact))
        if len(folders) > 1:
            shown = ", ".join(map(printable_name, folders[:_MAX_SHOWN]))
            raise HubUnsupportedError(
                f"several folders have a split {printable_name(split)}, choose one: {shown}"
            )
        return exact
    found = [path for path in parquet if _has_word(path, split)]
    if not found and split == DEFAULT_SPLIT:
        found = [path for path in parquet if not any(_is_of(path, each) for each in _OTHER_SPLITS)]
    if not found:
        raise HubUnsupportedError(f"no Parquet of a split {printable_name(split)} lies there")
    return found


def _is_of(path: str, split: str) -> bool:
    return _is_called(path, split) or _has_word(path, split)


def _is_called(path: str, split: str) -> bool:
    return split.casefold() in (_file_split(path).casefold(), _folder_split(path).casefold())


def _file_split(path: str) -> str:
    """What the name of a file says; empty where that is a number alone."""
    stem = PurePosixPath(path).stem
    shard = _SHARD.fullmatch(stem)
    return shard[1] if shard is not None else _NUMBER.sub("", stem)


def _folder_split(path: str) -> str:
    """What the folder of a file says whose own name says nothing."""
    return "" if _file_split(path) else PurePosixPath(path).parent.name.removeprefix(_PARTIAL)


def _folder(path: str, split: str) -> str:
    """The folder of a dataset of its own in which a file of a split lies."""
    parent = PurePosixPath(path).parent
    return str(parent if _file_split(path).casefold() == split.casefold() else parent.parent)


def _has_word(path: str, split: str) -> bool:
    """Whether a path has the split as a word of its own, between `-._ /`, digits and its ends."""
    if _SHARD.fullmatch(PurePosixPath(path).stem) is not None:
        path = str(PurePosixPath(path).parent)  # the name of a shard says which split it is of
    pattern = rf"(?<![^-._ 0-9/]){re.escape(split)}(?![^-._ 0-9/])"
    return re.search(pattern, path, re.IGNORECASE) is not None
