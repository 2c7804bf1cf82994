"""A set of captioned files becomes a manifest, and its images become blobs.

Blocking code: a service runs it in a thread of its own.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import ClassVar, Final

from sfumato_datasets.captions import (
    DEFAULT_COLUMN,
    MAX_METADATA_BYTES,
    METADATA_SOURCES,
    CaptionError,
    CaptionSource,
    MetadataTable,
    read_metadata,
    row_key,
)
from sfumato_datasets.images import StoredImage
from sfumato_datasets.intake import IngestOptions, Intake, Taken
from sfumato_datasets.manifest import BlobSink, Manifest, Sample
from sfumato_datasets.names import collision_key
from sfumato_datasets.notes import (
    ImportNote,
    IngestProgress,
    printable_name,
    refusal,
    remark,
)
from sfumato_datasets.plan import ImportPlan, PlannedImage, plan_import
from sfumato_datasets.sources import FileTooLargeError, FileUnreadableError, SourceFiles
from sfumato_datasets.verifier import Verifier
from sfumato_datasets.verifier_pool import VerifierPool

EMPTY: Final = Manifest(samples=())
DEFAULT_OPTIONS: Final = IngestOptions()
NUM_READ_AHEAD: Final = 2
"""So many images wait for a verifier."""
CHECK_SECONDS: Final = 0.2
"""How often an import that waits for an image asks whether it was cancelled."""


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


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestResult:
    """What came of an import.

    Attributes:
        manifest: What was there before and what was accepted now.
        images: Those accepted now, each digest once.
    """

    manifest: Manifest
    num_accepted: int
    images: tuple[StoredImage, ...]
    notes: tuple[ImportNote, ...]


def _no_progress(progress: IngestProgress) -> None:
    """For callers that do not watch."""


def _nothing_known(digest: str) -> StoredImage | None:
    """For callers that know no image."""


def _no_note(note: ImportNote) -> None:
    """For callers that read the notes of the result."""


def ingest(
    source: SourceFiles,
    *,
    verifiers: VerifierPool,
    blobs: BlobSink,
    existing: Manifest = EMPTY,
    options: IngestOptions = DEFAULT_OPTIONS,
    known: Callable[[str], StoredImage | None] = _nothing_known,
    on_progress: Callable[[IngestProgress], None] = _no_progress,
    on_note: Callable[[ImportNote], None] = _no_note,
    cancelled: Callable[[], bool] = lambda: False,
) -> IngestResult:
    """Verify, caption and store every image of a source.

    Several images are at work at once, but what is accepted, noted and told follows the order of their
    names, as if they had been read one after the other.

    Args:
        existing: what the dataset holds. Its samples all stay as they are: an image of a name
            that is there is noted when its bytes are the same, and refused otherwise.
        known: what is known of an image by its digest; one that is known is not decoded again.
        on_progress: called before the first image and after each.
        on_note: called with each note when it is made.
        cancelled: asked before each image, and now and then while one is awaited.

    Raises:
        FilesRefusedError, NothingImportedError, IngestCancelledError
    """
    run = _Ingest(source, options, existing, on_note)
    plan = plan_import(source.entries())
    for note in plan.notes:
        run.note(note)
    run.stop_if_refused()
    tables = run.read_tables(plan)
    intake = Intake(source, blobs, existing, options, known, tables)
    num_bytes_done = 0
    num_files = len(plan.images)
    on_progress(IngestProgress(num_files_done=0, num_files=num_files, num_bytes_done=0))
    taken = _in_order(plan.images, intake.take, verifiers, lambda: run.stop_if(cancelled))
    for index, outcome in enumerate(taken, start=1):
        num_bytes_done += outcome.size_bytes
        run.accept(outcome)
        run.stop_if_refused()
        on_progress(
            IngestProgress(num_files_done=index, num_files=num_files, num_bytes_done=num_bytes_done)
        )
    return run.result()


def _in_order(
    images: Iterable[PlannedImage],
    take: Callable[[PlannedImage, Verifier], Taken],
    verifiers: VerifierPool,
    check: Callable[[], None],
) -> Iterator[Taken]:
    """What comes of each image, in their order; `check` is called while one is awaited."""
    waiting = iter(images)
    at_work: deque[Future[Taken]] = deque()
    while True:
        for image in islice(waiting, verifiers.num_verifiers + NUM_READ_AHEAD - len(at_work)):
            at_work.append(verifiers.run(partial(take, image)))
        check()
        if not at_work:
            return
        while not wait(list(at_work)[:1], timeout=CHECK_SECONDS).done:
            check()
        yield at_work.popleft().result()


class _Ingest:
    """One import while it runs: what was accepted and what was noted so far."""

    def __init__(
        self,
        source: SourceFiles,
        options: IngestOptions,
        existing: Manifest,
        on_note: Callable[[ImportNote], None],
    ) -> None:
        self._source = source
        self._options = options
        self._existing = existing
        self._on_note = on_note
        self._accepted: list[Sample] = []
        self._images: dict[str, StoredImage] = {}
        self.notes: list[ImportNote] = []
        self._first_refused: ImportNote | None = None

    def note(self, note: ImportNote) -> None:
        self.notes.append(note)
        if note.refused and self._first_refused is None:
            self._first_refused = note
        self._on_note(note)

    def accept(self, taken: Taken) -> None:
        for note in taken.notes:
            self.note(note)
        if taken.sample is not None and taken.image is not None:
            self._accepted.append(taken.sample)
            self._images[taken.image.digest] = taken.image

    def stop_if(self, cancelled: Callable[[], bool]) -> None:
        if cancelled():
            raise IngestCancelledError("the import was cancelled", self.notes)

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
        self._note_tables(tables, column, plan)
        return tuple(tables)

    def _note_tables(self, tables: Sequence[MetadataTable], column: str, plan: ImportPlan) -> None:
        has_json = any(CaptionSource.JSON in image.sidecars for image in plan.images)
        has_column = has_json or any(table.has_column for table in tables)
        if self._options.caption_column and not has_column:
            message = f"no metadata file has the caption column {printable_name(column)}"
            raise FilesRefusedError(message, self.notes)
        known = {collision_key(image.file_name) for image in plan.images}
        for table in tables:
            if not table.has_column:
                self.note(remark(table.source, "METADATA_IGNORED", f"no column {column}"))
            if table.without_tags:
                first = printable_name(table.without_tags[0])
                message = f"tags of {len(table.without_tags)} rows are no list, first {first}"
                self.note(remark(table.source, "TAGS_IGNORED", message))
            absent = [name for name in table.file_names if row_key(name) not in known]
            if absent:
                message = (
                    f"{len(absent)} rows name no image here, first {printable_name(absent[0])}"
                )
                self.note(remark(table.source, "METADATA_WITHOUT_IMAGE", message))

    def result(self) -> IngestResult:
        manifest = Manifest.of([*self._existing.samples, *self._accepted])
        if not manifest.samples:
            raise NothingImportedError("no image was accepted", self.notes)
        return IngestResult(
            manifest=manifest,
            num_accepted=len(self._accepted),
            images=tuple(self._images.values()),
            notes=tuple(self.notes),
        )
