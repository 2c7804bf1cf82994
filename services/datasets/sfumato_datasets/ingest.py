"""A set of captioned files becomes a manifest, and its images become blobs.

Blocking code: a service runs it in a thread of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import ClassVar, Final, Literal, Protocol

from sfumato_datasets.captions import (
    DEFAULT_COLUMN,
    MAX_METADATA_BYTES,
    MAX_SIDECAR_BYTES,
    METADATA_SOURCES,
    SIDECAR_SOURCES,
    CaptionError,
    MetadataTable,
    ResolvedCaption,
    read_metadata,
    resolve_caption,
)
from sfumato_datasets.manifest import Manifest, Sample, digest_of
from sfumato_datasets.names import collision_key, stem_key
from sfumato_datasets.notes import (
    ImportNote,
    IngestProgress,
    printable_name,
    refusal,
    remark,
)
from sfumato_datasets.plan import ImportPlan, PlannedImage, plan_import
from sfumato_datasets.sources import FileTooLargeError, FileUnreadableError, SourceFiles
from sfumato_datasets.verifier import ImageRefusedError, Verifier
from sfumato_imaging.facts import MAX_FILE_BYTES, ImageFacts
from sfumato_imaging.formats import MEDIA_TYPES, SUFFIXES

EMPTY: Final = Manifest(samples=())


class IngestError(Exception):
    """Base of what ends an import; `notes` are those made until then."""

    reason: ClassVar[str] = "IMPORT_FAILED"

    def __init__(self, message: str, notes: Sequence[ImportNote] = ()) -> None:
        super().__init__(message)
        self.notes = tuple(notes)


class FilesRefusedError(IngestError):
    """A file was refused and the import was to stop at the first, or its metadata is unusable."""

    reason = "FILES_REFUSED"


class NothingImportedError(IngestError):
    """No image was accepted, and the dataset would hold none."""

    reason = "DATASET_EMPTY"


class IngestCancelledError(IngestError):
    reason = "CANCELLED"


class BlobSink(Protocol):
    def put(self, data: bytes) -> str:
        """Store the bytes, unless they are there, and return `sha256:` and their digest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestOptions:
    """`caption_column`: None means DEFAULT_COLUMN where the metadata has it."""

    on_refused: Literal["stop", "skip"] = "stop"
    caption_column: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestResult:
    """`manifest` holds what was there before and what was accepted now."""

    manifest: Manifest
    num_accepted: int
    notes: tuple[ImportNote, ...]


def _no_progress(progress: IngestProgress) -> None:
    """For callers that do not watch."""


def _no_note(note: ImportNote) -> None:
    """For callers that read the notes of the result."""


def ingest(
    source: SourceFiles,
    *,
    verifier: Verifier,
    blobs: BlobSink,
    existing: Manifest = EMPTY,
    options: IngestOptions = IngestOptions(),
    on_progress: Callable[[IngestProgress], None] = _no_progress,
    on_note: Callable[[ImportNote], None] = _no_note,
    cancelled: Callable[[], bool] = lambda: False,
) -> IngestResult:
    """Verify, caption and store every image of a source.

    Args:
        existing: what the dataset holds. Its samples all stay as they are: an image of a name
            that is there is noted when its bytes are the same, and refused otherwise.
        on_progress: called before the first image and after each.
        on_note: called with each note when it is made.
        cancelled: asked before each image.

    Raises:
        FilesRefusedError, NothingImportedError, IngestCancelledError
    """
    run = _Ingest(source, verifier, blobs, existing, options, on_note)
    plan = plan_import(source.entries())
    for note in plan.notes:
        run.note(note)
    run.stop_if_refused()
    tables = run.read_tables(plan)
    num_bytes_done = 0
    num_files = len(plan.images)
    on_progress(IngestProgress(num_files_done=0, num_files=num_files, num_bytes_done=0))
    for index, image in enumerate(plan.images, start=1):
        if cancelled():
            raise IngestCancelledError("the import was cancelled", run.notes)
        num_bytes_done += run.take(image, tables)
        run.stop_if_refused()
        on_progress(
            IngestProgress(num_files_done=index, num_files=num_files, num_bytes_done=num_bytes_done)
        )
    return run.result()


class _Ingest:
    """One import while it runs: what was accepted and what was noted so far."""

    def __init__(
        self,
        source: SourceFiles,
        verifier: Verifier,
        blobs: BlobSink,
        existing: Manifest,
        options: IngestOptions,
        on_note: Callable[[ImportNote], None],
    ) -> None:
        self._source = source
        self._verifier = verifier
        self._blobs = blobs
        self._existing = {sample.file_name: sample for sample in existing.samples}
        self._taken_stems = {
            stem_key(sample.file_name): sample.file_name for sample in existing.samples
        }
        self._options = options
        self._on_note = on_note
        self._accepted: list[Sample] = []
        self.notes: list[ImportNote] = []
        self._first_refused: ImportNote | None = None

    def note(self, note: ImportNote) -> None:
        self.notes.append(note)
        if note.refused and self._first_refused is None:
            self._first_refused = note
        self._on_note(note)

    def stop_if_refused(self) -> None:
        refused = self._first_refused
        if refused is not None and self._options.on_refused == "stop":
            raise FilesRefusedError(f"{refused.file_name}: {refused.message}", self.notes)

    def read_tables(self, plan: ImportPlan) -> tuple[MetadataTable, ...]:
        """Captions of the metadata files; a bad one ends the import, whatever the options."""
        for note in plan.notes:
            if note.refused and note.file_name in METADATA_SOURCES:
                raise FilesRefusedError(f"{note.file_name}: {note.message}", self.notes)
        column = self._options.caption_column or DEFAULT_COLUMN
        tables: list[MetadataTable] = []
        for name in plan.metadata:
            try:
                content = self._source.read(name, MAX_METADATA_BYTES)
                tables.append(read_metadata(name, content, column=column))
            except (CaptionError, FileUnreadableError, FileTooLargeError) as error:
                self.note(refusal(name, error.reason, str(error)))
                raise FilesRefusedError(f"{name}: {error}", self.notes) from error
        self._note_tables(tables, column, {image.file_name for image in plan.images})
        return tuple(tables)

    def _note_tables(
        self, tables: Sequence[MetadataTable], column: str, image_names: set[str]
    ) -> None:
        if self._options.caption_column and not any(table.has_column for table in tables):
            message = f"no metadata file has the caption column {printable_name(column)}"
            raise FilesRefusedError(message, self.notes)
        known = {collision_key(name) for name in image_names}
        for table in tables:
            if not table.has_column:
                self.note(remark(table.source, "METADATA_IGNORED", f"no column {column}"))
            absent = [name for name in table.file_names if collision_key(name) not in known]
            if absent:
                message = (
                    f"{len(absent)} rows name no image here, first {printable_name(absent[0])}"
                )
                self.note(remark(table.source, "METADATA_WITHOUT_IMAGE", message))

    def take(self, image: PlannedImage, tables: Sequence[MetadataTable]) -> int:
        """Accept or refuse one image; returns its size in bytes, 0 where it was not read."""
        name = image.file_name
        try:
            data = self._source.read(name, MAX_FILE_BYTES)
        except (FileUnreadableError, FileTooLargeError) as error:
            self.note(refusal(name, error.reason, str(error)))
            return 0
        if self._is_taken(name, data):
            return len(data)
        caption = self._caption(image, tables)
        if caption is None:
            return len(data)
        try:
            facts = self._verifier.verify(data)
        except ImageRefusedError as error:
            self.note(refusal(name, error.reason, str(error)))
            return len(data)
        self._note_facts(name, facts, caption)
        self._accepted.append(_sample(name, data, self._blobs.put(data), facts, caption))
        return len(data)

    def _is_taken(self, name: str, data: bytes) -> bool:
        """Note and leave out what the dataset holds already, or something else of its name."""
        before = self._existing.get(name)
        if before is not None and before.image_digest == digest_of(data):
            self.note(remark(name, "ALREADY_PRESENT", "the sample stays as it is"))
            return True
        taken = self._taken_stems.get(stem_key(name))
        if taken is not None:
            message = f"the dataset holds another image as {taken}"
            self.note(refusal(name, "NAME_TAKEN", message))
        return taken is not None

    def _caption(
        self, image: PlannedImage, tables: Sequence[MetadataTable]
    ) -> ResolvedCaption | None:
        """None where it was refused, and the image with it."""
        readers = {
            source: partial(self._source.read, sidecar, MAX_SIDECAR_BYTES)
            for source, sidecar in image.sidecars.items()
        }
        try:
            return resolve_caption(image.file_name, sidecars=readers, tables=tables)
        except (CaptionError, FileUnreadableError, FileTooLargeError) as error:
            winners = [image.sidecars[s] for s in SIDECAR_SOURCES if s in image.sidecars]
            for sidecar in winners[:1]:
                self.note(refusal(sidecar, error.reason, str(error)))
            message = f"its caption is refused: {error}"
            self.note(refusal(image.file_name, error.reason, message))
            return None

    def _note_facts(self, name: str, facts: ImageFacts, caption: ResolvedCaption) -> None:
        announced = SUFFIXES[PurePosixPath(name).suffix.lower()]
        if MEDIA_TYPES[announced] != facts.media_type:
            self.note(remark(name, "SUFFIX_WRONG", f"the content is {facts.format}"))
        for image_note in facts.notes:
            self.note(remark(name, image_note.reason, image_note.message))
        for caption_note in caption.notes:
            self.note(remark(name, caption_note.reason, caption_note.message))

    def result(self) -> IngestResult:
        manifest = Manifest.of([*self._existing.values(), *self._accepted])
        if not manifest.samples:
            raise NothingImportedError("no image was accepted", self.notes)
        return IngestResult(
            manifest=manifest, num_accepted=len(self._accepted), notes=tuple(self.notes)
        )


def _sample(
    name: str, data: bytes, digest: str, facts: ImageFacts, caption: ResolvedCaption
) -> Sample:
    return Sample(
        file_name=name,
        image_digest=digest,
        size_bytes=len(data),
        media_type=facts.media_type,
        width=facts.width,
        height=facts.height,
        caption=caption.text,
        caption_source=caption.source.value,
    )
