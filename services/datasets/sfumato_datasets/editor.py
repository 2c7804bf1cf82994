"""Edits and deletions: each is done, or refused, within one call."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from sfumato_chassis.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Reason,
)
from sfumato_chassis.platform import Platform
from sfumato_chassis.requests import Request, find_request, record_request
from sfumato_datasets import storage, versions
from sfumato_datasets.editing import Edit, Edited, EditError, SampleNotFoundError, apply_edits
from sfumato_datasets.image_rows import find_images, purge_images
from sfumato_datasets.locks import check_unlocked
from sfumato_datasets.manifest import Manifest
from sfumato_datasets.reading import Reading
from sfumato_datasets.storage import Dataset, Version
from sfumato_datasets.versions import (
    EDIT_PREFIX,
    NextVersion,
    PreparedVersion,
    prepare_version,
    publish_version,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class EditOutcome:
    """What became of an edit.

    Attributes:
        dataset: As it stands.
        version: That the edit made, or the one there was where it changed nothing.
    """

    dataset: Dataset
    version: Version
    num_changed: int
    deduplicated: bool


class Editor:
    """Changes and removes datasets and versions."""

    def __init__(self, platform: Platform, reading: Reading) -> None:
        self._platform = platform
        self._reading = reading

    async def edit(
        self, request: Request, name: str, etag: str, edits: Sequence[Edit], *, validate_only: bool
    ) -> EditOutcome:
        """Makes one new version with all of the edits.

        Raises:
            NotFound: The dataset, or a sample that is named.
            Aborted: ETAG_MISMATCH or DATASET_BUSY.
            FailedPrecondition: DELETION_PENDING.
            InvalidArgument: A caption would become too long.
            AlreadyExists: REQUEST_ID_REUSED.
        """

        def begin(connection: Connection) -> tuple[Version | None, Dataset]:
            known = find_edit(connection, request, name)
            if known is None:
                self._check_editable(connection, request.principal, name, etag)
            return known, storage.get_dataset(connection, request.principal, name)

        known, dataset = await self._platform.database.read(begin)
        if known is not None:
            return EditOutcome(
                dataset=dataset,
                version=known,
                num_changed=known.num_changed,
                deduplicated=True,
            )
        manifest = await self._reading.manifest(dataset.latest)
        edited = await asyncio.to_thread(edited_manifest, manifest, edits)
        if validate_only or edited.num_changed == 0:
            return EditOutcome(
                dataset=dataset,
                version=dataset.latest,
                num_changed=edited.num_changed,
                deduplicated=False,
            )
        prepared = await self._prepare(edited)
        return await self._publish(request, dataset, prepared)

    async def _prepare(self, edited: Edited) -> PreparedVersion:
        digests = [sample.image_digest for sample in edited.manifest.samples]
        images = await self._platform.database.read(
            lambda connection: find_images(connection, digests)
        )
        return await asyncio.to_thread(
            prepare_version,
            edited.manifest,
            images,
            self._platform.blobs.folder,
            num_changed=edited.num_changed,
        )

    async def _publish(
        self, request: Request, base: Dataset, prepared: PreparedVersion
    ) -> EditOutcome:
        place = NextVersion(
            owner=base.owner,
            dataset=base.name,
            number=base.latest.number + 1,
            created_by=self._platform.new_name(EDIT_PREFIX),
            etag=self._platform.new_name("etag"),
            now=self._platform.clock.now(),
        )

        def publish(connection: Connection) -> EditOutcome:
            version = find_edit(connection, request, base.name)
            deduplicated = version is not None
            if version is None:
                self._check_editable(connection, base.owner, base.name, base.etag)
                version = publish_version(connection, prepared, place, self._platform.blobs)
                record_request(connection, request, version.created_by, place.now)
            return EditOutcome(
                dataset=storage.get_dataset(connection, base.owner, base.name),
                version=version,
                num_changed=version.num_changed,
                deduplicated=deduplicated,
            )

        await asyncio.to_thread(self._platform.failpoint, "edit.before_publish")
        outcome = await self._platform.database.write(publish)
        await asyncio.to_thread(self._platform.failpoint, "edit.published")
        return outcome

    def _check_editable(self, connection: Connection, owner: str, name: str, etag: str) -> None:
        dataset = storage.get_dataset(connection, owner, name)
        check_unlocked(connection, owner, name, now=self._platform.clock.now())
        storage.check_etag(dataset, etag)
        storage.check_takes_new(dataset)

    async def delete_dataset(self, owner: str, name: str, *, etag: str, after_use: bool) -> bool:
        """Removes a dataset, or marks it for removal.

        Returns:
            Whether it waits for its pins to end.

        Raises:
            NotFound: There is none.
            Aborted: ETAG_MISMATCH or DATASET_BUSY.
            FailedPrecondition: RESOURCE_PINNED.
        """

        def work(connection: Connection) -> bool:
            dataset = storage.get_dataset(connection, owner, name)
            if etag:
                storage.check_etag(dataset, etag)
            check_unlocked(connection, owner, name, now=self._platform.clock.now())
            return self._remove(connection, dataset, None, after_use=after_use)

        return await self._platform.database.write(work)

    async def delete_version(self, owner: str, name: str, number: int, *, after_use: bool) -> bool:
        """Removes a version, or marks it for removal.

        Returns:
            Whether it waits for its pins to end.

        Raises:
            NotFound: There is none.
            FailedPrecondition: RESOURCE_PINNED or VERSION_IS_LATEST.
        """

        def work(connection: Connection) -> bool:
            storage.get_version(connection, owner, name, number)
            dataset = storage.get_dataset(connection, owner, name)
            if dataset.latest.number == number:
                raise FailedPrecondition(
                    Reason.VERSION_IS_LATEST,
                    f"version {number} is the latest of {name}; make another first, or delete the"
                    " dataset",
                )
            return self._remove(connection, dataset, number, after_use=after_use)

        return await self._platform.database.write(work)

    def _remove(
        self, connection: Connection, dataset: Dataset, number: int | None, *, after_use: bool
    ) -> bool:
        now = self._platform.clock.now()
        pins = storage.pins_of(connection, dataset.owner, dataset.name, number, now=now)
        if not pins:
            remove(connection, dataset.owner, dataset.name, number, now=now)
            return False
        if not after_use:
            raise FailedPrecondition(
                Reason.RESOURCE_PINNED,
                f"{pins[0].holder} uses version {pins[0].number} of {dataset.name}",
                details={"holder": pins[0].holder, "version": str(pins[0].number)},
            )
        etag = self._platform.new_name("etag")
        storage.set_deletion_pending(connection, dataset, number, etag=etag, now=now)
        return True

    async def unpin(self, owner: str, name: str, number: int, *, holder: str) -> None:
        """Ends a pin, if there is one; what waited for it goes."""

        def work(connection: Connection) -> None:
            storage.unpin_version(connection, owner, name, number, holder=holder)
            remove_unused(connection, now=self._platform.clock.now())

        await self._platform.database.write(work)

    async def maintain(self) -> None:
        """Removes what waited for pins that have lapsed, and what is known of images that are gone."""

        def work(connection: Connection) -> None:
            remove_unused(connection, now=self._platform.clock.now())
            purge_images(connection)

        await self._platform.database.write(work)


def find_edit(connection: Connection, request: Request, dataset: str) -> Version | None:
    """The version that this very request made before.

    Raises:
        AlreadyExists: REQUEST_ID_REUSED.
        NotFound: The version is gone.
    """
    known = find_request(connection, request)
    if known is None:
        return None
    version = storage.find_version_by(connection, known.resource)
    if version is None:
        raise NotFound.resource("dataset version", f"{dataset}, made by {known.resource}")
    return version


def edited_manifest(manifest: Manifest, edits: Sequence[Edit]) -> Edited:
    """The manifest after the edits. Raises InvalidArgument or NotFound."""
    try:
        return apply_edits(manifest, edits)
    except EditError as error:
        raise InvalidArgument.field(f"edits[{error.edit}]", str(error)) from error
    except SampleNotFoundError as error:
        raise NotFound.resource("sample", error.file_name) from error


def remove_unused(connection: Connection, *, now: datetime) -> None:
    """Removes what is marked for removal and has no pin any more."""
    for owner, name, number in storage.pending_deletions(connection):
        if not storage.pins_of(connection, owner, name, number, now=now):
            remove(connection, owner, name, number, now=now)


def remove(
    connection: Connection, owner: str, name: str, number: int | None, *, now: datetime
) -> None:
    """Removes a version or, without a number, the dataset."""
    if number is None:
        versions.remove_dataset(connection, owner, name, now=now)
    else:
        version = storage.get_version(connection, owner, name, number)
        versions.remove_version(connection, version, now=now)
