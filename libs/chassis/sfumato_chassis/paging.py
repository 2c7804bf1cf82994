"""Page tokens: opaque to callers, bound to the query that made them."""

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from sqlalchemy import Column, Connection, Select, String, literal, tuple_

from sfumato_chassis.database import Timestamp, microseconds_of, time_at
from sfumato_chassis.errors import InvalidArgument, Reason

DEFAULT_PAGE_SIZE = 50
MAX_PAGE_SIZE = 200

MAX_PAGE_BYTES = 3 * 1024 * 1024
"""Callers take messages of at most 4 MiB."""

Row = TypeVar("Row")
Key = Sequence[int | str]
"""Values of the columns that order the list, of the last row of a page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page(Generic[Row]):
    """Rows of one page; an empty token is the end."""

    rows: Sequence[Row]
    next_page_token: str


def page_size(requested: int) -> int:
    """The number of rows to answer: 50 unless asked, never more than 200."""
    return min(requested or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)


def query_digest(query: Mapping[str, str]) -> str:
    """Names a query: its method, owner and filters."""
    text = json.dumps(dict(sorted(query.items())), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def encode_token(query: Mapping[str, str], key: Key) -> str:
    """The token of the page that follows the row with ``key``."""
    text = json.dumps([query_digest(query), *key], ensure_ascii=False)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_token(query: Mapping[str, str], token: str, types: Sequence[type]) -> list[int | str]:
    """The key in ``token``. Raises PAGE_TOKEN_INVALID unless ``encode_token`` made it for this query
    with values of these ``types``."""
    try:
        padded = token + "=" * (-len(token) % 4)
        values = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (binascii.Error, UnicodeError, ValueError, RecursionError) as error:
        raise invalid_token("not a page token") from error
    if not isinstance(values, list) or not values or values[0] != query_digest(query):
        raise invalid_token("the page token belongs to another query")
    key = values[1:]
    if [type(value) for value in key] != list(types) or not all(map(is_storable, key)):
        raise invalid_token("not a page token")
    return key


def is_storable(value: int | str) -> bool:
    """Whether the store can compare with it: an int64, or text that UTF-8 can hold."""
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return not any("\ud800" <= character <= "\udfff" for character in value)


def invalid_token(message: str) -> InvalidArgument:
    """The error of a bad token."""
    return InvalidArgument(Reason.PAGE_TOKEN_INVALID, message)


def rows_that_fit(rows: Sequence[Row], size_bytes: Callable[[Row], int]) -> Sequence[Row]:
    """The first of ``rows`` that one message can hold, at least one."""
    total = 0
    for index, row in enumerate(rows):
        total += size_bytes(row)
        if index and total > MAX_PAGE_BYTES:
            return rows[:index]
    return rows


def read_page(
    connection: Connection,
    statement: Select[Any],
    order: Sequence[Column[Any]],
    to_row: Callable[[Any], Row],
    *,
    query: Mapping[str, str],
    size: int,
    token: str,
    ascending: bool = False,
) -> Page[Row]:
    """A page of a list in the database.

    Args:
        statement: Selects the whole list.
        order: What it is ordered by, together unique; from the last (the newest) on unless ``ascending``.
        to_row: Makes what the page holds of what the database answers.

    Raises:
        InvalidArgument: PAGE_TOKEN_INVALID.
        DBAPIError: The database could not do it.
    """
    if token:
        key = decode_token(query, token, [key_type(column) for column in order])
        pairs = zip(order, key, strict=True)
        last = tuple_(*(literal(value_of(column, part), column.type) for column, part in pairs))
        statement = statement.where(tuple_(*order) > last if ascending else tuple_(*order) < last)
    by = order if ascending else [column.desc() for column in order]
    rows = connection.execute(statement.order_by(*by).limit(size + 1)).all()
    page = cut_page(
        rows, size, query, lambda row: [part_of(row._mapping[column]) for column in order]
    )
    return Page(rows=[to_row(row) for row in page.rows], next_page_token=page.next_page_token)


def key_type(column: Column[Any]) -> type:
    """What stands in a token for a value of ``column``."""
    return str if isinstance(column.type, String) else int


def part_of(value: int | str | datetime) -> int | str:
    """A column's value as part of a key: times as microseconds, which compare exactly."""
    return microseconds_of(value) if isinstance(value, datetime) else value


def value_of(column: Column[Any], part: int | str) -> int | str | datetime:
    """The inverse of :func:`part_of`."""
    return time_at(int(part)) if isinstance(column.type, Timestamp) else part


def cut_page(
    rows: Sequence[Row], size: int, query: Mapping[str, str], key: Callable[[Row], Key]
) -> Page[Row]:
    """The page made of ``rows``, of which up to ``size`` + 1 were read."""
    more = len(rows) > size
    rows = rows[:size]
    token = encode_token(query, key(rows[-1])) if more else ""
    return Page(rows=rows, next_page_token=token)
