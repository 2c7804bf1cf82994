"""A full disk is recognised by real errors of the libraries that meet it."""

import errno
import sqlite3
from collections.abc import Callable
from pathlib import Path

import obstore.exceptions
import pytest
from sqlalchemy import text

from job_stores import opened_database
from sfumato_chassis.database import Database
from sfumato_chassis.disk_space import is_disk_full


def write_to_a_full_device() -> None:
    with Path("/dev/full").open("wb") as file:
        file.write(b"x")


def exceed_a_quota() -> None:
    raise OSError(errno.EDQUOT, "quota")


def write_with_a_library_in_rust() -> None:
    raise obstore.exceptions.GenericError(
        "Generic LocalFileSystem error: No space left on device (os error 28)"
    )


def fail_after_a_full_disk() -> None:
    try:
        write_to_a_full_device()
    except OSError as error:
        raise LookupError("not stored") from error


def fail_while_clearing_up_after_a_full_disk() -> None:
    try:
        write_to_a_full_device()
    except OSError:
        raise RuntimeError("cannot clear up")  # noqa: B904 - the cause stands in the context


@pytest.mark.parametrize(
    "meet",
    [
        write_to_a_full_device,
        exceed_a_quota,
        write_with_a_library_in_rust,
        fail_after_a_full_disk,
        fail_while_clearing_up_after_a_full_disk,
    ],
)
def test_no_space_is_recognised(meet: Callable[[], None]) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any class
        meet()
    assert is_disk_full(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file"),
        OSError(errno.EIO, "I/O error"),
        OSError("No space left on device"),
        ValueError("No space left on device (os error 28)"),
        obstore.exceptions.GenericError("No such file or directory (os error 2)"),
        sqlite3.OperationalError("database or disk is full"),
    ],
    ids=repr,
)
def test_another_error_is_not_one_of_space(error: Exception) -> None:
    assert not is_disk_full(error)


def test_a_chain_that_leads_back_to_itself_ends() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert not is_disk_full(first)


async def fill(database: Database, *, num_pages: int) -> None:
    await database.write(
        lambda connection: connection.execute(text(f"PRAGMA max_page_count = {num_pages}")).all()
    )


async def test_a_full_database_is_recognised_and_works_once_there_is_space(tmp_path: Path) -> None:
    async with opened_database(tmp_path) as database:
        await database.write(lambda c: c.execute(text("CREATE TABLE things (data BLOB)")))
        await fill(database, num_pages=1)
        insert = text("INSERT INTO things VALUES (zeroblob(100000))")
        with pytest.raises(Exception, match="full") as caught:
            await database.write(lambda connection: connection.execute(insert))
        assert is_disk_full(caught.value)
        count = text("SELECT count(*) FROM things")
        assert await database.read(lambda c: c.execute(count).scalar_one()) == 0
        await fill(database, num_pages=100_000)
        await database.write(lambda connection: connection.execute(insert))
        assert await database.read(lambda c: c.execute(count).scalar_one()) == 1
