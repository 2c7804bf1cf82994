"""For a service that calls another: the other's errors as its own.

The only part of the client library that knows the chassis; import it in services alone, and where it
is used: a service starts without it.
"""

from collections.abc import Awaitable
from typing import TypeVar

from sfumato_chassis.errors import (
    CATALOGUE,
    InvalidArgument,
    Reason,
    ResourceError,
    SfumatoError,
    Unavailable,
)
from sfumato_client import errors
from sfumato_client.calls import RetryPolicy
from sfumato_client.channel import Addresses, Connection
from sfumato_client.client import Client

Result = TypeVar("Result")

RETRY_AFTER_SECONDS = 2.0
UNREACHABLE = (errors.TransportLost, errors.Unavailable, errors.Unimplemented)


def client_for(address: str, owner: str, *, budget_seconds: float) -> Client:
    """A client of the service at ``address`` that calls on behalf of ``owner``.

    Args:
        budget_seconds: How long a service that does not answer is tried.
    """
    policy = RetryPolicy(budget_seconds=budget_seconds, attempt_timeout_seconds=budget_seconds)
    connection = Connection(addresses=Addresses.all_at(address), principal=owner)
    return Client(connection, policy=policy)


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
