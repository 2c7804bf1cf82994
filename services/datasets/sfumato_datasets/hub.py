"""Datasets of the Hugging Face Hub as sources of an import: images in a folder with their captions.

They are read from the Hub's cache on this machine, at one commit; nothing is downloaded.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import ClassVar, Final

from sfumato_datasets.archive_files import ArchiveFiles
from sfumato_datasets.archives import Member
from sfumato_datasets.captions import METADATA_SOURCES
from sfumato_datasets.sources import FileKind, FileUnreadableError, SourceFiles
from sfumato_imaging.formats import SUFFIXES

DEFAULT_REVISION: Final = "main"
DEFAULT_SPLIT: Final = "train"

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_REF: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")
_SIDECARS: Final = (".txt", ".caption")
_METADATA: Final = tuple(source.value for source in METADATA_SOURCES)


class HubError(Exception):
    """Base of what the Hub does not give; the message names the dataset."""

    reason: ClassVar[str] = "HUB_UNREACHABLE"


class HubNotFoundError(HubError):
    """There is no such revision or folder."""

    reason = "HUB_NOT_FOUND"


class HubUnsupportedError(HubError):
    """It does not consist of images in a folder."""

    reason = "HUB_UNSUPPORTED"


@dataclass(frozen=True, kw_only=True, slots=True)
class HubRequest:
    """What is asked of the Hub. `split` and `image_column` are for Parquet."""

    id: str
    revision: str | None = None
    folder: str = ""
    split: str = DEFAULT_SPLIT
    image_column: str | None = None
    caption_column: str | None = None
    max_samples: int | None = None


def hub_cache(environment: Mapping[str, str]) -> Path:
    """The Hub's cache on this machine, by the variables that the Hub's own library heeds."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environment.get(name):
            return Path(environment[name]).expanduser()
    shared = environment.get("XDG_CACHE_HOME") or "~/.cache"
    home = environment.get("HF_HOME") or f"{shared}/huggingface"
    return Path(home).expanduser() / "hub"


@contextmanager
def open_hub_dataset(
    source: HubRequest, *, cache: Path, on_revision: Callable[[str], None]
) -> Iterator[SourceFiles]:
    """The images, sidecars and metadata of a dataset, at one commit.

    Args:
        cache: That of the Hub.
        on_revision: Called with the commit before anything is read.

    Raises:
        HubError: The cache does not hold the dataset.
        HubNotFoundError: No such revision or folder.
        HubUnsupportedError: No image lies there, or metadata in a folder that is not that of all images.
    """
    repository = cache / f"datasets--{source.id.replace('/', '--')}"
    if not repository.is_dir():
        raise HubError(f"{source.id}: not in the server's Hub cache, and nothing is downloaded")
    commit = _commit(repository, source)
    on_revision(commit)
    paths = _paths(repository / "snapshots" / commit, source)
    blobs = repository.resolve()
    members = [
        Member(
            path=path.as_posix(),
            kind=FileKind.FILE,
            read=partial(_read, repository / "snapshots" / commit / path, blobs),
        )
        for path in _wanted(paths, source)
    ]
    yield ArchiveFiles(members, json_sidecars=False)


def _commit(repository: Path, source: HubRequest) -> str:
    revision = source.revision or DEFAULT_REVISION
    commit = revision
    if _COMMIT.fullmatch(revision) is None:
        if _REF.fullmatch(revision) is None or ".." in revision:
            raise HubNotFoundError(f"{source.id}: no revision of that name can be")
        try:
            commit = (repository / "refs" / revision).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            commit = ""
    if _COMMIT.fullmatch(commit) is None or not (repository / "snapshots" / commit).is_dir():
        raise HubNotFoundError(f"{source.id}: the server's Hub cache has no revision {revision}")
    return commit


def _paths(snapshot: Path, source: HubRequest) -> Sequence[PurePosixPath]:
    """What lies in the folder that was asked for, relative to the snapshot."""
    folder = PurePosixPath(source.folder)
    if folder.is_absolute() or ".." in folder.parts:
        raise HubNotFoundError(f"{source.id}: no folder of that name can be")
    found: list[PurePosixPath] = []
    for at, _, names in os.walk(snapshot / folder):
        found += (PurePosixPath(Path(at, name).relative_to(snapshot)) for name in names)
    if not found:
        raise HubNotFoundError(f"{source.id}: no folder {source.folder!r} with files in it")
    return sorted(found)


def _wanted(paths: Sequence[PurePosixPath], source: HubRequest) -> Sequence[PurePosixPath]:
    """Images, as many as were asked for, with their sidecars, and all metadata."""
    images = [path for path in paths if path.suffix.lower() in SUFFIXES]
    if not images:
        raise HubUnsupportedError(f"{source.id}: no image lies there; Parquet is not read")
    images = images[: source.max_samples]
    stems = {path.with_suffix("") for path in images}
    metadata = [path for path in paths if path.name in _METADATA]
    for path in metadata:
        if not all(image.is_relative_to(path.parent) for image in images):
            raise HubUnsupportedError(
                f"{source.id}: {path} does not describe every image; name a folder to import alone"
            )
    return [
        *images,
        *metadata,
        *(
            path
            for path in paths
            if path.suffix.lower() in _SIDECARS and path.with_suffix("") in stems
        ),
    ]


def _read(path: Path, repository: Path, max_bytes: int) -> bytes:
    try:
        real = path.resolve(strict=True)
        if not real.is_relative_to(repository) or not real.is_file():
            raise FileUnreadableError("no regular file of the cache")
        with real.open("rb") as file:
            return file.read(max_bytes)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise FileUnreadableError("cannot be read in the cache") from error
