"""What becomes of a single image of an import: read, verified, captioned, stored."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Literal

from sfumato_chassis.blobs import digest_of
from sfumato_datasets.captions import (
    DEFAULT_COLUMN,
    MAX_SIDECAR_BYTES,
    SIDECAR_SOURCES,
    CaptionError,
    CaptionSource,
    MetadataTable,
    ResolvedCaption,
    read_json_sidecar,
    resolve_caption,
)
from sfumato_datasets.images import Preview, StoredImage
from sfumato_datasets.manifest import BlobSink, Manifest, Sample
from sfumato_datasets.names import stem_key
from sfumato_datasets.notes import ImportNote, refusal, remark
from sfumato_datasets.plan import PlannedImage
from sfumato_datasets.sources import FileTooLargeError, FileUnreadableError, SourceFiles
from sfumato_datasets.verifier import ImageRefusedError, VerifiedImage, Verifier
from sfumato_imaging.facts import MAX_FILE_BYTES, THUMBNAIL_SIDES
from sfumato_imaging.formats import MEDIA_TYPES, SUFFIXES


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestOptions:
    """What an import is to do.

    Attributes:
        caption_column: None means DEFAULT_COLUMN where the metadata has it.
        all_captions: Of a list of captions, keep the others as variants of the first.
    """

    on_refused: Literal["stop", "skip"] = "stop"
    caption_column: str | None = None
    all_captions: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """What came of one image. `size_bytes` is 0 where it was not read."""

    size_bytes: int
    notes: Sequence[ImportNote]
    sample: Sample | None = None
    image: StoredImage | None = None


class Intake:
    """Reads, verifies and stores single images; used by several threads at once."""

    def __init__(
        self,
        source: SourceFiles,
        blobs: BlobSink,
        existing: Manifest,
        options: IngestOptions,
        known: Callable[[str], StoredImage | None],
        tables: Sequence[MetadataTable],
    ) -> None:
        self._source = source
        self._blobs = blobs
        self._existing = {sample.file_name: sample for sample in existing.samples}
        self._taken_stems = {
            stem_key(sample.file_name): sample.file_name for sample in existing.samples
        }
        self._options = options
        self._known = known
        self._tables = tables

    def take(self, planned: PlannedImage, verifier: Verifier) -> Taken:
        """Accept or refuse one image."""
        name = planned.file_name
        notes: list[ImportNote] = []
        try:
            data = self._source.read(name, MAX_FILE_BYTES)
        except (FileUnreadableError, FileTooLargeError) as error:
            return Taken(size_bytes=0, notes=[refusal(name, error.reason, str(error))])
        digest = digest_of(data)
        present = self._note_if_present(name, digest)
        caption = None if present else self._caption(planned, notes)
        if present is not None or caption is None:
            return Taken(size_bytes=len(data), notes=[present] if present else notes)
        try:
            image = self._stored(digest, data, verifier)
        except ImageRefusedError as error:
            return Taken(size_bytes=len(data), notes=[refusal(name, error.reason, str(error))])
        return Taken(
            size_bytes=len(data),
            notes=_remarks(name, image, caption),
            sample=_sample(name, image, caption),
            image=image,
        )

    def _stored(self, digest: str, data: bytes, verifier: Verifier) -> StoredImage:
        image = self._known(digest) or _described(digest, data, verifier.verify(data), self._blobs)
        self._blobs.put(data)
        return image

    def _note_if_present(self, name: str, digest: str) -> ImportNote | None:
        """What is to be said of an image that the dataset holds already, or something else of its name."""
        before = self._existing.get(name)
        if before is not None and before.image_digest == digest:
            return remark(name, "ALREADY_PRESENT", "the sample stays as it is")
        taken = self._taken_stems.get(stem_key(name))
        if taken is None:
            return None
        return refusal(name, "NAME_TAKEN", f"the dataset holds another image as {taken}")

    def _caption(self, image: PlannedImage, notes: list[ImportNote]) -> ResolvedCaption | None:
        """None where it was refused, and the image with it."""
        readers = {
            source: partial(self._source.read, sidecar, MAX_SIDECAR_BYTES)
            for source, sidecar in image.sidecars.items()
        }
        read: Sequence[CaptionSource] = (
            [CaptionSource.JSON] if CaptionSource.JSON in readers else []
        )
        try:
            tables = self._tables
            if read:
                tables = [self._json_table(image.file_name, readers[CaptionSource.JSON]), *tables]
            read = [source for source in SIDECAR_SOURCES if source in readers][:1]
            return resolve_caption(
                image.file_name,
                sidecars=readers,
                tables=tables,
                all_captions=self._options.all_captions,
            )
        except (CaptionError, FileUnreadableError, FileTooLargeError) as error:
            sidecars = [image.sidecars[source] for source in read]
            notes += (refusal(sidecar, error.reason, str(error)) for sidecar in sidecars)
            message = f"its caption is refused: {error}"
            notes.append(refusal(image.file_name, error.reason, message))
            return None

    def _json_table(self, file_name: str, read: Callable[[], bytes]) -> MetadataTable:
        column = self._options.caption_column or DEFAULT_COLUMN
        return read_json_sidecar(file_name, read(), column=column)


def _remarks(name: str, image: StoredImage, caption: ResolvedCaption) -> list[ImportNote]:
    said = [(note.reason, note.message) for note in image.notes]
    said += [(note.reason, note.message) for note in caption.notes]
    announced = MEDIA_TYPES[SUFFIXES[PurePosixPath(name).suffix.lower()]]
    if announced != image.media_type:
        said.insert(0, ("SUFFIX_WRONG", f"the content is {image.media_type}"))
    return [remark(name, reason, message) for reason, message in said]


def _described(digest: str, data: bytes, verified: VerifiedImage, blobs: BlobSink) -> StoredImage:
    """Stores the previews; answers what is known of the image."""
    previews: list[Preview] = []
    offset = 0
    for side, preview in zip(THUMBNAIL_SIDES, verified.previews, strict=True):
        previews.append(
            Preview(
                side=side,
                offset=offset,
                length=len(preview.data),
                width=preview.width,
                height=preview.height,
            )
        )
        offset += len(preview.data)
    facts = verified.facts
    return StoredImage(
        digest=digest,
        size_bytes=len(data),
        media_type=facts.media_type,
        width=facts.width,
        height=facts.height,
        crc32=zlib.crc32(data),
        perceptual_hash=verified.perceptual_hash,
        previews_digest=blobs.put(b"".join(preview.data for preview in verified.previews)),
        previews=tuple(previews),
        notes=facts.notes,
    )


def _sample(name: str, image: StoredImage, caption: ResolvedCaption) -> Sample:
    return Sample(
        file_name=name,
        image_digest=image.digest,
        size_bytes=image.size_bytes,
        media_type=image.media_type,
        width=image.width,
        height=image.height,
        caption=caption.text,
        caption_variants=caption.variants,
        caption_source=caption.source.value,
        tags=caption.tags,
    )
