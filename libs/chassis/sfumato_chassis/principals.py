"""Who calls, and what they may do.

A key names its principal and scopes. Where none is asked for, a caller without one is ``local`` and may
do everything. A caller with the scope ``impersonate`` (a service that calls another on a user's behalf)
names the user in ``x-sfumato-principal``.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Protocol

from google.protobuf import descriptor_pool

from sfumato.job.v1 import bounds_pb2
from sfumato_chassis.errors import InvalidArgument, PermissionDenied, Reason, Unauthenticated

AUTHORIZATION_HEADER = "authorization"
PRINCIPAL_HEADER = "x-sfumato-principal"
LOCAL = "local"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,127}")
SCHEME = "bearer"


class Scope(StrEnum):
    """What a caller may do."""

    READ = "read"
    DATASETS = "datasets"
    TRAIN = "train"
    GENERATE = "generate"
    ADMIN = "admin"
    IMPERSONATE = "impersonate"


@dataclass(frozen=True, kw_only=True, slots=True)
class Principal:
    """Who calls; owns what the call makes."""

    name: str
    scopes: frozenset[Scope]


EVERYBODY = Principal(name=LOCAL, scopes=frozenset(Scope))
"""Every caller where no key is asked for."""


class Keys(Protocol):
    """Tells whose a key is."""

    async def principal_of(self, key: str) -> Principal:
        """The principal of ``key``.

        Raises:
            Unauthenticated: It is unknown, expired or revoked.
        """
        ...


class Authenticator:
    """Finds out who calls and whether they may.

    A key that is sent is always heeded, so that a client with one sees the same things wherever the
    server listens.

    Args:
        required: Whether a caller without a key is refused.
    """

    def __init__(self, keys: Keys, *, required: bool) -> None:
        self._keys = keys
        self._required = required

    async def authenticate(self, method: str, metadata: Mapping[str, str]) -> Principal:
        """The principal of a call. Does not suspend for a caller without a key.

        Raises:
            Unauthenticated: No key, or none that is valid.
            PermissionDenied: SCOPE_MISSING.
            InvalidArgument: The header names no possible principal.
        """
        authorization = metadata.get(AUTHORIZATION_HEADER)
        if authorization is not None:
            principal = await self._keys.principal_of(key_in(authorization))
        elif self._required:
            raise refused_key("an API key is needed, sent as `authorization: Bearer KEY`")
        else:
            principal = EVERYBODY
        check_scope(principal, scope_of(method))
        name = metadata.get(PRINCIPAL_HEADER)
        if name is None or name == principal.name:
            return principal
        check_scope(principal, Scope.IMPERSONATE)
        if NAME.fullmatch(name) is None:
            raise InvalidArgument.field(PRINCIPAL_HEADER, "not a name of a principal")
        return replace(principal, name=name)


def key_in(authorization: str) -> str:
    """The key in an ``authorization`` header. Raises Unauthenticated."""
    scheme, _, key = authorization.partition(" ")
    if scheme.lower() != SCHEME:
        raise refused_key("the key must be sent as `authorization: Bearer KEY`")
    return key.strip()


def refused_key(message: str) -> Unauthenticated:
    """The error of a call without a valid key; ``message`` never holds one."""
    return Unauthenticated(Reason.UNAUTHENTICATED, message)


def check_scope(principal: Principal, needed: Scope) -> None:
    """Raises PermissionDenied, naming the scope, when ``principal`` lacks it."""
    if needed not in principal.scopes:
        raise PermissionDenied(
            Reason.SCOPE_MISSING, f"needs the scope {needed}", details={"scope": needed}
        )


def granted(scopes: Iterable[Scope]) -> frozenset[Scope]:
    """What a key with these scopes may do: ``admin`` has all others in it but ``impersonate``."""
    given = frozenset(scopes)
    if Scope.ADMIN in given:
        return given | (frozenset(Scope) - {Scope.IMPERSONATE})
    return given


@cache
def scope_of(method: str) -> Scope:
    """The scope that the proto asks for; ``admin`` where it does not say."""
    service, _, name = method.removeprefix("/").rpartition("/")
    descriptor = descriptor_pool.Default().FindServiceByName(service)
    declared = descriptor.methods_by_name[name].GetOptions().Extensions[bounds_pb2.scope]
    return Scope(declared or Scope.ADMIN)
