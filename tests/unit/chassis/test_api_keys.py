import base64
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select

from sfumato_chassis.api_keys import REMEMBERED_SECONDS, ApiKeyStore, KnownKeys
from sfumato_chassis.clock import ManualClock
from sfumato_chassis.database import Database
from sfumato_chassis.errors import InvalidArgument, NotFound, Unauthenticated
from sfumato_chassis.principals import LOCAL, Principal, Scope
from sfumato_chassis.tables import api_keys

OWN = "own-key-of-the-process"
DAY = timedelta(days=1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def keys(database: Database, clock: ManualClock) -> ApiKeyStore:
    return ApiKeyStore(database, clock=clock)


@pytest.fixture
def known(keys: ApiKeyStore, clock: ManualClock) -> KnownKeys:
    return KnownKeys(keys, own_key=OWN, clock=clock)


async def test_a_key_has_32_random_bytes_and_is_stored_as_a_digest(
    keys: ApiKeyStore, database: Database
) -> None:
    key, text = await keys.create("anna", [Scope.READ])
    prefix, key_id, secret = text.split("_", 2)
    assert (prefix, key_id) == ("sfm", key.key_id)
    assert len(base64.urlsafe_b64decode(secret + "=")) == 32
    row = await database.read(lambda connection: connection.execute(select(api_keys)).one())
    assert len(row.key_sha256) == 32
    assert secret not in str(row)
    assert await keys.find(text) == key


async def test_two_keys_are_two(keys: ApiKeyStore) -> None:
    first, text = await keys.create("anna", [Scope.READ])
    second, other = await keys.create("anna", [Scope.READ])
    assert text != other
    assert {each.key_id for each in await keys.list()} == {first.key_id, second.key_id}


async def test_what_is_not_that_very_key_is_unknown(keys: ApiKeyStore, known: KnownKeys) -> None:
    _, text = await keys.create("anna", [Scope.READ])
    _, other = await keys.create("boris", [Scope.ADMIN])
    mixed = f"{text.rpartition('_')[0][: len('sfm_') + 16]}_{other.split('_', 2)[2]}"
    wrong = ["", "sfm", "sfm__", "sfm_x_y", text[:-1], text + "A", text.upper(), mixed, "\udcff"]
    for attempt in [*wrong, "x" * 100_000, f"sfm_{'x' * 100_000}"]:
        with pytest.raises(Unauthenticated) as refused:
            await known.principal_of(attempt)
        assert refused.value.message == "the API key is unknown"


async def test_admin_has_the_other_scopes_in_it(keys: ApiKeyStore, known: KnownKeys) -> None:
    _, text = await keys.create("anna", [Scope.ADMIN])
    principal = await known.principal_of(text)
    assert principal == Principal(name="anna", scopes=frozenset(Scope) - {Scope.IMPERSONATE})


async def test_a_key_expires_at_its_time_even_when_it_is_remembered(
    keys: ApiKeyStore, known: KnownKeys, clock: ManualClock
) -> None:
    key, text = await keys.create("anna", [Scope.READ], lifetime=DAY)
    clock.advance(DAY.total_seconds() - 1)
    assert (await known.principal_of(text)).name == "anna"
    assert await keys.has_valid()
    clock.advance(1)
    with pytest.raises(Unauthenticated, match=f"{key.key_id} is expired"):
        await known.principal_of(text)
    assert not await keys.has_valid()


async def test_a_revocation_is_heeded_after_the_memory_at_the_latest(
    keys: ApiKeyStore, known: KnownKeys, clock: ManualClock
) -> None:
    key, text = await keys.create("anna", [Scope.READ])
    await known.principal_of(text)
    revoked = await keys.revoke(key.key_id)
    assert revoked.revoke_time == clock.now()
    clock.advance(REMEMBERED_SECONDS)
    with pytest.raises(Unauthenticated, match=f"{key.key_id} is revoked"):
        await known.principal_of(text)
    clock.advance(5)
    assert await keys.revoke(key.key_id) == revoked
    assert not await keys.has_valid()


async def test_a_key_that_was_refused_is_looked_up_anew(
    database: Database, clock: ManualClock, keys: ApiKeyStore, known: KnownKeys
) -> None:
    with pytest.raises(Unauthenticated):
        await known.principal_of("sfm_00_x")
    _, text = await ApiKeyStore(database, clock=clock).create("anna", [Scope.READ])
    assert (await known.principal_of(text)).name == "anna"


async def test_the_process_calls_itself_with_a_key_that_is_stored_nowhere(
    keys: ApiKeyStore, known: KnownKeys
) -> None:
    assert await known.principal_of(OWN) == Principal(name=LOCAL, scopes=frozenset(Scope))
    assert await keys.list() == []


async def test_what_can_be_no_key_is_refused(keys: ApiKeyStore) -> None:
    with pytest.raises(InvalidArgument):
        await keys.create("a b", [Scope.READ])
    with pytest.raises(InvalidArgument):
        await keys.create("anna", [])
    with pytest.raises(NotFound):
        await keys.revoke("0123")
