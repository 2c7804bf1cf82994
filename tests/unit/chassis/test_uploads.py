from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from structlog.testing import capture_logs

from job_stores import OWNER, opened_database, request
from sfumato_chassis.blobs import BlobFolder, BlobStore, digest_of
from sfumato_chassis.clock import ManualClock, SystemClock
from sfumato_chassis.errors import (
    AlreadyExists,
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutOfRange,
    Reason,
    ResourceExhausted,
)
from sfumato_chassis.failpoints import unarmed
from sfumato_chassis.identifiers import random_name
from sfumato_chassis.uploads import UPLOAD_RETENTION, Upload, UploadStore

DATA = b"0123456789"


class SlowReader(UploadStore):
    """Lets something happen between the first reading of an upload and its use."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def get(self, name: str, owner: str) -> Upload:
        upload = await super().get(name, owner)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return upload


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(SystemClock().now())


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SlowReader]:
    folder = BlobFolder(tmp_path / "blobs", new_name=random_name, failpoint=unarmed)
    async with opened_database(tmp_path) as database:
        blobs = BlobStore(database, folder, clock=clock)
        yield SlowReader(database, blobs, tmp_path / "uploads", clock=clock, new_name=random_name)


async def create(store: UploadStore, data: bytes = DATA, **fields: Any) -> Upload:
    asked = fields.pop("asked", None) or request(data)
    settings = {"digest": digest_of(data), "size_bytes": len(data), "media_type": "text/plain"}
    upload, _ = await store.create(asked, **{**settings, **fields})
    return upload


async def write(store: UploadStore, upload: Upload, offset: int, data: bytes) -> int:
    return await store.write_chunk(
        upload.name, OWNER, offset=offset, data=data, crc32c=google_crc32c.value(data)
    )


async def test_chunks_become_a_blob(store: UploadStore, tmp_path: Path) -> None:
    upload = await create(store)
    assert (upload.committed_size_bytes, upload.complete) == (0, False)
    assert await write(store, upload, 0, DATA[:4]) == 4
    assert (await store.get(upload.name, OWNER)).committed_size_bytes == 4
    assert await write(store, upload, 4, DATA[4:]) == 10
    blob = await store.complete(upload.name, OWNER)
    assert (blob.digest, blob.size_bytes) == (digest_of(DATA), 10)
    assert await store.complete(upload.name, OWNER) == blob
    assert list((tmp_path / "uploads").iterdir()) == []


async def test_stored_bytes_are_read_only_where_that_decides(
    store: UploadStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    holds = BlobFolder.holds

    def counted(folder: BlobFolder, digest: str) -> bool:
        read.append(digest)
        return holds(folder, digest)

    monkeypatch.setattr(BlobFolder, "holds", counted)
    upload = await create(store)
    await write(store, upload, 0, DATA)
    await store.complete(upload.name, OWNER)
    assert read == []
    asked = request(DATA)
    for _ in range(2):
        assert (await create(store, asked=asked)).complete
        assert read == [digest_of(DATA)]
    with pytest.raises(InvalidArgument, match="not the size"):
        await create(store, size_bytes=len(DATA) + 1)
    assert read == [digest_of(DATA)]


async def test_the_same_bytes_again_are_no_error(store: UploadStore) -> None:
    upload = await create(store)
    await write(store, upload, 0, DATA[:6])
    assert await write(store, upload, 0, DATA[:6]) == 6
    assert await write(store, upload, 2, DATA[2:4]) == 6
    await write(store, upload, 6, DATA[6:])
    await store.complete(upload.name, OWNER)
    assert await write(store, upload, 0, DATA[:6]) == 10


@pytest.mark.parametrize(
    ("offset", "data"), [(5, b"5"), (0, b"01234"), (3, b"3456"), (2, b"X"), (0, b"X123")]
)
async def test_a_chunk_that_begins_elsewhere_is_told_where_to_go_on(
    store: UploadStore, offset: int, data: bytes
) -> None:
    upload = await create(store)
    await write(store, upload, 0, DATA[:4])
    with pytest.raises(OutOfRange) as caught:
        await write(store, upload, offset, data)
    assert caught.value.details == {"committed_size_bytes": "4"}
    await write(store, upload, 4, DATA[4:])
    assert (await store.complete(upload.name, OWNER)).digest == digest_of(DATA)


async def test_more_than_the_disk_holds_is_refused_and_stands_in_the_log(
    store: UploadStore,
) -> None:
    with capture_logs() as lines, pytest.raises(ResourceExhausted) as caught:
        await create(store, size_bytes=1 << 60)
    assert caught.value.reason is Reason.DISK_FULL
    (line,) = lines
    assert line["error_id"] == caught.value.error_id
    assert line["size_bytes"] == 1 << 60


async def test_a_wrong_checksum_commits_nothing(store: UploadStore) -> None:
    upload = await create(store)
    with pytest.raises(InvalidArgument, match="crc32c"):
        await store.write_chunk(upload.name, OWNER, offset=0, data=DATA, crc32c=1)
    assert (await store.get(upload.name, OWNER)).committed_size_bytes == 0


async def test_a_chunk_past_the_end_is_refused(store: UploadStore) -> None:
    upload = await create(store)
    with pytest.raises(InvalidArgument, match="passes the announced size"):
        await write(store, upload, 0, DATA + b"!")
    with pytest.raises(InvalidArgument, match="passes the announced size"):
        await write(store, upload, 2**63 - 1, b"!")


async def test_what_a_crash_wrote_but_did_not_commit_is_overwritten(
    store: UploadStore, tmp_path: Path
) -> None:
    upload = await create(store)
    await write(store, upload, 0, DATA[:4])
    with (tmp_path / "uploads" / upload.name).open("ab") as file:
        file.write(b"of a longer chunk that was cut")
    await write(store, upload, 4, DATA[4:])
    assert (await store.complete(upload.name, OWNER)).size_bytes == 10


async def test_missing_bytes_are_told(store: UploadStore) -> None:
    upload = await create(store)
    await write(store, upload, 0, DATA[:4])
    with pytest.raises(FailedPrecondition) as caught:
        await store.complete(upload.name, OWNER)
    assert caught.value.details == {"committed_size_bytes": "4"}


async def test_another_digest_ends_the_upload_and_its_request_may_come_again(
    store: UploadStore,
) -> None:
    asked = request()
    upload = await create(store, asked=asked, digest=digest_of(b"other"))
    await write(store, upload, 0, DATA)
    with pytest.raises(DataLoss):
        await store.complete(upload.name, OWNER)
    with pytest.raises(NotFound):
        await store.get(upload.name, OWNER)
    again = await create(store, asked=asked, digest=digest_of(b"other"))
    assert (again.committed_size_bytes, again.complete) == (0, False)


async def test_known_bytes_are_complete_at_once(store: UploadStore) -> None:
    first = await create(store)
    await write(store, first, 0, DATA)
    await store.complete(first.name, OWNER)
    second = await create(store)
    assert (second.complete, second.committed_size_bytes) == (True, 10)
    assert (await store.complete(second.name, OWNER)).digest == digest_of(DATA)
    with pytest.raises(InvalidArgument, match="size_bytes"):
        await create(store, size_bytes=11)


async def test_an_empty_upload_needs_no_chunk(store: UploadStore) -> None:
    upload = await create(store, b"")
    assert (await store.complete(upload.name, OWNER)).size_bytes == 0


async def test_the_same_request_finds_its_upload(store: UploadStore) -> None:
    asked = request(b"body")
    upload = await create(store, asked=asked)
    assert await create(store, asked=asked) == upload
    with pytest.raises(AlreadyExists):
        await create(store, asked=replace(asked, fingerprint=b"x" * 32))


async def test_another_owners_upload_is_not_there(store: UploadStore) -> None:
    upload = await create(store)
    with pytest.raises(NotFound):
        await store.get(upload.name, "another")


async def test_completing_twice_at_once_answers_both(store: SlowReader) -> None:
    upload = await create(store)
    await write(store, upload, 0, DATA)
    store.meanwhile = lambda: store.complete(upload.name, OWNER)
    assert (await store.complete(upload.name, OWNER)).digest == digest_of(DATA)


async def test_unfinished_uploads_are_removed_in_time(
    store: UploadStore, clock: ManualClock, tmp_path: Path
) -> None:
    asked = request()
    upload = await create(store, asked=asked)
    await write(store, upload, 0, DATA[:4])
    assert await store.purge() == 0
    clock.advance(UPLOAD_RETENTION.total_seconds())
    assert await store.purge() == 1
    assert list((tmp_path / "uploads").iterdir()) == []
    with pytest.raises(NotFound):
        await write(store, upload, 4, DATA[4:])
    assert (await create(store, asked=asked)).committed_size_bytes == 0


@pytest.mark.parametrize("damage", [None, b"01234", b"012345678X"])
async def test_a_known_blob_whose_bytes_are_damaged_is_uploaded_again(
    store: UploadStore, tmp_path: Path, damage: bytes | None
) -> None:
    first = await create(store)
    await write(store, first, 0, DATA)
    await store.complete(first.name, OWNER)
    file = BlobFolder(tmp_path / "blobs", new_name=random_name, failpoint=unarmed).path(
        digest_of(DATA)
    )
    assert (await create(store, asked=request(b"whole"))).complete
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(damage)
    again = await create(store, asked=request(b"damaged"))
    assert not again.complete
    await write(store, again, 0, DATA)
    await store.complete(again.name, OWNER)
    assert file.read_bytes() == DATA
