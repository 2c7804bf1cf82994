import base64
import json
from typing import Any

import pytest

from sfumato_chassis.errors import InvalidArgument, Reason
from sfumato_chassis.paging import (
    MAX_PAGE_BYTES,
    cut_page,
    decode_token,
    encode_token,
    page_size,
    query_digest,
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
