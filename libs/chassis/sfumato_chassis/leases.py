"""Leases: rows that say who holds something, until when, under which fence.

A holder that dies stops renewing and the lease frees itself. Taking one over raises the fence, so that
what an old holder still writes can be told from what the new one writes. Devices are leased under
``device:<host id>:<device>``, datasets under ``dataset:<owner>/<name>``.

No two processes work on one device. A service holds its device's lease for a worker process that may
outlive it, so that lease lasts longer than the process can: see :func:`lease_for_worker`.
"""

import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import Connection, Row, insert, select, update

from sfumato_chassis.clock import Clock
from sfumato_chassis.database import Database
from sfumato_chassis.tables import leases

DEFAULT_LEASE = timedelta(seconds=30)
RENEWALS_PER_LEASE = 3
RENEWAL_SECONDS = DEFAULT_LEASE.total_seconds() / RENEWALS_PER_LEASE


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """Who holds what."""

    key: str
    holder: str
    purpose: str
    fence: int
    expire_time: datetime
    wanted_by: str | None


class Held(Exception):
    """Somebody else holds the lease."""

    def __init__(self, lease: Lease) -> None:
        super().__init__(f"{lease.key} is held by {lease.holder}")
        self.lease = lease


class LeaseStore:
    """All leases of a deployment."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def acquire(
        self, key: str, holder: str, purpose: str, *, duration: timedelta = DEFAULT_LEASE
    ) -> Lease:
        """Takes a free or lapsed lease, or renews one's own.

        Raises:
            Held: Somebody else holds it. It is then marked as wanted by ``holder``.
        """

        lease = await self._database.write(
            lambda connection: take_lease(
                connection, key, holder, purpose, now=self._clock.now(), duration=duration
            )
        )
        if lease.holder != holder:
            raise Held(lease)
        return lease

    async def release(self, key: str, holder: str) -> None:
        """Gives a lease back; one that is not held by ``holder`` is left alone."""
        now = self._clock.now()
        await self._database.write(lambda connection: give_back(connection, key, holder, now=now))

    async def get(self, key: str) -> Lease | None:
        """The lease as it stands, or None when nobody holds it."""
        lease = await self._database.read(lambda connection: find_lease(connection, key))
        return lease if lease is not None and lease.expire_time > self._clock.now() else None


def take_lease(
    connection: Connection,
    key: str,
    holder: str,
    purpose: str,
    *,
    now: datetime,
    duration: timedelta,
) -> Lease:
    """Takes a free or lapsed lease, or renews one's own, inside a transaction.

    Returns:
        The lease as it stands then. Where its holder is another, it is marked as wanted by ``holder``.
    """
    known = find_lease(connection, key)
    if known is not None and known.holder != holder and known.expire_time > now:
        connection.execute(update(leases).where(leases.c.key == key).values(wanted_by=holder))
        return known
    mine = known is not None and known.holder == holder and known.expire_time > now
    lease = Lease(
        key=key,
        holder=holder,
        purpose=purpose,
        fence=(known.fence if known else 0) + (0 if mine else 1),
        expire_time=now + duration,
        wanted_by=known.wanted_by if known is not None and mine else None,
    )
    values = {name: getattr(lease, name) for name in Lease.__slots__}
    if known is None:
        connection.execute(insert(leases).values(values))
    else:
        connection.execute(update(leases).where(leases.c.key == key).values(values))
    return lease


def extend_lease(
    connection: Connection, key: str, holder: str, fence: int, *, until: datetime
) -> bool:
    """Renews a hold that nobody has taken since, lapsed or not; False where somebody has."""
    renewed = connection.execute(
        update(leases)
        .where(leases.c.key == key, leases.c.holder == holder, leases.c.fence == fence)
        .values(expire_time=until)
    )
    return renewed.rowcount == 1


def give_back(connection: Connection, key: str, holder: str, *, now: datetime) -> None:
    """Ends a lease, inside a transaction; one that is not held by ``holder`` is left alone."""
    connection.execute(
        update(leases)
        .where(leases.c.key == key, leases.c.holder == holder)
        .values(expire_time=now, wanted_by=None)
    )


def find_lease(connection: Connection, key: str) -> Lease | None:
    """The row of ``key``, lapsed or not, inside a transaction."""
    row: Row[tuple[object, ...]] | None = connection.execute(
        select(leases).where(leases.c.key == key)
    ).one_or_none()
    return None if row is None else Lease(**row._mapping)


def lease_for_worker(lease_seconds: float, rest_seconds: float) -> timedelta:
    """How long a device's lease lasts that is renewed every ``RENEWAL_SECONDS`` for a worker.

    When the service dies, the worker goes on for its own lease and then has some time to come to rest,
    after which it ends itself. Whoever gets the device once this lease has lapsed finds it free, even
    if renewals had failed for a whole default lease before the service died.

    Args:
        lease_seconds: How long the worker goes on without an answer from its service.
        rest_seconds: How long it may take after that to come to rest.
    """
    return timedelta(seconds=lease_seconds + rest_seconds) + DEFAULT_LEASE


def device_key(device: str, environment: Mapping[str, str] = os.environ) -> str:
    """The lease key of a device of this machine.

    Args:
        device: ``cpu``, or ``cuda:<n>`` as this process counts.
        environment: Where ``CUDA_VISIBLE_DEVICES`` says which GPU of the machine that is.
    """
    kind, _, index = device.partition(":")
    visible = [entry.strip() for entry in environment.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if kind == "cuda" and visible != [""] and int(index) < len(visible):
        index = visible[int(index)]
    return f"device:{host_id()}:{kind}:{index}" if index else f"device:{host_id()}:{kind}"


def host_id() -> str:
    """Names this machine, the same in every process on it."""
    machine_id = Path("/etc/machine-id")
    if machine_id.is_file() and (text := machine_id.read_text().strip()):
        return text
    return uuid.uuid5(uuid.NAMESPACE_DNS, f"{socket.gethostname()}-{uuid.getnode()}").hex
