"""The durable store: SQLite with one writer thread, so that nothing blocks the event loop.

Every write is one ``BEGIN IMMEDIATE`` transaction: a deferred one that reads first and writes later
meets SQLITE_BUSY_SNAPSHOT at once when another process wrote in between.
"""

import asyncio
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


class Timestamp(TypeDecorator[datetime]):
    """A UTC time, stored as integer microseconds since 1970, which orders and compares exactly."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        del dialect
        return None if value is None else (value - EPOCH) // timedelta(microseconds=1)

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:
        del dialect
        return None if value is None else EPOCH + timedelta(microseconds=value)


class Database:
    """Runs short functions against the store: writes one after another, reads beside them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._write_engine = open_engine(url, begin="BEGIN IMMEDIATE", num_connections=1)
        self._read_engine = open_engine(url, begin="BEGIN", num_connections=NUM_READERS)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store-writer")
        self._readers = ThreadPoolExecutor(NUM_READERS, thread_name_prefix="store-reader")

    @property
    def write_engine(self) -> Engine:
        """The engine whose transactions take the write lock at their start."""
        return self._write_engine

    async def write(self, work: Work[Result]) -> Result:
        """Runs ``work`` in one transaction and commits it; an exception rolls it back.

        A caller that is cancelled does not undo a write that has begun.
        """
        return await asyncio.get_running_loop().run_in_executor(
            self._writer, in_transaction, self._write_engine, work
        )

    async def read(self, work: Work[Result]) -> Result:
        """Runs ``work`` in one read transaction: all that it sees belongs together."""
        return await asyncio.get_running_loop().run_in_executor(
            self._readers, in_transaction, self._read_engine, work
        )

    def close(self) -> None:
        """Waits for what runs and closes every connection."""
        self._writer.shutdown()
        self._readers.shutdown()
        self._write_engine.dispose()
        self._read_engine.dispose()


def in_transaction(engine: Engine, work: Work[Result]) -> Result:
    """Runs ``work`` between begin and commit."""
    with engine.begin() as connection:
        return work(connection)


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
        connection.exec_driver_sql(begin)

    return engine
