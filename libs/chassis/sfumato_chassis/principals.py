"""Who calls, and what they may do.

Without keys every caller is ``local`` and may do everything. A caller with the scope ``impersonate``
(a service that calls another on a user's behalf) names the user in ``x-sfumato-principal``.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache

from google.protobuf import descriptor_pool

from sfumato.job.v1 import bounds_pb2
from sfumato_chassis.errors import InvalidArgument, PermissionDenied, Reason

PRINCIPAL_HEADER = "x-sfumato-principal"
LOCAL = "local"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,127}")


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


class Authenticator:
    """Finds out who calls and whether they may."""

    def authenticate(self, method: str, metadata: Mapping[str, str]) -> Principal:
        """The principal of a call.

        Raises:
            PermissionDenied: SCOPE_MISSING.
            InvalidArgument: The header names no possible principal.
        """
        principal = Principal(name=LOCAL, scopes=frozenset(Scope))
        needed = scope_of(method)
        if needed not in principal.scopes:
            raise PermissionDenied(
                Reason.SCOPE_MISSING, f"needs the scope {needed}", details={"scope": needed}
            )
        name = metadata.get(PRINCIPAL_HEADER)
        if name is None or name == principal.name:
            return principal
        if Scope.IMPERSONATE not in principal.scopes:
            raise PermissionDenied(
                Reason.SCOPE_MISSING,
                "needs the scope impersonate",
                details={"scope": Scope.IMPERSONATE},
            )
        if NAME.fullmatch(name) is None:
            raise InvalidArgument.field(PRINCIPAL_HEADER, "not a name of a principal")
        return replace(principal, name=name)


@cache
def scope_of(method: str) -> Scope:
    """The scope that the proto asks for; ``admin`` where it does not say."""
    service, _, name = method.removeprefix("/").rpartition("/")
    descriptor = descriptor_pool.Default().FindServiceByName(service)
    declared = descriptor.methods_by_name[name].GetOptions().Extensions[bounds_pb2.scope]
    return Scope(declared or Scope.ADMIN)
