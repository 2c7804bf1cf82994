import errno
import hashlib
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import func, select

from job_stores import opened_database
from sfumato_chassis.blobs import (
    CHUNK_BYTES,
    UNREFERENCED_RETENTION,
    Blob,
    BlobFolder,
    BlobStore,
    digest_of,
    drop_references,
    set_references,
)
from sfumato_chassis.clock import ManualClock, SystemClock
from sfumato_chassis.errors import DataLoss, NotFound, Reason
from sfumato_chassis.failpoints import FailpointError, Failpoints, parse, unarmed
from sfumato_chassis.identifiers import random_name
from sfumato_chassis.tables import blobs as blobs_table

MEDIA_TYPE = "image/png"
HOUR_SECONDS = 3600.0
DAY_SECONDS = UNREFERENCED_RETENTION.total_seconds()


@pytest.fixture
def clock() -> ManualClock:
    """An hour behind the clock that files are stamped with."""
    return ManualClock(SystemClock().now() - timedelta(hours=1))


@pytest.fixture
def folder(tmp_path: Path) -> BlobFolder:
    return BlobFolder(tmp_path / "blobs", new_name=random_name, failpoint=unarmed)


@pytest.fixture
async def blobs(tmp_path: Path, folder: BlobFolder, clock: ManualClock) -> AsyncIterator[BlobStore]:
    async with opened_database(tmp_path) as database:
        yield BlobStore(database, folder, clock=clock)


def files(folder: BlobFolder) -> set[str]:
    return {path.name for path in folder.root.rglob("*") if path.is_file()}


async def read(blobs: BlobStore, blob: Blob, offset: int = 0, limit: int | None = None) -> bytes:
    chunks = [chunk async for chunk in blobs.read(blob, offset, limit)]
    assert all(0 < len(chunk) <= CHUNK_BYTES for chunk in chunks)
    return b"".join(chunks)


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 1])
async def test_bytes_come_back(blobs: BlobStore, tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    blob = await blobs.put(data, media_type=MEDIA_TYPE)
    assert blob.digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert await blobs.get(blob.digest) == blob
    assert await read(blobs, blob) == data
    (tmp_path / "file").write_bytes(data)
    assert await blobs.put(tmp_path / "file", media_type=MEDIA_TYPE) == blob
    assert files(blobs.folder) == {blob.digest.removeprefix("sha256:")}


@pytest.mark.parametrize(("offset", "limit"), [(0, 3), (2, None), (2, 2), (6, None), (1, 100)])
async def test_a_part_comes_back(blobs: BlobStore, offset: int, limit: int | None) -> None:
    blob = await blobs.put(b"abcdef", media_type=MEDIA_TYPE)
    end = None if limit is None else offset + limit
    assert await read(blobs, blob, offset, limit) == b"abcdef"[offset:end]


async def test_what_is_not_stored_is_not_found(blobs: BlobStore) -> None:
    with pytest.raises(NotFound):
        await blobs.get(digest_of(b"absent"))


@pytest.mark.parametrize("damage", [b"abcdeX", b"abcde", b"abcdefg", b"", None])
async def test_damaged_bytes_are_refused(blobs: BlobStore, damage: bytes | None) -> None:
    blob = await blobs.put(b"abcdef", media_type=MEDIA_TYPE)
    path = blobs.folder.path(blob.digest)
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    with pytest.raises(DataLoss) as caught:
        await read(blobs, blob)
    assert caught.value.reason is Reason.BLOB_CORRUPT


@pytest.mark.parametrize("gone", [True, False])
async def test_bytes_that_vanish_on_the_way_are_damage(blobs: BlobStore, gone: bool) -> None:
    blob = await blobs.put(os.urandom(2 * CHUNK_BYTES), media_type=MEDIA_TYPE)
    chunks = blobs.read(blob, 0, None)
    assert len(await anext(chunks)) == CHUNK_BYTES
    path = blobs.folder.path(blob.digest)
    path.unlink() if gone else os.truncate(path, CHUNK_BYTES)
    with pytest.raises(DataLoss):
        await anext(chunks)


@pytest.mark.parametrize("place", ["blob.staged", "blob.flushed"])
def test_what_was_not_renamed_is_not_there(tmp_path: Path, place: str) -> None:
    failing = Failpoints(parse(f"{place}=error"))
    folder = BlobFolder(tmp_path / "blobs", new_name=random_name, failpoint=failing)
    with pytest.raises(FailpointError):
        folder.put(b"abc")
    assert not folder.path(digest_of(b"abc")).exists()
    healthy = BlobFolder(tmp_path / "blobs", new_name=random_name, failpoint=unarmed)
    assert healthy.path(healthy.put(b"abc")).read_bytes() == b"abc"


async def test_only_what_nobody_refers_to_is_collected(
    blobs: BlobStore, clock: ManualClock, tmp_path: Path
) -> None:
    kept = await blobs.put(b"kept", media_type=MEDIA_TYPE)
    lost = await blobs.put(b"lost", media_type=MEDIA_TYPE)
    async with opened_database(tmp_path) as database:
        await database.write(lambda c: set_references(c, "tests", "a", [kept.digest] * 2))
        assert await blobs.collect_unreferenced() == 0
        clock.advance(DAY_SECONDS + 2 * HOUR_SECONDS)
        assert await blobs.collect_unreferenced() == 1
        assert await read(blobs, kept) == b"kept"
        assert files(blobs.folder) == {kept.digest.removeprefix("sha256:")}
        with pytest.raises(NotFound):
            await blobs.get(lost.digest)
        await database.write(lambda c: drop_references(c, "tests", "a", clock.now()))
        assert await blobs.collect_unreferenced() == 0
        clock.advance(DAY_SECONDS + 2 * HOUR_SECONDS)
        assert await blobs.collect_unreferenced() == 1
        count = select(func.count()).select_from(blobs_table)
        assert await database.read(lambda c: c.execute(count).scalar_one()) == 0


@pytest.mark.parametrize("again", [True, False])
async def test_known_bytes_that_are_put_again_are_spared(
    blobs: BlobStore, clock: ManualClock, again: bool
) -> None:
    """An import puts images long before its version refers to them."""
    blob = await blobs.put(b"abc", media_type=MEDIA_TYPE)
    os.utime(blobs.folder.path(blob.digest), (1, 1))
    clock.advance(DAY_SECONDS + HOUR_SECONDS / 2)
    if again:
        blobs.folder.put(b"abc")
    assert await blobs.collect_unreferenced() == (0 if again else 1)


async def test_files_without_a_row_are_collected_too(blobs: BlobStore, clock: ManualClock) -> None:
    blobs.folder.put(b"of an import that failed")
    staged = blobs.folder.root / "staging" / "blob-of-a-crash"
    staged.parent.mkdir(exist_ok=True)
    staged.write_bytes(b"half")
    assert await blobs.collect_unreferenced() == 0
    clock.advance(DAY_SECONDS + 2 * HOUR_SECONDS)
    assert await blobs.collect_unreferenced() == 2
    assert files(blobs.folder) == set()


@pytest.mark.parametrize("damage", [b"", b"abcdeX", b"abcdef and more"])
async def test_bytes_that_are_not_those_of_their_digest_are_written_anew(
    blobs: BlobStore, tmp_path: Path, damage: bytes
) -> None:
    blob = await blobs.put(b"abcdef", media_type=MEDIA_TYPE)
    (tmp_path / "file").write_bytes(b"abcdef")
    for again in (b"abcdef", tmp_path / "file"):
        blobs.folder.path(blob.digest).write_bytes(damage)
        assert await blobs.put(again, media_type=MEDIA_TYPE) == blob
        assert await read(blobs, blob) == b"abcdef"
    assert files(blobs.folder) == {blob.digest.removeprefix("sha256:")}


def test_nothing_stays_staged_of_what_found_no_space(folder: BlobFolder) -> None:
    def full(name: str) -> None:
        if name == "blob.staged":
            raise OSError(errno.ENOSPC, "No space left on device")

    limited = BlobFolder(folder.root, new_name=random_name, failpoint=full)
    with pytest.raises(OSError, match="No space"):
        limited.put(b"abcdef")
    assert files(folder) == set()
