import base64
import json
from typing import Any

import pytest
from sqlalchemy import Column, MetaData, String, Table, create_engine, insert, select

from sfumato_chassis.database import Timestamp, time_at
from sfumato_chassis.errors import InvalidArgument, Reason
from sfumato_chassis.paging import (
    MAX_PAGE_BYTES,
    cut_page,
    decode_token,
    encode_token,
    page_size,
    query_digest,
    read_page,
    rows_that_fit,
)

QUERY = {"list": "import", "owner": "local"}


def forged(*values: Any) -> str:
    text = json.dumps([query_digest(QUERY), *values])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


@pytest.mark.parametrize(("asked", "answered"), [(0, 50), (1, 1), (200, 200), (201, 200)])
def test_page_size(asked: int, answered: int) -> None:
    assert page_size(asked) == answered


@pytest.mark.parametrize("key", [[7], ["näme?>~"], [-(2**63), "x"], [2**63 - 1, ""]])
def test_a_token_gives_its_key_back(key: list[int | str]) -> None:
    token = encode_token(QUERY, key)
    assert decode_token(QUERY, token, [type(value) for value in key]) == key


@pytest.mark.parametrize(
    "token",
    [
        "?",
        "a",
        "ü",
        "e30",  # {}
        "W10",  # []
        encode_token({**QUERY, "owner": "another"}, [7]),
        encode_token(QUERY, []),
        encode_token(QUERY, [7, 8]),
        encode_token(QUERY, ["7"]),
        forged(True),
        forged(1.0),
        forged(None),
        forged(2**63),
        forged(10**400),
        base64.urlsafe_b64encode(b"[" * 700).decode(),
    ],
)
def test_other_tokens_are_refused(token: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode_token(QUERY, token, [int])
    assert caught.value.reason is Reason.PAGE_TOKEN_INVALID


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        decode_token(QUERY, forged("\ud800"), [str])


def test_a_page_ends_where_the_rows_end() -> None:
    page = cut_page([1, 2, 3], 2, QUERY, lambda row: [row])
    assert page.rows == [1, 2]
    assert decode_token(QUERY, page.next_page_token, [int]) == [2]
    assert cut_page([1, 2], 2, QUERY, lambda row: [row]).next_page_token == ""
    assert cut_page([], 2, QUERY, lambda row: [row]).next_page_token == ""


def test_rows_stop_before_they_pass_a_message() -> None:
    half = MAX_PAGE_BYTES // 2
    assert rows_that_fit([half, half, 1], lambda row: row) == [half, half]
    assert rows_that_fit([2 * MAX_PAGE_BYTES, 1], lambda row: row) == [2 * MAX_PAGE_BYTES]
    assert rows_that_fit([], lambda row: row) == []


@pytest.mark.parametrize("ascending", [False, True])
def test_pages_of_a_table_hold_every_row_once_and_in_order(ascending: bool) -> None:
    metadata = MetaData()
    table = Table("rows", metadata, Column("time", Timestamp), Column("name", String(8)))
    moments = [time_at(number) for number in (1, 5, 5, 5, 9)]
    stored = [{"time": moment, "name": name} for moment, name in zip(moments, "zbcay", strict=True)]
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    found: list[str] = []
    token = ""
    with engine.begin() as connection:
        connection.execute(insert(table), stored)
        while True:
            page = read_page(
                connection,
                select(table),
                [table.c.time, table.c.name],
                lambda row: row.name,
                query=QUERY,
                size=2,
                token=token,
                ascending=ascending,
            )
            found += page.rows
            token = page.next_page_token
            if not token:
                break
    engine.dispose()
    assert "".join(found) == ("zabcy" if ascending else "ycbaz")


@pytest.mark.parametrize("values", [(2**63 - 1, "a"), (-(2**63), "a")])
def test_key_past_every_time_is_no_fault(values: tuple[int, str]) -> None:
    metadata = MetaData()
    table = Table("rows", metadata, Column("time", Timestamp), Column("name", String(8)))
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    with engine.begin() as connection:
        page = read_page(
            connection,
            select(table),
            [table.c.time, table.c.name],
            lambda row: row.name,
            query=QUERY,
            size=2,
            token=forged(*values),
        )
    engine.dispose()
    assert page.rows == []
