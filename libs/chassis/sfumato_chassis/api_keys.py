"""API keys: made on the server's machine, stored as digests, looked up when a call brings one.

A key is ``sfm_<id>_<secret>`` with 32 random bytes of secret. The database has its SHA-256. A slow hash
is for passwords, which can be guessed; 256 random bits cannot, and each call pays for the hash.
"""

import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from sfumato_chassis.clock import Clock
from sfumato_chassis.database import Database
from sfumato_chassis.errors import InvalidArgument, NotFound
from sfumato_chassis.principals import EVERYBODY, NAME, Principal, Scope, granted, refused_key
from sfumato_chassis.tables import api_keys

PREFIX = "sfm"
ID_BYTES = 8
SECRET_BYTES = 32
MAX_KEY_CHARACTERS = 200
REMEMBERED_SECONDS = 2.0
"""How long a key that was found is not looked up again: so late a revocation may be heeded."""
MAX_REMEMBERED = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiKey:
    """What is known of a key; the key itself is not."""

    key_id: str
    principal: str
    scopes: frozenset[Scope]
    create_time: datetime
    expire_time: datetime | None
    revoke_time: datetime | None

    def fault(self, now: datetime) -> str | None:
        """Why it is not valid: ``revoked`` or ``expired``; None when it is."""
        if self.revoke_time is not None:
            return "revoked"
        if self.expire_time is not None and self.expire_time <= now:
            return "expired"
        return None


class ApiKeyStore:
    """The keys of a deployment."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def create(
        self, principal: str, scopes: Sequence[Scope], *, lifetime: timedelta | None = None
    ) -> tuple[ApiKey, str]:
        """Makes a key; answers what is stored, and the key, which is never to be had again.

        Raises:
            InvalidArgument: The principal has no possible name, or there is no scope.
        """
        if NAME.fullmatch(principal) is None:
            raise InvalidArgument.field("principal", "not a name of a principal")
        if not scopes:
            raise InvalidArgument.field("scopes", "needs at least one")
        now = self._clock.now()
        key = ApiKey(
            key_id=secrets.token_hex(ID_BYTES),
            principal=principal,
            scopes=frozenset(scopes),
            create_time=now,
            expire_time=None if lifetime is None else now + lifetime,
            revoke_time=None,
        )
        text = f"{PREFIX}_{key.key_id}_{secrets.token_urlsafe(SECRET_BYTES)}"
        values = {name: getattr(key, name) for name in ApiKey.__slots__}
        values |= {"scopes": sorted(key.scopes), "key_sha256": digest_of_key(text)}
        await self._database.write(
            lambda connection: connection.execute(insert(api_keys).values(values))
        )
        return key, text

    async def list(self) -> Sequence[ApiKey]:
        """All keys, the oldest first."""
        return await self._database.read(
            lambda connection: [
                api_key_of(row)
                for row in connection.execute(
                    select(api_keys).order_by(api_keys.c.create_time, api_keys.c.key_id)
                )
            ]
        )

    async def has_valid(self) -> bool:
        """Whether there is a key that a caller could use now."""
        now = self._clock.now()
        return any(key.fault(now) is None for key in await self.list())

    async def revoke(self, key_id: str) -> ApiKey:
        """Ends a key for good; one that has ended already stays as it is. Raises NotFound."""

        def work(connection: Connection) -> ApiKey:
            mine = api_keys.c.key_id == key_id
            connection.execute(
                update(api_keys)
                .where(mine, api_keys.c.revoke_time.is_(None))
                .values(revoke_time=self._clock.now())
            )
            row = connection.execute(select(api_keys).where(mine)).one_or_none()
            if row is None:
                raise NotFound.resource("api_key", key_id)
            return api_key_of(row)

        return await self._database.write(work)

    async def find(self, text: str) -> ApiKey | None:
        """What is stored of a key; None for one that was never made."""
        prefix, _, rest = text.partition("_")
        key_id = rest.partition("_")[0]
        if prefix != PREFIX or not key_id or len(text) > MAX_KEY_CHARACTERS:
            return None
        row = await self._database.read(
            lambda connection: connection.execute(
                select(api_keys).where(api_keys.c.key_id == key_id)
            ).one_or_none()
        )
        if row is None or not hmac.compare_digest(row.key_sha256, digest_of_key(text)):
            return None
        return api_key_of(row)


@dataclass(frozen=True, kw_only=True, slots=True)
class Remembered:
    """A key that was valid; ``until`` is monotonic time."""

    until: float
    expire_time: datetime | None
    principal: Principal


class KnownKeys:
    """Implements :class:`sfumato_chassis.principals.Keys` over the store, with a short memory.

    Args:
        own_key: What this process sends when it calls itself; it is stored nowhere.
    """

    def __init__(self, store: ApiKeyStore, *, own_key: str, clock: Clock) -> None:
        self._store = store
        self._own_sha256 = digest_of_key(own_key)
        self._clock = clock
        # By digest, so that no key stays in memory. Only valid ones are remembered.
        self._remembered: dict[bytes, Remembered] = {}

    async def principal_of(self, key: str) -> Principal:
        """The principal of ``key``. Raises Unauthenticated."""
        digest = digest_of_key(key)
        remembered = self._remembered.get(digest)
        if remembered is not None and self._still_holds(remembered):
            return remembered.principal
        if hmac.compare_digest(digest, self._own_sha256):
            return EVERYBODY
        found = await self._store.find(key)
        if found is None:
            raise refused_key("the API key is unknown")
        fault = found.fault(self._clock.now())
        if fault is not None:
            raise refused_key(f"the API key {found.key_id} is {fault}")
        principal = Principal(name=found.principal, scopes=granted(found.scopes))
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[digest] = Remembered(
            until=self._clock.monotonic() + REMEMBERED_SECONDS,
            expire_time=found.expire_time,
            principal=principal,
        )
        return principal

    def _still_holds(self, remembered: Remembered) -> bool:
        if remembered.until <= self._clock.monotonic():
            return False
        return remembered.expire_time is None or remembered.expire_time > self._clock.now()


def digest_of_key(text: str) -> bytes:
    """SHA-256 of a key; metadata may hold what is no text."""
    return sha256(text.encode(errors="surrogatepass")).digest()


def api_key_of(row: Row[Any]) -> ApiKey:
    """A row as what it tells."""
    values = {name: row._mapping[name] for name in ApiKey.__slots__}
    return ApiKey(**{**values, "scopes": frozenset(map(Scope, row.scopes))})
