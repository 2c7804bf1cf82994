"""The durable store: SQLite with one writer thread, so that nothing blocks the event loop.

Every write is one ``BEGIN IMMEDIATE`` transaction: a deferred one that reads first and writes later
meets SQLITE_BUSY_SNAPSHOT at once when another process wrote in between.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import sqlalchemy
from sqlalchemy import BigInteger, Connection, Dialect, Engine, create_engine, event
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import QueuePool
from sqlalchemy.types import TypeDecorator

from sfumato_chassis.threads import fail, tell

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
    """Threads that run short functions, each thread on a connection of its own that stays open.

    An executor would do the same, but its handing over costs as much as a small read.
    """

    def __init__(self, engine: Engine, *, begin: str, name: str, num_threads: int) -> None:
        self._engine = engine
        self._begin = begin
        self._closed = False
        self._waiting: SimpleQueue[tuple[asyncio.Future[Any], Work[Any]] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, name=f"{name}-{index}", daemon=True)
            for index in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    async def run(self, work: Work[Result]) -> Result:
        """Runs ``work`` between begin and commit; an exception rolls back.

        Raises:
            RuntimeError: The lane is closed.
            DBAPIError: The database could not do it.
        """
        if self._closed:
            raise RuntimeError("the database is closed")
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.put((future, work))
        return await future

    def close(self) -> None:
        """Waits for what was handed over; each thread gives its connection back."""
        self._closed = True
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        with ExitStack() as stack:
            connection: Connection | None = None
            while (handed := self._waiting.get()) is not None:
                future, work = handed
                if future.cancelled():
                    continue
                try:
                    if connection is None:
                        connection = stack.enter_context(self._engine.connect())
                    answer = partial(future.set_result, self._transact(connection, work))
                except BaseException as error:  # noqa: BLE001 - whoever waits must hear of it
                    answer = partial(fail, future, error)
                tell(future, answer)
                del handed, future, work, answer  # they would live until the next is handed over

    def _transact(self, connection: Connection, work: Work[Result]) -> Result:
        driver = connection.connection.dbapi_connection
        assert driver is not None
        with connection.begin():
            # Not by SQLAlchemy's hook: an engine that has one looks for more at every statement.
            try:
                driver.cursor().execute(self._begin)
            except sqlite3.Error as error:
                raise DBAPIError.instance(
                    self._begin, None, error, sqlite3.Error, dialect=connection.dialect
                ) from error
            return work(connection)


class Database:
    """Runs short functions against the store: writes one after another, reads beside them.

    Attributes:
        file: Where it really lies, whatever links lead there.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._engine = open_engine(url, num_connections=1 + NUM_READERS)
        self.file = Path(self._engine.url.database or "").resolve()
        self._writer = Lane(
            self._engine, begin="BEGIN IMMEDIATE", name="store-writer", num_threads=1
        )
        self._readers = Lane(
            self._engine, begin="BEGIN", name="store-reader", num_threads=NUM_READERS
        )

    async def write(self, work: Work[Result]) -> Result:
        """Runs ``work`` in one transaction and commits it; an exception rolls it back.

        A caller that is cancelled does not undo a write that has begun.

        Raises:
            DBAPIError: The database could not do it.
        """
        return await self._writer.run(work)

    async def read(self, work: Work[Result]) -> Result:
        """Runs ``work`` in one read transaction: all that it sees belongs together.

        Raises:
            DBAPIError: The database could not do it.
        """
        return await self._readers.run(work)

    def close(self) -> None:
        """Waits for what runs and closes every connection."""
        self._writer.close()
        self._readers.close()
        self._engine.dispose()


def open_engine(url: str, *, num_connections: int) -> Engine:
    """An engine on whose connections ``BEGIN`` is the caller's to say.

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
        hide_parameters=True,  # prompts and captions are not for the log
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, record: Any) -> None:
        del record
        # The driver's own transaction control is off: a transaction begins as its lane says.
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MILLISECONDS}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")

    return engine
