"""Content-addressed bytes on obstore, with references that keep them.

A blob appears whole or not at all: it is written under a staging name, flushed, then renamed. The
folder is flushed too, so that an acknowledged blob survives a power cut.
"""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path

import obstore
from obstore.exceptions import BaseError as ObstoreError
from obstore.store import LocalStore
from sqlalchemy import Connection, delete, insert, select, update

from sfumato_chassis.clock import Clock
from sfumato_chassis.database import Database
from sfumato_chassis.errors import DataLoss, NotFound, Reason
from sfumato_chassis.failpoints import Failpoint
from sfumato_chassis.identifiers import NewName
from sfumato_chassis.tables import blob_references, blobs

CHUNK_BYTES = 1024 * 1024
DIGESTS_A_QUERY = 500
FOLDER = "sha256"
STAGING = "staging"
UNREFERENCED_RETENTION = timedelta(hours=24)


@dataclass(frozen=True, kw_only=True, slots=True)
class Blob:
    """Bytes by what they are; ``digest`` is ``sha256:`` and 64 hexadecimal digits."""

    digest: str
    size_bytes: int
    media_type: str


def digest_of(data: bytes) -> str:
    """The digest of bytes in memory."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def digest_of_file(path: Path) -> str:
    """The digest of a file, read in chunks."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def key_of(digest: str) -> str:
    """Where a blob lies in the store."""
    hexadecimal = digest.removeprefix("sha256:")
    return f"{FOLDER}/{hexadecimal[:2]}/{hexadecimal}"


class BlobFolder:
    """The bytes alone, without the table: what a worker process needs to read and to add blobs."""

    def __init__(self, root: Path, *, new_name: NewName, failpoint: Failpoint) -> None:
        (root / FOLDER).mkdir(parents=True, exist_ok=True)
        flush(root)
        self.root = root
        self._store = LocalStore(root)
        self._new_name = new_name
        self._failpoint = failpoint
        self._durable_folders: set[Path] = set()

    def path(self, digest: str) -> Path:
        """The file that holds a blob."""
        return self.root / key_of(digest)

    def put(self, data: bytes | Path) -> str:
        """Stores bytes or a file's content durably, unless they are there; answers the digest.

        A file under the digest whose bytes are others is damaged, and is replaced.

        Raises:
            OSError: The bytes could not be read or written.
            obstore.exceptions.BaseError: They could not be written.
        """
        digest = digest_of(data) if isinstance(data, bytes) else digest_of_file(data)
        if self._touch(digest) and self.holds(digest):
            # Whoever put it may have died before its name was on the disk.
            self._flush_name(digest)
            return digest
        staged = f"{STAGING}/{self._new_name('blob')}"
        try:
            obstore.put(self._store, staged, data)
            self._failpoint("blob.staged")
            flush(self.root / staged)
            self._failpoint("blob.flushed")
            obstore.rename(self._store, staged, key_of(digest))
        except (OSError, ObstoreError):
            (self.root / staged).unlink(missing_ok=True)
            raise
        self._failpoint("blob.renamed")
        self._flush_name(digest)
        self._failpoint("blob.stored")
        return digest

    def holds(self, digest: str) -> bool:
        """Whether a blob is there, byte for byte. Reads the whole of it.

        Raises:
            OSError: It is there and could not be read.
        """
        try:
            return digest_of_file(self.path(digest)) == digest
        except FileNotFoundError:
            return False

    def untouched_since(self, time: datetime) -> list[Path]:
        """The files that were last put before ``time``: blobs, and what a crash left staged."""
        patterns = (f"{FOLDER}/*/*", f"{STAGING}/*")
        files = [path for pattern in patterns for path in self.root.glob(pattern)]
        return [path for path in files if is_older(path, time)]

    def _flush_name(self, digest: str) -> None:
        folder = self.path(digest).parent
        flush(folder)
        if folder not in self._durable_folders:  # none is ever removed
            flush(folder.parent)
            self._durable_folders.add(folder)

    def _touch(self, digest: str) -> bool:
        """Marks stored bytes as wanted, so that the collector spares them; False when missing."""
        try:
            os.utime(self.path(digest))
        except FileNotFoundError:
            return False
        return True


class BlobStore:
    """Blobs with their sizes, types and references."""

    def __init__(self, database: Database, folder: BlobFolder, *, clock: Clock) -> None:
        self._database = database
        self.folder = folder
        self._clock = clock

    async def put(self, data: bytes | Path, *, media_type: str) -> Blob:
        """Stores bytes or a file's content. Without a reference they last 24 h."""
        digest = await asyncio.to_thread(self.folder.put, data)
        size = len(data) if isinstance(data, bytes) else data.stat().st_size
        blob = Blob(digest=digest, size_bytes=size, media_type=media_type)
        await self._database.write(lambda connection: self.record(connection, blob))
        return blob

    def record(self, connection: Connection, *stored: Blob) -> None:
        """Enters blobs whose bytes are stored, inside a transaction."""
        by_digest = {blob.digest: blob for blob in stored}
        now = self._clock.now()
        for part in parts_of(sorted(by_digest)):
            known = set(
                connection.execute(select(blobs.c.digest).where(blobs.c.digest.in_(part))).scalars()
            )
            connection.execute(
                update(blobs).where(blobs.c.digest.in_(known)).values(touch_time=now)
            )
            new = [by_digest[digest] for digest in part if digest not in known]
            if new:
                connection.execute(
                    insert(blobs), [{**asdict(blob), "touch_time": now} for blob in new]
                )

    async def get(self, digest: str) -> Blob:
        """The blob with this digest.

        Raises:
            NotFound: It is not stored.
        """
        blob = await self._database.read(lambda connection: find_blob(connection, digest))
        if blob is None:
            raise NotFound.resource("blob", digest)
        return blob

    async def read(self, blob: Blob, offset: int, limit: int | None) -> AsyncIterator[bytes]:
        """Yields the bytes from ``offset`` on in chunks of at most 1 MiB.

        Raises:
            DataLoss: The stored file is missing or of another size; or, for a read of the whole
                blob, its content has another digest (found at the last chunk, which is withheld).
        """
        path = self.folder.path(blob.digest)
        size = await asyncio.to_thread(file_size, path)
        if size != blob.size_bytes:
            raise corrupt(blob)
        end = blob.size_bytes if limit is None else min(blob.size_bytes, offset + limit)
        whole = hashlib.sha256() if offset == 0 and end == blob.size_bytes else None
        while offset < end:
            chunk = await asyncio.to_thread(
                read_range, path, offset, min(CHUNK_BYTES, end - offset)
            )
            if not chunk:
                raise corrupt(blob)
            offset += len(chunk)
            if whole is not None:
                whole.update(chunk)
                if offset == end and f"sha256:{whole.hexdigest()}" != blob.digest:
                    raise corrupt(blob)
            yield chunk

    async def collect_unreferenced(self) -> int:
        """Removes what has had no reference and was not put for 24 h; answers how many files."""

        before = self._clock.now() - UNREFERENCED_RETENTION
        # Not every file has a row: an import that fails has stored images already.
        candidates = await asyncio.to_thread(self.folder.untouched_since, before)

        def work(connection: Connection) -> int:
            unused = blobs.c.digest.not_in(select(blob_references.c.digest))
            kept = set(connection.execute(select(blob_references.c.digest)).scalars())
            kept.update(
                connection.execute(
                    select(blobs.c.digest).where(blobs.c.touch_time >= before)
                ).scalars()
            )
            num_removed = 0
            for path in candidates:
                if f"sha256:{path.name}" not in kept and is_older(path, before):
                    path.unlink()
                    num_removed += 1
            old = select(blobs.c.digest).where(blobs.c.touch_time < before, unused)
            for digest in connection.execute(old).scalars().all():
                if not self.folder.path(digest).is_file():
                    connection.execute(delete(blobs).where(blobs.c.digest == digest))
            return num_removed

        return await self._database.write(work)


def parts_of(digests: Sequence[str]) -> Iterator[Sequence[str]]:
    """Parts of a list that one query can name."""
    for start in range(0, len(digests), DIGESTS_A_QUERY):
        yield digests[start : start + DIGESTS_A_QUERY]


def find_blob(connection: Connection, digest: str) -> Blob | None:
    """The blob with this digest, inside a transaction."""
    row = connection.execute(select(blobs).where(blobs.c.digest == digest)).one_or_none()
    if row is None:
        return None
    return Blob(digest=row.digest, size_bytes=row.size_bytes, media_type=row.media_type)


def first_missing(connection: Connection, digests: Sequence[str]) -> str | None:
    """The first of ``digests`` that is not stored, inside a transaction."""
    for part in parts_of(digests):
        known = set(
            connection.execute(select(blobs.c.digest).where(blobs.c.digest.in_(part))).scalars()
        )
        for digest in part:
            if digest not in known:
                return digest
    return None


def set_references(
    connection: Connection, service: str, resource: str, digests: Sequence[str]
) -> None:
    """Keeps exactly these blobs for as long as ``resource`` of ``service`` is there."""
    delete_references(connection, service, resource)
    if digests:
        connection.execute(
            insert(blob_references),
            [
                {"service": service, "resource": resource, "digest": digest}
                for digest in sorted(set(digests))
            ],
        )


def drop_references(connection: Connection, service: str, resource: str, now: datetime) -> None:
    """Ends what ``set_references`` began; the 24 h of the blobs begin ``now``."""
    referenced = select(blob_references.c.digest).where(
        blob_references.c.service == service, blob_references.c.resource == resource
    )
    connection.execute(update(blobs).where(blobs.c.digest.in_(referenced)).values(touch_time=now))
    delete_references(connection, service, resource)


def delete_references(connection: Connection, service: str, resource: str) -> None:
    """Removes the rows of ``resource``."""
    connection.execute(
        delete(blob_references).where(
            blob_references.c.service == service, blob_references.c.resource == resource
        )
    )


def file_size(path: Path) -> int:
    """Size of a file in bytes; -1 when it is missing."""
    return path.stat().st_size if path.is_file() else -1


def is_older(path: Path, time: datetime) -> bool:
    """Whether a file is there and was last put before ``time``."""
    return path.is_file() and path.stat().st_mtime < time.timestamp()


def read_range(path: Path, offset: int, length: int) -> bytes:
    """Up to ``length`` bytes of a file from ``offset`` on; none when it ends before, or is gone."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(length)
    except FileNotFoundError:
        return b""


def corrupt(blob: Blob) -> DataLoss:
    """The error of a blob whose bytes are not what its digest says."""
    return DataLoss(Reason.BLOB_CORRUPT, f"the stored bytes of {blob.digest} are damaged")


def flush(path: Path) -> None:
    """Brings a file, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
