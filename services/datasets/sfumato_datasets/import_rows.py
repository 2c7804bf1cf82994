"""The rows of imports, and how they follow from the imports' logs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from sfumato_chassis.blobs import drop_references, set_references
from sfumato_chassis.errors import NotFound
from sfumato_chassis.jobs import ENDED, Event, Job
from sfumato_datasets.locks import release_lock
from sfumato_datasets.tables import SERVICE, imports


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportRecord:
    """A row of an import.

    Attributes:
        fence: Of its hold on the dataset, see :mod:`sfumato_datasets.locks`.
        source: One of ``{"folder": path}``, ``{"files": [[name, digest], ...]}``,
            ``{"archives": [[name, digest], ...]}``, ``{"hub": {...}}``, the last with the fields of
            :class:`sfumato_datasets.hub_request.HubRequest` and, for an example, its name under ``example``.
    """

    job: str
    owner: str
    dataset: str
    fence: int = 0
    mode: str
    refused_files: str
    caption_column: str | None
    all_captions: bool
    source: Mapping[str, Any]
    num_files_done: int = 0
    num_files: int = 0
    num_bytes_done: int = 0
    num_bytes_fetched: int = 0
    num_bytes_to_fetch: int = 0
    num_notes: int = 0
    version_number: int | None = None

    @property
    def folder(self) -> str | None:
        """The server's folder that it reads; None where it reads something else."""
        folder: str | None = self.source.get("folder")
        return folder

    @property
    def uploads(self) -> Sequence[tuple[str, str]]:
        """Name and digest of each upload that it reads."""
        listed = self.source.get("files", self.source.get("archives", ()))
        return [(name, digest) for name, digest in listed]


# Built once: to build it takes as long as to run it.
_IMPORT = select(*(imports.c[name] for name in ImportRecord.__slots__)).where(
    imports.c.job == bindparam("job")
)


def insert_import(connection: Connection, record: ImportRecord) -> None:
    """Adds an import, which holds the uploads that it reads from then on."""
    connection.execute(
        insert(imports).values({name: getattr(record, name) for name in ImportRecord.__slots__})
    )
    digests = [digest for _, digest in record.uploads]
    set_references(connection, SERVICE, f"import:{record.job}", digests)


def get_import(connection: Connection, job: str) -> ImportRecord:
    """The import of a job. Raises NotFound for one that was removed meanwhile."""
    row = connection.execute(_IMPORT, {"job": job}).one_or_none()
    if row is None:
        raise NotFound.resource("import", job)
    return ImportRecord(**dict(zip(ImportRecord.__slots__, row, strict=True)))


def set_fence(connection: Connection, record: ImportRecord, fence: int) -> ImportRecord:
    """Notes under which fence an import holds its dataset now."""
    connection.execute(update(imports).where(imports.c.job == record.job).values(fence=fence))
    return replace(record, fence=fence)


def project_import(connection: Connection, job: Job, events: Sequence[Event]) -> None:
    """Keeps an import's row in line with its log; its end gives the dataset free."""
    values: dict[str, Any] = {}
    num_notes: int = 0
    begins_anew = False
    for event in events:
        match event.kind:
            case "started":
                begins_anew = True
                num_notes = 0
            case "note":
                num_notes += 1
            case "progress":
                values |= event.data
            case "revision_pinned":
                values["source"] = pinned(get_import(connection, job.name), event.data["revision"])
            case "succeeded":
                values["version_number"] = event.data["number"]
    if begins_anew:
        values["num_notes"] = num_notes
    elif num_notes:
        values["num_notes"] = imports.c.num_notes + num_notes
    if values:
        connection.execute(update(imports).where(imports.c.job == job.name).values(**values))
    if job.state in ENDED:
        record = get_import(connection, job.name)
        now = events[-1].time
        release_lock(connection, record.owner, record.dataset, holder=job.name, now=now)
        drop_references(connection, SERVICE, f"import:{job.name}", now)


def pinned(record: ImportRecord, revision: str) -> Mapping[str, Any]:
    """The source of an import from the Hub, at a commit."""
    return {**record.source, "hub": {**record.source["hub"], "revision": revision}}


def remove_import(connection: Connection, job: Job) -> None:
    """Removes an import's row."""
    connection.execute(delete(imports).where(imports.c.job == job.name))
