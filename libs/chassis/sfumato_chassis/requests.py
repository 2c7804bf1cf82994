"""Idempotent creates: what a caller asked for under which request id, and what came of it."""

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, delete, insert, select, update

from sfumato_chassis.errors import AlreadyExists, Reason
from sfumato_chassis.tables import request_ids

TOMBSTONE_RETENTION = timedelta(days=30)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One create.

    Attributes:
        principal: Who asks.
        method: Full name of the RPC.
        request_id: A UUID of the caller's.
        fingerprint: SHA-256 of the validated request.
    """

    principal: str
    method: str
    request_id: str
    fingerprint: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownRequest:
    """What an earlier request with the same id made."""

    resource: str
    expired: bool
    create_time: datetime


def fingerprint_of(canonical: bytes) -> bytes:
    """SHA-256 of a request in a form that is the same for equal requests."""
    return hashlib.sha256(canonical).digest()


def find_request(connection: Connection, request: Request) -> KnownRequest | None:
    """What ``request`` made when it came before, if it did.

    Raises:
        AlreadyExists: REQUEST_ID_REUSED, it came with another body.
    """
    row = connection.execute(
        select(request_ids).where(
            request_ids.c.principal == request.principal,
            request_ids.c.method == request.method,
            request_ids.c.request_id == request.request_id.lower(),
        )
    ).one_or_none()
    if row is None:
        return None
    if row.fingerprint != request.fingerprint:
        raise AlreadyExists(
            Reason.REQUEST_ID_REUSED,
            "this request id came with another body before",
            resource_type="request_id",
            resource_name=request.request_id,
        )
    return KnownRequest(
        resource=row.resource, expired=row.expire_time is not None, create_time=row.create_time
    )


def record_request(connection: Connection, request: Request, resource: str, now: datetime) -> None:
    """Remembers that ``request`` made ``resource``."""
    connection.execute(
        insert(request_ids).values(
            principal=request.principal,
            method=request.method,
            request_id=request.request_id.lower(),
            fingerprint=request.fingerprint,
            resource=resource,
            create_time=now,
        )
    )


def expire_request(connection: Connection, resource: str, now: datetime, *, deleted: bool) -> None:
    """Leaves only the tombstone of what made ``resource``, and whether its owner deleted it."""
    connection.execute(
        update(request_ids)
        .where(request_ids.c.resource == resource)
        .values(expire_time=now, deleted=deleted)
    )


def purge_tombstones(connection: Connection, now: datetime) -> int:
    """Forgets request ids whose tombstones are 30 days old; answers how many."""
    return connection.execute(
        delete(request_ids).where(request_ids.c.expire_time <= now - TOMBSTONE_RETENTION)
    ).rowcount


def forget_request(connection: Connection, resource: str) -> None:
    """Leaves nothing of what made ``resource``: the same request makes it anew."""
    connection.execute(delete(request_ids).where(request_ids.c.resource == resource))
