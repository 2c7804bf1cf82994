"""The durable store: SQLite with one writer thread, so that nothing blocks the event loop.

Every write is one ``BEGIN IMMEDIATE`` transaction: a deferred one that reads first and writes later
meets SQLITE_BUSY_SNAPSHOT at once when another process wrote in between.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy
from sqlalchemy import BigInteger, Connection, Dialect, Engine, create_engine, event
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import QueuePool
from sqlalchemy.types import TypeDecorator

Result = TypeVar("Result")
Work = Callable[[Connection], Result]

BUSY_TIMEOUT_MILLISECONDS = 15_000
NUM_READERS = 4
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds_of(time: datetime) -> int:
    """A UTC time as whole microseconds since 1970."""
    return (time - EPOCH) // timedelta(microseconds=1)


def time_at(microseconds: int) -> datetime:
    """The UTC time that many microseconds after 1970; the last that there is, for more."""
    try:
        return EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


class Timestamp(TypeDecorator[datetime]):
    """A UTC time, stored as integer microseconds since 1970, which orders and compares exactly."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        del dialect
        return None if value is None else microseconds_of(value)

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        del dialect
        return None if value is None else time_at(value)


class Lane:
    """Threads that run short functions, each thread on a connection of its own that stays open."""

    def __init__(self, engine: Engine, *, name: str, num_threads: int) -> None:
        self._engine = engine
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._own = threading.local()
        self._opened: list[Connection] = []

    async def run(self, work: Work[Result]) -> Result:
        """Runs ``work`` between begin and commit; an exception rolls back."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._transact, work)

    def close(self) -> None:
        """Waits for what runs and closes every connection."""
        self._threads.shutdown()
        for connection in self._opened:
            connection.close()
        self._engine.dispose()

    def _transact(self, work: Work[Result]) -> Result:
        connection: Connection | None = getattr(self._own, "connection", None)
        if connection is None:
            connection = self._own.connection = self._engine.connect()
            self._opened.append(connection)
        with connection.begin():
            return work(connection)


class Database:
    """Runs short functions against the store: writes one after another, reads beside them."""

    def __init__(self, url: str) -> None:
        self.url = url
        writing = open_engine(url, begin="BEGIN IMMEDIATE", num_connections=1)
        reading = open_engine(url, begin="BEGIN", num_connections=NUM_READERS)
        self._writer = Lane(writing, name="store-writer", num_threads=1)
        self._readers = Lane(reading, name="store-reader", num_threads=NUM_READERS)

    async def write(self, work: Work[Result]) -> Result:
        """Runs ``work`` in one transaction and commits it; an exception rolls it back.

        A caller that is cancelled does not undo a write that has begun.
        """
        return await self._writer.run(work)

    async def read(self, work: Work[Result]) -> Result:
        """Runs ``work`` in one read transaction: all that it sees belongs together."""
        return await self._readers.run(work)

    def close(self) -> None:
        """Waits for what runs and closes every connection."""
        self._writer.close()
        self._readers.close()


def open_engine(url: str, *, begin: str, num_connections: int) -> Engine:
    """An engine whose transactions open with ``begin``.

    Raises ValueError for a URL that is not SQLite in a local file.
    """
    try:
        parsed = sqlalchemy.make_url(url)
    except ArgumentError as error:
        raise ValueError(f"not a URL: {url}") from error
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        raise ValueError(f"not a URL of a SQLite file: {url}")
    Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(
        url,
        poolclass=QueuePool,
        pool_size=num_connections,
        max_overflow=0,
        pool_reset_on_return=None,
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, record: Any) -> None:
        del record
        # The driver's own transaction control is off; the begin hook below takes its place.
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MILLISECONDS}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def start(connection: Connection) -> None:
        # Straight to the driver: through SQLAlchemy it costs more than many a read.
        driver = connection.connection.dbapi_connection
        assert driver is not None
        driver.cursor().execute(begin)

    return engine
