"""The messages of imports, from the service's records and back."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sfumato.datasets.v1 import imports_pb2
from sfumato_chassis.errors import InvalidArgument
from sfumato_chassis.job_messages import event_header, job_status, shared_event
from sfumato_chassis.jobs import Event, Job
from sfumato_datasets.captions import DEFAULT_COLUMN
from sfumato_datasets.examples import Example, UnknownExampleError, find_example
from sfumato_datasets.hub_request import DEFAULT_SPLIT, HubRequest
from sfumato_datasets.import_rows import ImportRecord
from sfumato_datasets.library_messages import version_message
from sfumato_datasets.storage import Version

IMPORT_MODES = {
    imports_pb2.IMPORT_MODE_UNSPECIFIED: "require_empty",
    imports_pb2.IMPORT_MODE_REQUIRE_EMPTY: "require_empty",
    imports_pb2.IMPORT_MODE_ADD: "add",
}


def import_record(request: imports_pb2.CreateImportRequest, owner: str) -> ImportRecord:
    """What a request asks for; its job is not known yet."""
    skip = request.refused_files == imports_pb2.REFUSED_FILE_POLICY_SKIP
    example = asked_example(request)
    column = request.caption_column or (example.caption_column if example else None)
    return ImportRecord(
        job="",
        owner=owner,
        dataset=request.dataset,
        mode=IMPORT_MODES[request.mode],
        refused_files="SKIP" if skip else "STOP",
        caption_column=column or None,
        all_captions=request.all_captions,
        source=import_source(request, example),
    )


def asked_example(request: imports_pb2.CreateImportRequest) -> Example | None:
    """The example that a request names, if it names one. Raises InvalidArgument."""
    if not request.HasField("example"):
        return None
    try:
        return find_example(request.example.name)
    except UnknownExampleError as error:
        raise InvalidArgument.field("example.name", str(error)) from error


def import_source(
    request: imports_pb2.CreateImportRequest, example: Example | None
) -> dict[str, Any]:
    """Where a request asks to read from, as an import's row has it."""
    if example is not None:
        return {"hub": hub_fields(example.request), "example": example.name}
    match request.WhichOneof("source"):
        case "folder":
            return {"folder": request.folder.path}
        case "upload":
            return {"files": uploads(request.upload.files)}
        case "archive":
            return {"archives": uploads(request.archive.files)}
    return {"hub": hub_fields(hub_request(request.hub))}


def hub_fields(asked: HubRequest) -> dict[str, Any]:
    """What is asked of the Hub, as an import's row has it: its caption column stands in the row."""
    return {name: value for name, value in asdict(asked).items() if name != "caption_column"}


def uploads(files: Sequence[imports_pb2.UploadedFile]) -> list[list[str]]:
    """Name and digest of each."""
    return [[file.file_name, file.digest] for file in files]


def hub_request(asked: imports_pb2.HubSource) -> HubRequest:
    """What is asked of the Hub."""
    return HubRequest(
        id=asked.id,
        revision=asked.revision or None,
        folder=asked.folder,
        split=asked.split or DEFAULT_SPLIT,
        image_column=asked.image_column or None,
        max_samples=asked.max_samples if asked.HasField("max_samples") else None,
    )


def source_fields(record: ImportRecord) -> dict[str, Any]:
    """Where an import reads from, as fields of its message."""
    source = record.source
    if "folder" in source:
        return {"folder": imports_pb2.FolderSource(path=source["folder"])}
    if "archives" in source:
        files = [imports_pb2.UploadedFile(file_name=n, digest=d) for n, d in source["archives"]]
        return {"archive": imports_pb2.ArchiveSource(files=files)}
    if "example" in source:
        return {"example": imports_pb2.ExampleSource(name=source["example"])}
    if "hub" in source:
        known = imports_pb2.HubSource.DESCRIPTOR.fields_by_name
        asked = {name: value for name, value in source["hub"].items() if name in known}
        return {"hub": imports_pb2.HubSource(**asked)}
    return {}


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
            num_bytes_fetched=record.num_bytes_fetched,
            num_bytes_to_fetch=record.num_bytes_to_fetch,
        ),
        notes=[imports_pb2.ImportNote(**note.data) for note in notes],
        version=None if version is None else version_message(version),
        caption_column=record.caption_column or DEFAULT_COLUMN,
        all_captions=record.all_captions,
        **source_fields(record),
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
        case "revision_pinned":
            pinned = imports_pb2.RevisionPinned(**event.data)
            return imports_pb2.ImportEvent(header=header, revision_pinned=pinned)
    fields: dict[str, Any] = {event.kind: shared_event(event)}
    return imports_pb2.ImportEvent(header=header, **fields)


def succeeded_message(event: Event, finished: imports_pb2.Import) -> imports_pb2.ImportEvent:
    """The event that tells of the version that an import made."""
    return imports_pb2.ImportEvent(header=event_header(event), succeeded=finished.version)
