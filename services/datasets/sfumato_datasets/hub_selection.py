"""Which files of a dataset of the Hub an import reads, decided from their paths and sizes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from sfumato_datasets.archive_files import safe_parts, system_part
from sfumato_datasets.captions import METADATA_SOURCES
from sfumato_datasets.hub_request import (
    MAX_IMAGES,
    HubNotFoundError,
    HubRequest,
    HubTooLargeError,
    HubUnsupportedError,
)
from sfumato_datasets.hub_splits import files_of_split
from sfumato_datasets.names import collision_key, is_unicode
from sfumato_datasets.notes import printable_name
from sfumato_imaging.formats import SUFFIXES

_MAX_PATH_CHARACTERS: Final = 1024
_SIDECARS: Final = (".txt", ".caption")
_METADATA: Final = tuple(source.value for source in METADATA_SOURCES)
_REPOSITORY_FILES: Final = (
    ".gitattributes",
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
            describe any, without those that every repository has.
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
        HubTooLargeError: More images than are imported at once.
    """
    if not sizes:
        where = f"in a folder {printable_name(source.folder)}" if source.folder else "there"
        raise HubNotFoundError(f"no file lies {where}")
    unsafe = sorted(path for path in sizes if not _is_safe(path))
    hidden = [path for path in sizes if _is_safe(path) and system_part(path) is not None]
    paths = sorted(path for path in sizes if _is_safe(path) and system_part(path) is None)
    images = [path for path in paths if _suffix(path) in SUFFIXES]
    parquet = [path for path in paths if _suffix(path) == ".parquet"]
    if not images and not parquet and not unsafe:
        raise HubUnsupportedError("neither images nor Parquet lie there")
    if len(unsafe) > MAX_IMAGES:
        raise HubTooLargeError(f"more than {MAX_IMAGES} files have names that cannot be used")
    if _total(sizes, parquet) > _total(sizes, images):
        return Selection(
            parquet=tuple(files_of_split(parquet, source.split)),
            unsafe=tuple(unsafe),
            num_left_out=len(images),
        )
    wanted = images[: source.max_samples]
    if len(wanted) > MAX_IMAGES:
        raise HubTooLargeError(
            f"{len(wanted)} images, of which this server imports at most {MAX_IMAGES} at once"
        )
    sidecars, metadata = _beside(paths, wanted)
    used = {*images, *(path for group in _beside(paths, images) for path in group)}
    return Selection(
        images=tuple(wanted),
        sidecars=sidecars,
        metadata=metadata,
        unsafe=tuple(unsafe),
        num_left_out=sum(
            1 for path in (*paths, *hidden) if path not in used and not _is_usual(path)
        ),
    )


def _is_safe(path: str) -> bool:
    """Whether a path leads down, and can be asked for."""
    return len(path) <= _MAX_PATH_CHARACTERS and is_unicode(path) and safe_parts(path) is not None


def _beside(paths: Sequence[str], images: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The sidecars of images, and the metadata files in their folders and above."""
    stems = {_stem_key(path) for path in images}
    folders = {folder for path in images for folder in PurePosixPath(path).parents}
    return (
        tuple(path for path in paths if _suffix(path) in _SIDECARS and _stem_key(path) in stems),
        tuple(
            path
            for path in paths
            if PurePosixPath(path).name in _METADATA and PurePosixPath(path).parent in folders
        ),
    )


def _stem_key(path: str) -> str:
    """What an image and its sidecars share, as in an import, with their folder."""
    return collision_key(str(PurePosixPath(path).with_suffix("")))


def _is_usual(path: str) -> bool:
    return path.lower() in _REPOSITORY_FILES


def _suffix(path: str) -> str:
    return PurePosixPath(path).suffix.lower()


def _total(sizes: Mapping[str, int], paths: Iterable[str]) -> int:
    return sum(sizes[path] for path in paths)
