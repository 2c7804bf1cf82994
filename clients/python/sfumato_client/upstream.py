"""For a service that calls another: the other's errors as its own.

The only part of the client library that knows the chassis; import it in services alone, and where it
is used: a service starts without it.
"""

from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

from sfumato_chassis.errors import (
    CATALOGUE,
    InvalidArgument,
    Reason,
    ResourceError,
    SfumatoError,
    Unavailable,
)
from sfumato_chassis.peers import Peer
from sfumato_client import errors
from sfumato_client.calls import RetryPolicy
from sfumato_client.channel import Addresses, Connection, Tls
from sfumato_client.client import Client

Result = TypeVar("Result")

RETRY_AFTER_SECONDS = 2.0
UNREACHABLE = (errors.TransportLost, errors.Unavailable, errors.Unimplemented)


def client_for(peer: Peer, owner: str, *, budget_seconds: float) -> Client:
    """A client of the service ``peer`` that calls on behalf of ``owner``.

    Args:
        budget_seconds: How long a service that does not answer is tried.
    """
    policy = RetryPolicy(budget_seconds=budget_seconds, attempt_timeout_seconds=budget_seconds)
    connection = Connection(
        addresses=Addresses.all_at(peer.address),
        api_key=peer.api_key,
        principal=owner,
        tls=tls_of(peer) if peer.tls else None,
        # The process that made the peer has seen to it that no key goes astray, at its start.
        insecure=True,
    )
    return Client(connection, policy=policy)


def tls_of(peer: Peer) -> Tls:
    """The files of ``peer`` as the client takes them."""
    files = (peer.ca_file, peer.certificate_file, peer.key_file)
    ca_file, certificate_file, key_file = (Path(file) if file else None for file in files)
    return Tls(ca_file=ca_file, certificate_file=certificate_file, key_file=key_file)


async def relayed(
    call: Awaitable[Result], *, service: str, resource_type: str, resource_name: str
) -> Result:
    """The answer of another service.

    Args:
        call: A call of the client library.
        service: The other's name.
        resource_type: What the call asks for, for an error that names it.
        resource_name: Its name.

    Raises:
        Unavailable: SERVICE_UNREACHABLE, it did not answer or is starting or stopping.
        SfumatoError: What the other answered, with its reason.
    """
    try:
        return await call
    except errors.SfumatoError as error:
        raise relay(error, service, resource_type, resource_name) from error


def relay(
    error: errors.SfumatoError, service: str, resource_type: str, resource_name: str
) -> SfumatoError:
    """The error that this service answers for `error` of another."""
    if isinstance(error, UNREACHABLE) or error.reason not in Reason.__members__:
        return Unavailable(
            Reason.SERVICE_UNREACHABLE,
            f"the {service} service did not answer",
            retry_after_seconds=error.retry_delay_seconds or RETRY_AFTER_SECONDS,
        )
    reason = Reason(error.reason)
    kind = CATALOGUE[reason]
    if issubclass(kind, ResourceError):
        return kind(reason, error.message, resource_type=resource_type, resource_name=resource_name)
    if issubclass(kind, InvalidArgument):
        return kind(reason, error.message)
    return kind(reason, error.message, details=dict(error.details))
