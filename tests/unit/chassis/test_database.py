import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from sqlite3 import OperationalError

import pytest
import sqlalchemy.exc
from sqlalchemy import Connection, insert, select, text

from job_stores import opened_database
from sfumato_chassis.database import Database, open_engine
from sfumato_chassis.tables import settings

COUNT = "SELECT coalesce(sum(value), 0) FROM counters"
ADD_FROM_ANOTHER_PROCESS = """
import asyncio, sys
from sqlalchemy import text
from sfumato_chassis.database import Database

async def main():
    database = Database(sys.argv[1])
    for _ in range(50):
        await database.write(lambda c: c.execute(text(
            "INSERT INTO counters SELECT coalesce(max(value), 0) + 1 FROM counters")))
    database.close()

asyncio.run(main())
"""


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    async with opened_database(tmp_path) as opened:
        await opened.write(lambda c: c.execute(text("CREATE TABLE counters (value INTEGER)")))
        yield opened


def add(connection: Connection) -> None:
    connection.execute(
        text("INSERT INTO counters SELECT coalesce(max(value), 0) + 1 FROM counters")
    )


@pytest.mark.parametrize(
    ("pragma", "value"),
    [("journal_mode", "wal"), ("synchronous", 2), ("foreign_keys", 1), ("busy_timeout", 15_000)],
)
async def test_both_ends_are_durable(database: Database, pragma: str, value: object) -> None:
    def read(connection: Connection) -> object:
        return connection.execute(text(f"PRAGMA {pragma}")).scalar_one()

    assert await database.write(read) == value
    assert await database.read(read) == value


async def test_a_write_holds_the_lock_from_its_start(database: Database, tmp_path: Path) -> None:
    other = open_engine(database.url, num_connections=1)

    def meet(connection: Connection) -> None:
        with other.connect() as second:
            raw = second.connection.driver_connection
            assert raw is not None
            raw.execute("PRAGMA busy_timeout = 0")
            with pytest.raises(OperationalError, match="locked"):
                raw.execute("BEGIN IMMEDIATE")

    await database.write(meet)
    other.dispose()


async def test_a_transaction_that_cannot_begin_is_an_error_like_any_other(
    database: Database,
) -> None:
    await database.write(lambda connection: connection.execute(text("PRAGMA busy_timeout = 0")))
    other = open_engine(database.url, num_connections=1)
    with other.connect() as second:
        second.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(sqlalchemy.exc.OperationalError, match="locked") as refused:
            await database.write(add)
        assert isinstance(refused.value.orig, OperationalError)
        second.exec_driver_sql("ROLLBACK")
    other.dispose()
    await database.write(add)


async def test_a_database_is_known_by_its_real_file(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    database = Database(f"sqlite:///{tmp_path}/link/../link/store.sqlite3")
    assert database.file == (tmp_path / "real" / "store.sqlite3").resolve()
    database.close()


async def test_a_database_that_is_closed_says_so(tmp_path: Path) -> None:
    async with opened_database(tmp_path) as database:
        await database.write(lambda connection: None)
    for run in (database.read, database.write):
        with pytest.raises(RuntimeError, match="closed"):
            await asyncio.wait_for(run(add), 10)


async def test_work_may_raise_what_no_future_can_hold(database: Database) -> None:
    def stop(connection: Connection) -> None:
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(database.write(stop), 10)


async def test_an_exception_rolls_back(database: Database) -> None:
    def fail(connection: Connection) -> None:
        add(connection)
        raise LookupError

    with pytest.raises(LookupError):
        await database.write(fail)
    assert await database.read(lambda c: c.execute(text(COUNT)).scalar_one()) == 0
    await database.write(add)
    assert await database.read(lambda c: c.execute(text(COUNT)).scalar_one()) == 1


async def test_a_read_sees_one_moment(database: Database) -> None:
    loop = asyncio.get_running_loop()

    def twice(connection: Connection) -> tuple[int, int]:
        before = connection.execute(text(COUNT)).scalar_one()
        asyncio.run_coroutine_threadsafe(database.write(add), loop).result(10)
        return before, connection.execute(text(COUNT)).scalar_one()

    assert await database.read(twice) == (0, 0)
    assert await database.read(lambda c: c.execute(text(COUNT)).scalar_one()) == 1


async def test_two_processes_and_many_tasks_write_one_after_another(database: Database) -> None:
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ADD_FROM_ANOTHER_PROCESS, database.url
    )
    await asyncio.gather(*(database.write(add) for _ in range(50)))
    assert await other.wait() == 0
    values = await database.read(
        lambda c: c.execute(text("SELECT value FROM counters ORDER BY value")).scalars().all()
    )
    assert values == list(range(1, 101))


async def test_times_come_back_exactly(database: Database) -> None:

    times = [
        datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(2026, 2, 28, 1, 2, 3, 4, tzinfo=UTC),
    ]

    def keep(connection: Connection) -> list[datetime]:
        for index, time in enumerate(times):
            row = {"key": str(index), "value": "", "update_time": time}
            connection.execute(insert(settings).values(row))
        found = connection.execute(select(settings.c.update_time).order_by(settings.c.key))
        return list(found.scalars())

    found = await database.write(keep)
    assert found == times
    assert found[1] - found[0] == times[1] - times[0] > timedelta(days=1)


@pytest.mark.parametrize("url", ["postgresql://host/name", "sqlite://", "no url", ""])
def test_only_files_of_sqlite(url: str) -> None:
    with pytest.raises(ValueError, match="not a URL"):
        Database(url)


def test_closing_leaves_no_thread(tmp_path: Path) -> None:
    program = """
import asyncio, sys, tempfile, threading
from sfumato_chassis.database import Database
async def main():
    database = Database(f"sqlite:///{sys.argv[1]}/x.sqlite3")
    await asyncio.gather(*(database.read(lambda c: None) for _ in range(8)))
    database.close()
    print(threading.active_count())
asyncio.run(main())
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True
    )
    assert ended.stdout.strip() == "1", ended.stderr
