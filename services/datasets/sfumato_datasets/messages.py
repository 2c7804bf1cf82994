"""The messages of ``sfumato.datasets.v1``, from the service's records and back."""

from collections.abc import Sequence
from typing import Any

from sfumato.blobs.v1 import blobs_pb2
from sfumato.datasets.v1 import datasets_pb2, imports_pb2, versions_pb2
from sfumato_chassis.job_messages import event_header, job_status, shared_event, timestamp
from sfumato_chassis.jobs import Event, Job
from sfumato_datasets.manifest import Sample
from sfumato_datasets.storage import Dataset, ImportRecord, Version

IMPORT_MODES = {
    imports_pb2.IMPORT_MODE_UNSPECIFIED: "require_empty",
    imports_pb2.IMPORT_MODE_REQUIRE_EMPTY: "require_empty",
    imports_pb2.IMPORT_MODE_ADD: "add",
}


def import_record(request: imports_pb2.CreateImportRequest, owner: str) -> ImportRecord:
    """What a request asks for; its job is not known yet."""
    source: dict[str, Any]
    if request.HasField("folder"):
        source = {"folder": request.folder.path}
    else:
        source = {"files": [[file.file_name, file.digest] for file in request.upload.files]}
    skip = request.refused_files == imports_pb2.REFUSED_FILE_POLICY_SKIP
    return ImportRecord(
        job="",
        owner=owner,
        dataset=request.dataset,
        mode=IMPORT_MODES[request.mode],
        refused_files="SKIP" if skip else "STOP",
        caption_column=request.caption_column if request.HasField("caption_column") else None,
        source=source,
    )


def import_message(
    job: Job | None, record: ImportRecord, version: Version | None, notes: Sequence[Event]
) -> imports_pb2.Import:
    """An import; without a job, one that was only validated."""
    return imports_pb2.Import(
        name=record.job,
        owner=record.owner,
        status=None if job is None else job_status(job),
        dataset=record.dataset,
        mode=imports_pb2.ImportMode.Value(f"IMPORT_MODE_{record.mode.upper()}"),
        refused_files=imports_pb2.RefusedFilePolicy.Value(
            f"REFUSED_FILE_POLICY_{record.refused_files}"
        ),
        progress=imports_pb2.ImportProgress(
            num_files_done=record.num_files_done,
            num_files=record.num_files,
            num_bytes_done=record.num_bytes_done,
        ),
        notes=[imports_pb2.ImportNote(**note.data) for note in notes],
        version=None if version is None else version_message(version),
    )


def event_message(event: Event) -> imports_pb2.ImportEvent:
    """An event other than ``succeeded``."""
    header = event_header(event)
    match event.kind:
        case "progress":
            progress = imports_pb2.ImportProgress(**event.data)
            return imports_pb2.ImportEvent(header=header, progress=progress)
        case "note":
            return imports_pb2.ImportEvent(header=header, note=imports_pb2.ImportNote(**event.data))
    fields: dict[str, Any] = {event.kind: shared_event(event)}
    return imports_pb2.ImportEvent(header=header, **fields)


def succeeded_message(event: Event, finished: imports_pb2.Import) -> imports_pb2.ImportEvent:
    """The event that tells of the version that an import made."""
    return imports_pb2.ImportEvent(header=event_header(event), succeeded=finished.version)


def dataset_message(dataset: Dataset) -> datasets_pb2.Dataset:
    """A dataset."""
    return datasets_pb2.Dataset(
        name=dataset.name,
        owner=dataset.owner,
        etag=dataset.etag,
        latest_version=version_message(dataset.latest),
        create_time=timestamp(dataset.create_time),
        update_time=timestamp(dataset.update_time),
    )


def version_message(version: Version) -> versions_pb2.DatasetVersion:
    """A version."""
    return versions_pb2.DatasetVersion(
        dataset=version.dataset,
        number=version.number,
        digest=version.digest,
        num_samples=version.num_samples,
        size_bytes=version.size_bytes,
        num_captioned=version.num_captioned,
        create_time=timestamp(version.create_time),
    )


def sample_message(sample: Sample) -> datasets_pb2.Sample:
    """A sample."""
    return datasets_pb2.Sample(
        file_name=sample.file_name,
        image=blobs_pb2.BlobRef(
            digest=sample.image_digest,
            size_bytes=sample.size_bytes,
            media_type=sample.media_type,
        ),
        width=sample.width,
        height=sample.height,
        caption=sample.caption,
        caption_source=sample.caption_source,
        mask=None if sample.mask_digest is None else blobs_pb2.BlobRef(digest=sample.mask_digest),
        tags=sample.tags,
    )
