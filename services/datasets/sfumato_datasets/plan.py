"""What an import will do with each file, decided from the names alone."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from sfumato_datasets.captions import METADATA_SOURCES, CaptionSource
from sfumato_datasets.names import (
    UnsafeNameError,
    check_file_name,
    colliding,
    sharing_stem,
    stem_key,
)
from sfumato_datasets.notes import ImportNote, printable_name, refusal, remark
from sfumato_datasets.sources import FileKind, SourceEntry
from sfumato_imaging.formats import SUFFIXES

_SIDECARS: Final = {".txt": CaptionSource.TXT, ".caption": CaptionSource.CAPTION}
_MEDIA_NOT_READ: Final = (".mp4", ".mov", ".mkv", ".webm", ".heic", ".heif", ".jxl")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedImage:
    """An image and the names of the sidecars it has."""

    file_name: str
    sidecars: Mapping[CaptionSource, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportPlan:
    """Images by name, metadata files in order of precedence, and what is said of the rest."""

    images: tuple[PlannedImage, ...]
    metadata: tuple[CaptionSource, ...]
    notes: tuple[ImportNote, ...]


def plan_import(entries: Sequence[SourceEntry]) -> ImportPlan:
    """Sort files into images, sidecars, metadata and others, and refuse names.

    Refused: unsafe names; all names of a group that some file system takes for one; all images of
    one stem, because a caption file could belong to either; what is no regular file; clips and
    image formats that are not read. An image whose sidecar is refused is refused with it, so that
    it is not silently trained without its caption. Folders and other files are left out and noted.
    """
    notes: list[ImportNote] = []
    names: list[str] = []
    irregular: list[str] = []
    for entry in entries:
        if entry.kind is FileKind.FOLDER:
            notes.append(remark(entry.name, "FOLDER_IGNORED", "only files at the top are read"))
        elif entry.kind is FileKind.SYSTEM:
            notes.append(remark(entry.name, "FILE_IGNORED", "hidden, or of an operating system"))
        elif entry.kind is FileKind.OTHER:
            notes.append(refusal(entry.name, "FILE_UNREADABLE", "no regular file"))
            irregular.append(entry.name)
        else:
            names.append(entry.name)
    safe_names, name_notes = _refuse_names(names)
    media = [name for name in safe_names if _suffix(name) in SUFFIXES]
    twins = sharing_stem([name for name in names if _suffix(name) in SUFFIXES])
    json_names = {entry.name for entry in entries if entry.is_sidecar}
    bad_sidecars = _sidecars({*names, *irregular}.difference(safe_names), json_names)
    sidecars = _sidecars(safe_names, json_names)
    notes += name_notes
    images: list[PlannedImage] = []
    for name in sorted(media):
        problem = _image_problem(name, twins, bad_sidecars)
        if problem is not None:
            notes.append(problem)
            continue
        stem = stem_key(name)
        images.append(
            PlannedImage(
                file_name=name,
                sidecars=sidecars.get(stem, {}),
            )
        )
    notes += _notes_on_others(safe_names, json_names, {stem_key(name) for name in media})
    return ImportPlan(
        images=tuple(images),
        metadata=tuple(source for source in METADATA_SOURCES if source.value in safe_names),
        notes=tuple(notes),
    )


def _refuse_names(names: Sequence[str]) -> tuple[list[str], list[ImportNote]]:
    """Names that may be used, in order, and a note for each other one."""
    notes: list[ImportNote] = []
    safe: list[str] = []
    twins = colliding(name for name in names if not _is_hidden(name))
    for name in dict.fromkeys(names):
        try:
            check_file_name(name)
        except UnsafeNameError as error:
            notes.append(refusal(name, error.reason, str(error)))
            continue
        others = twins.get(name, ())
        if name in others:
            notes.append(refusal(name, "NAME_DUPLICATE", "given more than once"))
        elif others:
            notes.append(refusal(name, "NAME_COLLISION", f"one file with {_listed(others)}"))
        else:
            safe.append(name)
    return safe, notes


def _image_problem(
    name: str,
    twins: Mapping[str, tuple[str, ...]],
    bad_sidecars: Mapping[str, Mapping[CaptionSource, str]],
) -> ImportNote | None:
    if name in twins:
        return refusal(name, "STEM_DUPLICATE", f"same stem as {_listed(twins[name])}")
    for sidecar in bad_sidecars.get(stem_key(name), {}).values():
        message = f"its caption file {printable_name(sidecar)} is refused"
        return refusal(name, "CAPTION_REFUSED", message)
    return None


def _sidecars(
    names: Iterable[str], json_names: Container[str]
) -> Mapping[str, Mapping[CaptionSource, str]]:
    """Those of the names that are sidecars, by stem and then by what they are."""
    found: dict[str, dict[CaptionSource, str]] = {}
    for name in sorted(names):
        source = CaptionSource.JSON if name in json_names else _SIDECARS.get(_suffix(name))
        if source is not None:
            found.setdefault(stem_key(name), {})[source] = name
    return found


def _notes_on_others(
    names: Iterable[str], json_names: Container[str], image_stems: set[str]
) -> list[ImportNote]:
    notes: list[ImportNote] = []
    metadata_names = [source.value for source in METADATA_SOURCES]
    for name in names:
        suffix = _suffix(name)
        if suffix in SUFFIXES or name in metadata_names:
            continue
        if suffix in _MEDIA_NOT_READ:
            notes.append(refusal(name, "MEDIA_UNSUPPORTED", f"{suffix} files are not read"))
        elif suffix not in _SIDECARS and name not in json_names:
            notes.append(remark(name, "FILE_IGNORED", "neither an image nor a caption"))
        elif stem_key(name) not in image_stems:
            notes.append(remark(name, "CAPTION_WITHOUT_IMAGE", "no image has this stem"))
    return notes


def _is_hidden(name: str) -> bool:
    return name.startswith(".")


def _suffix(name: str) -> str:
    """Lower case; none for a hidden file, whatever it ends with."""
    return "" if _is_hidden(name) else PurePosixPath(name).suffix.lower()


def _listed(names: Sequence[str]) -> str:
    return ", ".join(printable_name(name) for name in names[:3]) + (", …" if len(names) > 3 else "")
