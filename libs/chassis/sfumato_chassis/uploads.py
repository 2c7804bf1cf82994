"""Uploads in chunks. What is committed is on the disk; a lost answer is repeated without harm."""

import asyncio
import shutil
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import google_crc32c
from sqlalchemy import Connection, Row, delete, insert, select, update

from sfumato_chassis.blobs import Blob, BlobStore, digest_of_file, find_blob, flush
from sfumato_chassis.clock import Clock
from sfumato_chassis.database import Database
from sfumato_chassis.errors import (
    RETRY_AFTER_DISK_FULL_SECONDS,
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutOfRange,
    Reason,
    ResourceExhausted,
)
from sfumato_chassis.identifiers import NewName
from sfumato_chassis.logging import get_logger
from sfumato_chassis.requests import Request, find_request, forget_request, record_request
from sfumato_chassis.tables import uploads

UPLOAD_RETENTION = timedelta(hours=24)

log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Upload:
    """An upload and how far it is."""

    name: str
    owner: str
    digest: str
    size_bytes: int
    media_type: str
    committed_size_bytes: int
    complete: bool
    create_time: datetime
    expire_time: datetime


class UploadStore:
    """Uploads of every owner."""

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        folder: Path,
        *,
        clock: Clock,
        new_name: NewName,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._database = database
        self._blobs = blobs
        self._folder = folder
        self._clock = clock
        self._new_name = new_name

    async def create(
        self, request: Request, *, digest: str, size_bytes: int, media_type: str
    ) -> tuple[Upload, bool]:
        """Opens an upload, complete at once when the blob is stored already and is not damaged.

        Returns:
            The upload, and whether this request made it before.

        Raises:
            AlreadyExists: REQUEST_ID_REUSED.
            InvalidArgument: The stored blob of this digest has another size.
            ResourceExhausted: DISK_FULL, there is no space for a blob of this size.
        """
        whole = await self._database.read(
            lambda connection: (
                find_request(connection, request) is None
                and (blob := find_blob(connection, digest)) is not None
                and blob.size_bytes == size_bytes
            )
        ) and await asyncio.to_thread(self._blobs.folder.holds, digest)
        free_bytes = None if whole else await asyncio.to_thread(self._free_bytes)

        def work(connection: Connection) -> tuple[Upload, bool]:
            known = find_request(connection, request)
            if known is not None:
                return find_upload(connection, known.resource, request.principal), True
            stored = find_blob(connection, digest)
            if stored is not None and stored.size_bytes != size_bytes:
                raise InvalidArgument.field("size_bytes", "not the size of the blob of this digest")
            now = self._clock.now()
            complete = stored is not None and whole
            if free_bytes is not None and size_bytes > free_bytes:
                raise no_space(size_bytes, free_bytes)
            upload = Upload(
                name=self._new_name("upload"),
                owner=request.principal,
                digest=digest,
                size_bytes=size_bytes,
                media_type=media_type or "application/octet-stream",
                committed_size_bytes=size_bytes if complete else 0,
                complete=complete,
                create_time=now,
                expire_time=now + UPLOAD_RETENTION,
            )
            if stored is not None and complete:
                self._blobs.record(connection, stored)
            connection.execute(
                insert(uploads).values({key: getattr(upload, key) for key in Upload.__slots__})
            )
            record_request(connection, request, upload.name, now)
            return upload, False

        return await self._database.write(work)

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self._folder).free

    async def get(self, name: str, owner: str) -> Upload:
        """The upload ``name`` of ``owner``. Raises NotFound."""
        return await self._database.read(lambda connection: find_upload(connection, name, owner))

    async def write_chunk(
        self, name: str, owner: str, *, offset: int, data: bytes, crc32c: int
    ) -> int:
        """Commits a chunk; answers the committed size.

        Raises:
            InvalidArgument: The checksum is not that of the data, or the chunk passes the end.
            OutOfRange: The chunk does not begin at the committed size.
        """
        if google_crc32c.value(data) != crc32c:
            raise InvalidArgument.field("crc32c", "not the checksum of data")

        def work(connection: Connection) -> int:
            upload = find_upload(connection, name, owner)
            committed, end = upload.committed_size_bytes, offset + len(data)
            if end > upload.size_bytes:
                raise InvalidArgument.field("data", "passes the announced size")
            if upload.complete or (end <= committed and self._holds(name, offset, data)):
                return committed
            if offset != committed:
                raise OutOfRange(
                    Reason.OFFSET_OUT_OF_RANGE,
                    f"the next chunk begins at {committed}",
                    details={"committed_size_bytes": str(committed)},
                )
            self._append(name, offset, data)
            connection.execute(
                update(uploads).where(uploads.c.name == name).values(committed_size_bytes=end)
            )
            return end

        return await self._database.write(work)

    async def complete(self, name: str, owner: str) -> Blob:
        """Verifies the digest and makes the blob readable.

        Raises:
            FailedPrecondition: Bytes are missing.
            DataLoss: The bytes have another digest; the upload is removed.
        """
        upload = await self.get(name, owner)
        if upload.complete:
            return await self._blobs.get(upload.digest)
        if upload.committed_size_bytes != upload.size_bytes:
            raise FailedPrecondition(
                Reason.UPLOAD_INCOMPLETE,
                f"{upload.committed_size_bytes} of {upload.size_bytes} bytes are committed",
                details={"committed_size_bytes": str(upload.committed_size_bytes)},
            )
        path = self._folder / name
        if upload.size_bytes == 0:
            path.touch()
        try:
            found = await asyncio.to_thread(digest_of_file, path)
            if found != upload.digest:
                await self._database.write(lambda connection: self._remove(connection, name))
                raise DataLoss(Reason.BLOB_CORRUPT, "the bytes received have another digest")
            blob = await self._blobs.put(path, media_type=upload.media_type)
        except FileNotFoundError:
            # A repetition of this call that ran beside it was faster.
            if not (await self.get(name, owner)).complete:
                raise
            return await self._blobs.get(upload.digest)
        await self._database.write(
            lambda connection: connection.execute(
                update(uploads).where(uploads.c.name == name).values(complete=True)
            )
        )
        path.unlink(missing_ok=True)
        return blob

    async def purge(self) -> int:
        """Removes what was not finished in 24 h; answers how many uploads."""

        def work(connection: Connection) -> int:
            names = (
                connection.execute(
                    select(uploads.c.name).where(uploads.c.expire_time <= self._clock.now())
                )
                .scalars()
                .all()
            )
            for name in names:
                self._remove(connection, name)
            return len(names)

        return await self._database.write(work)

    def _remove(self, connection: Connection, name: str) -> None:
        connection.execute(delete(uploads).where(uploads.c.name == name))
        forget_request(connection, name)
        (self._folder / name).unlink(missing_ok=True)

    def _holds(self, name: str, offset: int, data: bytes) -> bool:
        with (self._folder / name).open("rb") as file:
            file.seek(offset)
            return file.read(len(data)) == data

    def _append(self, name: str, offset: int, data: bytes) -> None:
        path = self._folder / name
        path.touch()
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(data)
            file.truncate()
        flush(path)
        flush(self._folder)


def no_space(size_bytes: int, free_bytes: int) -> ResourceExhausted:
    """The error of an upload that the disk does not hold; the log has it too, for whoever runs it."""
    error_id = uuid.uuid4().hex
    log.warning(
        "no space for an upload", error_id=error_id, size_bytes=size_bytes, free_bytes=free_bytes
    )
    return ResourceExhausted(
        Reason.DISK_FULL,
        f"{size_bytes} bytes are announced and {free_bytes} are free",
        error_id=error_id,
        retry_after_seconds=RETRY_AFTER_DISK_FULL_SECONDS,
    )


def find_upload(connection: Connection, name: str, owner: str) -> Upload:
    """The upload ``name`` of ``owner``, inside a transaction. Raises NotFound."""
    row: Row[Any] | None = connection.execute(
        select(uploads).where(uploads.c.name == name, uploads.c.owner == owner)
    ).one_or_none()
    if row is None:
        raise NotFound.resource("upload", name)
    return Upload(**row._mapping)
