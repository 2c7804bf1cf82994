"""Which files of a dataset of the Hub an import reads, decided from their paths and sizes."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from sfumato_datasets.archive_files import safe_parts, system_part
from sfumato_datasets.captions import METADATA_SOURCES
from sfumato_datasets.hub_request import (
    DEFAULT_SPLIT,
    HubNotFoundError,
    HubRequest,
    HubUnsupportedError,
)
from sfumato_imaging.formats import SUFFIXES

_SIDECARS: Final = (".txt", ".caption")
_METADATA: Final = tuple(source.value for source in METADATA_SOURCES)
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
_REPOSITORY_FILES: Final = (
    "readme.md",
    "license",
    "license.md",
    "license.txt",
    "dataset_infos.json",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Either images with what describes them, or Parquet.

    Attributes:
        unsafe: Paths that lead anywhere but down; none of them is fetched.
        num_left_out: Images beside Parquet; of a folder of images, files that are neither images nor
            captions, without those that every repository has.
    """

    images: tuple[str, ...] = ()
    sidecars: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()
    parquet: tuple[str, ...] = ()
    unsafe: tuple[str, ...] = ()
    num_left_out: int = 0


def select_files(sizes: Mapping[str, int], source: HubRequest) -> Selection:
    """Images, as many as were asked for, with their sidecars and metadata; or the Parquet of a split.

    Where both lie there, that which takes more bytes is the dataset.

    Args:
        sizes: Of every file in the folder that was asked for, by path.

    Raises:
        HubNotFoundError: No file lies there.
        HubUnsupportedError: Neither images nor Parquet of that split.
    """
    if not sizes:
        where = f"in a folder {source.folder!r}" if source.folder else "there"
        raise HubNotFoundError(f"no file lies {where}")
    unsafe = sorted(path for path in sizes if safe_parts(path) is None)
    paths = sorted(path for path in sizes if safe_parts(path) and system_part(path) is None)
    images = [path for path in paths if _suffix(path) in SUFFIXES]
    parquet = [path for path in paths if _suffix(path) == ".parquet"]
    if not images and not parquet and not unsafe:
        raise HubUnsupportedError("neither images nor Parquet lie there")
    if _total(sizes, parquet) > _total(sizes, images):
        return Selection(
            parquet=tuple(_of_split(parquet, source)),
            unsafe=tuple(unsafe),
            num_left_out=len(images),
        )
    return _image_folder(paths, images[: source.max_samples], unsafe)


def _image_folder(paths: Sequence[str], images: Sequence[str], unsafe: Sequence[str]) -> Selection:
    stems = {PurePosixPath(path).with_suffix("") for path in images}
    folders = {folder for path in images for folder in PurePosixPath(path).parents}
    sidecars = [
        path
        for path in paths
        if _suffix(path) in _SIDECARS and PurePosixPath(path).with_suffix("") in stems
    ]
    metadata = [
        path
        for path in paths
        if PurePosixPath(path).name in _METADATA and PurePosixPath(path).parent in folders
    ]
    others = (
        path
        for path in paths
        if not (_suffix(path) in (*SUFFIXES, *_SIDECARS) or PurePosixPath(path).name in _METADATA)
    )
    return Selection(
        images=tuple(images),
        sidecars=tuple(sidecars),
        metadata=tuple(metadata),
        unsafe=tuple(unsafe),
        num_left_out=sum(1 for path in others if path.lower() not in _REPOSITORY_FILES),
    )


def _of_split(parquet: Sequence[str], source: HubRequest) -> Sequence[str]:
    """The Parquet files whose paths name the split; where none names any, those are the default's."""
    named = [path for path in parquet if _names(path, source.split)]
    if not named and source.split == DEFAULT_SPLIT:
        named = [
            path for path in parquet if not any(_names(path, split) for split in _OTHER_SPLITS)
        ]
    if not named:
        raise HubUnsupportedError(f"no Parquet of a split {source.split!r} lies there")
    return named


def _names(path: str, split: str) -> bool:
    """Whether a path has the split as a word of its own, between `-._ /`, digits and its ends."""
    return re.search(rf"(?<![^-._ 0-9/]){re.escape(split)}(?![^-._ 0-9/])", path) is not None


def _suffix(path: str) -> str:
    return PurePosixPath(path).suffix.lower()


def _total(sizes: Mapping[str, int], paths: Iterable[str]) -> int:
    return sum(sizes[path] for path in paths)
