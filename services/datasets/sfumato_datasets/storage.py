"""The datasets service's tables: datasets, versions, pins, imports."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Connection,
    ForeignKeyConstraint,
    Index,
    MetaData,
    Row,
    String,
    Table,
    bindparam,
    delete,
    insert,
    select,
    update,
)

from sfumato_chassis.blobs import drop_references, set_references
from sfumato_chassis.database import Timestamp
from sfumato_chassis.errors import FailedPrecondition, NotFound, Reason
from sfumato_chassis.jobs import ENDED, Event, Job
from sfumato_chassis.paging import Page, read_page
from sfumato_datasets.library import VersionContents

SERVICE = "datasets"

metadata = MetaData()

datasets = Table(
    "datasets_datasets",
    metadata,
    Column("owner", String(128), primary_key=True),
    Column("name", String(128), primary_key=True),
    Column("etag", String(64), nullable=False),
    Column("latest_number", BigInteger, nullable=False),
    Column("create_time", Timestamp, nullable=False),
    Column("update_time", Timestamp, nullable=False),
)

versions = Table(
    "datasets_versions",
    metadata,
    Column("owner", String(128), primary_key=True),
    Column("dataset", String(128), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("digest", String(71), nullable=False),
    Column("num_samples", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("num_captioned", BigInteger, nullable=False),
    Column("create_time", Timestamp, nullable=False),
    ForeignKeyConstraint(
        ["owner", "dataset"], ["datasets_datasets.owner", "datasets_datasets.name"]
    ),
)

pins = Table(
    "datasets_pins",
    metadata,
    Column("owner", String(128), primary_key=True),
    Column("dataset", String(128), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("holder", String(128), primary_key=True),
    Column("expire_time", Timestamp, nullable=False),
)

imports = Table(
    "datasets_imports",
    metadata,
    Column("job", String(64), primary_key=True),
    Column("owner", String(128), nullable=False),
    Column("dataset", String(128), nullable=False),
    # The dataset's name while the import is not over, else the job's: two at once break this.
    Column("writes_to", String(128), nullable=False),
    Column("mode", String(16), nullable=False),
    Column("refused_files", String(8), nullable=False),
    Column("caption_column", String(64)),
    Column("source", JSON, nullable=False),
    Column("num_files_done", BigInteger, nullable=False),
    Column("num_files", BigInteger, nullable=False),
    Column("num_bytes_done", BigInteger, nullable=False),
    Column("num_notes", BigInteger, nullable=False),
    Column("version_number", BigInteger),
    Index("datasets_imports_one_writer", "owner", "writes_to", unique=True),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """A row of a version."""

    owner: str
    dataset: str
    number: int
    digest: str
    num_samples: int
    size_bytes: int
    num_captioned: int
    create_time: datetime

    @property
    def contents(self) -> VersionContents:
        """What is said of it without reading its manifest."""
        return VersionContents(
            digest=self.digest,
            num_samples=self.num_samples,
            size_bytes=self.size_bytes,
            num_captioned=self.num_captioned,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """A row of a dataset with its newest version."""

    owner: str
    name: str
    etag: str
    latest: Version
    create_time: datetime
    update_time: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportRecord:
    """A row of an import.

    Attributes:
        source: ``{"folder": path}`` or ``{"files": [[name, digest], ...]}``.
    """

    job: str
    owner: str
    dataset: str
    mode: str
    refused_files: str
    caption_column: str | None
    source: Mapping[str, Any]
    num_files_done: int = 0
    num_files: int = 0
    num_bytes_done: int = 0
    num_notes: int = 0
    version_number: int | None = None

    @property
    def folder(self) -> str | None:
        """The server's folder that it reads; None where it reads uploads."""
        folder: str | None = self.source.get("folder")
        return folder


# Built once: to build it takes as long as to run it.
_IMPORT = select(*(imports.c[name] for name in ImportRecord.__slots__)).where(
    imports.c.job == bindparam("job")
)


def insert_import(connection: Connection, record: ImportRecord) -> None:
    """Adds an import, which holds its dataset, and the uploads that it reads, from then on."""
    values = {name: getattr(record, name) for name in ImportRecord.__slots__}
    connection.execute(insert(imports).values(**values, writes_to=record.dataset))
    digests = [digest for _, digest in record.source.get("files", ())]
    set_references(connection, SERVICE, f"import:{record.job}", digests)


def get_import(connection: Connection, job: str) -> ImportRecord:
    """The import of a job. Raises NotFound for one that was removed meanwhile."""
    row = connection.execute(_IMPORT, {"job": job}).one_or_none()
    if row is None:
        raise NotFound.resource("import", job)
    return ImportRecord(**dict(zip(ImportRecord.__slots__, row, strict=True)))


def writer_of(connection: Connection, owner: str, dataset: str) -> str | None:
    """The import that holds a dataset."""
    return connection.execute(
        select(imports.c.job).where(imports.c.owner == owner, imports.c.writes_to == dataset)
    ).scalar_one_or_none()


def project_import(connection: Connection, job: Job, events: Sequence[Event]) -> None:
    """Keeps an import's row in line with its log."""
    values: dict[str, Any] = {}
    num_notes = sum(1 for event in events if event.kind == "note")
    if num_notes:
        values["num_notes"] = imports.c.num_notes + num_notes
    for event in events:
        match event.kind:
            case "progress":
                values |= event.data
            case "succeeded":
                values |= {"version_number": event.data["number"]}
    if job.state in ENDED:
        values["writes_to"] = job.name
        drop_references(connection, SERVICE, f"import:{job.name}", events[-1].time)
    if values:
        connection.execute(update(imports).where(imports.c.job == job.name).values(**values))


def remove_import(connection: Connection, job: Job) -> None:
    """Removes an import's row."""
    connection.execute(delete(imports).where(imports.c.job == job.name))


def find_dataset(connection: Connection, owner: str, name: str) -> Dataset | None:
    """A dataset, or None."""
    row = connection.execute(
        select(datasets).where(datasets.c.owner == owner, datasets.c.name == name)
    ).one_or_none()
    return None if row is None else to_dataset(connection, row)


def get_dataset(connection: Connection, owner: str, name: str) -> Dataset:
    """A dataset. Raises NotFound."""
    dataset = find_dataset(connection, owner, name)
    if dataset is None:
        raise NotFound.resource("dataset", name)
    return dataset


def to_dataset(connection: Connection, row: Row[Any]) -> Dataset:
    """A row of a dataset, with its newest version."""
    return Dataset(
        owner=row.owner,
        name=row.name,
        etag=row.etag,
        latest=get_version(connection, row.owner, row.name, row.latest_number),
        create_time=row.create_time,
        update_time=row.update_time,
    )


def select_datasets(connection: Connection, owner: str, *, size: int, token: str) -> Page[Dataset]:
    """A page of datasets by name."""
    return read_page(
        connection,
        select(datasets).where(datasets.c.owner == owner),
        [datasets.c.name],
        lambda row: to_dataset(connection, row),
        query={"list": "dataset", "owner": owner},
        size=size,
        token=token,
        ascending=True,
    )


def get_version(connection: Connection, owner: str, dataset: str, number: int | None) -> Version:
    """A version, the newest for None. Raises NotFound."""
    if number is None:
        return get_dataset(connection, owner, dataset).latest
    row = connection.execute(
        select(versions).where(
            versions.c.owner == owner, versions.c.dataset == dataset, versions.c.number == number
        )
    ).one_or_none()
    if row is None:
        raise NotFound.resource("dataset version", f"{dataset} version {number}")
    return Version(**row._mapping)


def select_versions(
    connection: Connection, owner: str, dataset: str, *, size: int, token: str
) -> Page[Version]:
    """A page of a dataset's versions, newest first. Raises NotFound."""
    get_dataset(connection, owner, dataset)
    return read_page(
        connection,
        select(versions).where(versions.c.owner == owner, versions.c.dataset == dataset),
        [versions.c.number],
        lambda row: Version(**row._mapping),
        query={"list": "version", "owner": owner, "dataset": dataset},
        size=size,
        token=token,
    )


def add_version(
    connection: Connection,
    owner: str,
    dataset: str,
    contents: VersionContents,
    *,
    now: datetime,
    etag: str,
) -> Version:
    """Adds the next version, and the dataset with its first."""
    row = connection.execute(
        select(datasets.c.latest_number).where(
            datasets.c.owner == owner, datasets.c.name == dataset
        )
    ).one_or_none()
    version = Version(
        owner=owner,
        dataset=dataset,
        number=1 if row is None else row.latest_number + 1,
        digest=contents.digest,
        num_samples=contents.num_samples,
        size_bytes=contents.size_bytes,
        num_captioned=contents.num_captioned,
        create_time=now,
    )
    changed = {"etag": etag, "latest_number": version.number, "update_time": now}
    if row is None:
        connection.execute(
            insert(datasets).values(owner=owner, name=dataset, create_time=now, **changed)
        )
    else:
        connection.execute(
            update(datasets)
            .where(datasets.c.owner == owner, datasets.c.name == dataset)
            .values(**changed)
        )
    connection.execute(
        insert(versions).values({name: getattr(version, name) for name in Version.__slots__})
    )
    return version


def pin_version(
    connection: Connection,
    owner: str,
    dataset: str,
    number: int | None,
    *,
    holder: str,
    now: datetime,
    lease: timedelta,
) -> tuple[Version, datetime]:
    """Pins a version, or renews the holder's pin; answers when it ends.

    Raises:
        NotFound: No such version.
        FailedPrecondition: DATASET_EMPTY.
    """
    version = get_version(connection, owner, dataset, number)
    if version.num_samples == 0:
        raise FailedPrecondition(Reason.DATASET_EMPTY, f"{dataset} holds no sample")
    connection.execute(delete(pins).where(pins.c.expire_time <= now))
    unpin_version(connection, owner, dataset, version.number, holder=holder)
    connection.execute(
        insert(pins).values(
            owner=owner,
            dataset=dataset,
            number=version.number,
            holder=holder,
            expire_time=now + lease,
        )
    )
    return version, now + lease


def unpin_version(
    connection: Connection, owner: str, dataset: str, number: int, *, holder: str
) -> None:
    """Ends a holder's pin, if there is one."""
    connection.execute(
        delete(pins).where(
            pins.c.owner == owner,
            pins.c.dataset == dataset,
            pins.c.number == number,
            pins.c.holder == holder,
        )
    )
