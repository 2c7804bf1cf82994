"""The rows of datasets, versions and pins."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from sfumato_chassis.errors import Aborted, FailedPrecondition, NotFound, Reason
from sfumato_chassis.paging import Page, read_page
from sfumato_datasets.library import VersionContents
from sfumato_datasets.tables import datasets, pins, versions


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
    statistics_digest: str
    duplicates_digest: str
    num_changed: int
    created_by: str
    deletion_pending: bool
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
    deletion_pending: bool
    create_time: datetime
    update_time: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Pin:
    """Who keeps a version from being removed."""

    number: int
    holder: str


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
        deletion_pending=row.deletion_pending,
        create_time=row.create_time,
        update_time=row.update_time,
    )


def check_takes_new(*subjects: Dataset | Version | None) -> None:
    """Refuses new use of what is to be removed. Raises FailedPrecondition, DELETION_PENDING."""
    for subject in subjects:
        if subject is not None and subject.deletion_pending:
            raise FailedPrecondition(
                Reason.DELETION_PENDING, "it is removed when nothing uses it any more"
            )


def check_etag(dataset: Dataset, etag: str) -> None:
    """Raises Aborted, ETAG_MISMATCH, where the dataset is not as the caller read it."""
    if dataset.etag != etag:
        raise changed(dataset.name)


def changed(name: str) -> Aborted:
    """The error of a writer that knows an earlier state of the dataset."""
    return Aborted(Reason.ETAG_MISMATCH, f"{name} has changed since it was read")


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


def find_version_by(connection: Connection, created_by: str) -> Version | None:
    """The version that an import or an edit made, or None where it is gone."""
    row = connection.execute(
        select(versions).where(versions.c.created_by == created_by)
    ).one_or_none()
    return None if row is None else Version(**row._mapping)


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


def all_versions(connection: Connection, owner: str, dataset: str) -> Sequence[Version]:
    """Every version of a dataset, by number."""
    rows = connection.execute(
        select(versions)
        .where(versions.c.owner == owner, versions.c.dataset == dataset)
        .order_by(versions.c.number)
    ).all()
    return [Version(**row._mapping) for row in rows]


def add_version(connection: Connection, version: Version, *, etag: str) -> None:
    """Adds the next version, and the dataset with its first.

    Raises:
        Aborted: ETAG_MISMATCH, it is not the next any more.
    """
    owner, dataset, now = version.owner, version.dataset, version.create_time
    known = find_dataset(connection, owner, dataset)
    if version.number != (1 if known is None else known.latest.number + 1):
        raise changed(dataset)
    values = {"etag": etag, "latest_number": version.number, "update_time": now}
    if known is None:
        connection.execute(
            insert(datasets).values(
                owner=owner, name=dataset, create_time=now, deletion_pending=False, **values
            )
        )
    else:
        connection.execute(
            update(datasets)
            .where(datasets.c.owner == owner, datasets.c.name == dataset)
            .values(**values)
        )
    connection.execute(
        insert(versions).values({name: getattr(version, name) for name in Version.__slots__})
    )


def set_deletion_pending(
    connection: Connection, dataset: Dataset, number: int | None, *, etag: str, now: datetime
) -> None:
    """Marks a dataset, or one version of it, for removal."""
    owner, name = dataset.owner, dataset.name
    values: dict[str, Any] = {"etag": etag, "update_time": now}
    if number is None:
        values["deletion_pending"] = True
    else:
        connection.execute(
            update(versions)
            .where(
                versions.c.owner == owner, versions.c.dataset == name, versions.c.number == number
            )
            .values(deletion_pending=True)
        )
    connection.execute(
        update(datasets).where(datasets.c.owner == owner, datasets.c.name == name).values(**values)
    )


def remove_version(connection: Connection, version: Version) -> None:
    """Removes a version's row."""
    connection.execute(
        delete(versions).where(
            versions.c.owner == version.owner,
            versions.c.dataset == version.dataset,
            versions.c.number == version.number,
        )
    )


def remove_dataset(connection: Connection, owner: str, name: str) -> None:
    """Removes a dataset's row; its versions are gone by then."""
    connection.execute(delete(datasets).where(datasets.c.owner == owner, datasets.c.name == name))


def pending_deletions(connection: Connection) -> Sequence[tuple[str, str, int | None]]:
    """Owner, dataset and version of all that is marked, single versions first.

    Without a number it is the whole dataset.
    """
    whole = connection.execute(
        select(datasets.c.owner, datasets.c.name).where(datasets.c.deletion_pending)
    ).all()
    single = connection.execute(
        select(versions.c.owner, versions.c.dataset, versions.c.number).where(
            versions.c.deletion_pending
        )
    ).all()
    return [
        *((row.owner, row.dataset, row.number) for row in single),
        *((row.owner, row.name, None) for row in whole),
    ]


def pins_of(
    connection: Connection, owner: str, dataset: str, number: int | None, *, now: datetime
) -> Sequence[Pin]:
    """Pins that have not lapsed, of one version or, for None, of the dataset."""
    wanted = select(pins.c.number, pins.c.holder).where(
        pins.c.owner == owner, pins.c.dataset == dataset, pins.c.expire_time > now
    )
    if number is not None:
        wanted = wanted.where(pins.c.number == number)
    rows = connection.execute(wanted.order_by(pins.c.number, pins.c.holder)).all()
    return [Pin(number=row.number, holder=row.holder) for row in rows]


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
        FailedPrecondition: DATASET_EMPTY; DELETION_PENDING for one who has not pinned it already.
    """
    version = get_version(connection, owner, dataset, number)
    if version.num_samples == 0:
        raise FailedPrecondition(Reason.DATASET_EMPTY, f"{dataset} holds no sample")
    holders = {pin.holder for pin in pins_of(connection, owner, dataset, version.number, now=now)}
    if holder not in holders:
        check_takes_new(get_dataset(connection, owner, dataset), version)
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
