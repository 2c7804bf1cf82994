"""Who holds a dataset, at whatever time."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine

from sfumato_chassis.errors import Aborted
from sfumato_chassis.leases import DEFAULT_LEASE
from sfumato_chassis.tables import metadata
from sfumato_datasets.locks import (
    check_held,
    check_unlocked,
    lock_key,
    release_lock,
    renew_lock,
    take_lock,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LAPSED = NOW + DEFAULT_LEASE + timedelta(seconds=1)


@pytest.fixture
def connection() -> Iterator[Connection]:
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def take(connection: Connection, holder: str, now: datetime = NOW) -> int:
    return take_lock(connection, "me", "cats", holder=holder, now=now).fence


def of(holder: str, fence: int) -> dict[str, Any]:
    return {"owner": "me", "dataset": "cats", "holder": holder, "fence": fence}


def test_one_holds_it_until_it_is_given_back(connection: Connection) -> None:
    first = take(connection, "a")
    for write in (
        lambda: take(connection, "b"),
        lambda: check_unlocked(connection, "me", "cats", now=NOW),
    ):
        with pytest.raises(Aborted) as busy:
            write()
        assert busy.value.details == {"holder": "a"}
    release_lock(connection, "me", "cats", holder="b", now=NOW)  # not b's to give
    check_held(connection, **of("a", first))
    release_lock(connection, "me", "cats", holder="a", now=NOW)
    check_unlocked(connection, "me", "cats", now=NOW)
    assert take(connection, "b") > first


def test_a_dead_holders_lock_frees_itself_and_its_fence_is_old(connection: Connection) -> None:
    first = take(connection, "a")
    check_unlocked(connection, "me", "cats", now=LAPSED)
    check_held(connection, **of("a", first))  # nobody has taken it yet
    second = take(connection, "b", LAPSED)
    assert second > first
    with pytest.raises(Aborted):
        check_held(connection, **of("a", first))
    assert not renew_lock(connection, **of("a", first), now=LAPSED)
    check_held(connection, **of("b", second))


def test_a_holder_that_comes_late_but_first_goes_on(connection: Connection) -> None:
    fence = take(connection, "a")
    assert renew_lock(connection, **of("a", fence), now=LAPSED)
    with pytest.raises(Aborted):
        take(connection, "b", LAPSED)


def test_owners_have_datasets_of_their_own_and_long_names_keys_that_fit(
    connection: Connection,
) -> None:
    take(connection, "a")
    take_lock(connection, "you", "cats", holder="b", now=NOW)
    long = lock_key("o" * 128, "d" * 128)
    assert len(long) <= 256
    assert long != lock_key("o" * 128, "d" * 127 + "e")
