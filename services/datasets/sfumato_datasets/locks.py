"""Who may write to a dataset: one import at a time, under a lease with a fence.

An import holds its dataset from its creation to its end and renews the lease while its service
lives. When that dies the lease lapses, and whoever takes it next has a higher fence; what the earlier
holder would still publish is refused by it.
"""

import hashlib
from datetime import datetime

from sqlalchemy import Connection

from sfumato_chassis.errors import Aborted, Reason
from sfumato_chassis.leases import (
    DEFAULT_LEASE,
    Lease,
    extend_lease,
    find_lease,
    give_back,
    take_lease,
)

PURPOSE = "write"
MAX_KEY_CHARACTERS = 200


def lock_key(owner: str, dataset: str) -> str:
    """The lease's key of a dataset."""
    key = f"dataset:{owner}/{dataset}"
    if len(key) <= MAX_KEY_CHARACTERS:
        return key
    return f"dataset:{hashlib.sha256(key.encode()).hexdigest()}"


def take_lock(
    connection: Connection, owner: str, dataset: str, *, holder: str, now: datetime
) -> Lease:
    """Takes a dataset that nobody holds, or renews one's own hold, inside a transaction.

    Raises:
        Aborted: DATASET_BUSY, another holds it; names the holder.
    """
    lease = take_lease(
        connection,
        lock_key(owner, dataset),
        holder,
        PURPOSE,
        now=now,
        duration=DEFAULT_LEASE,
    )
    if lease.holder != holder:
        raise busy(dataset, lease)
    return lease


def renew_lock(
    connection: Connection, owner: str, dataset: str, *, holder: str, fence: int, now: datetime
) -> bool:
    """Keeps a hold for another while; False where somebody else has taken the dataset since."""
    key = lock_key(owner, dataset)
    return extend_lease(connection, key, holder, fence, until=now + DEFAULT_LEASE)


def check_unlocked(connection: Connection, owner: str, dataset: str, *, now: datetime) -> None:
    """For a writer that is done within this transaction. Raises Aborted, DATASET_BUSY."""
    lease = find_lease(connection, lock_key(owner, dataset))
    if lease is not None and lease.expire_time > now:
        raise busy(dataset, lease)


def check_held(
    connection: Connection, owner: str, dataset: str, *, holder: str, fence: int
) -> None:
    """Refuses a holder whose dataset somebody else has taken since. Raises Aborted, DATASET_BUSY."""
    lease = find_lease(connection, lock_key(owner, dataset))
    if lease is None or (lease.holder, lease.fence) != (holder, fence):
        raise busy(dataset, lease)


def release_lock(
    connection: Connection, owner: str, dataset: str, *, holder: str, now: datetime
) -> None:
    """Gives a dataset free, unless somebody else holds it by now."""
    give_back(connection, lock_key(owner, dataset), holder, now=now)


def busy(dataset: str, lease: Lease | None) -> Aborted:
    """The error of a writer that comes second, or too late."""
    holder = lease.holder if lease is not None else ""
    return Aborted(
        Reason.DATASET_BUSY,
        f"{holder or 'another'} writes to {dataset}",
        details={"holder": holder},
    )
