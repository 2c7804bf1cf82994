"""The identity of a create, from its message."""

from google.protobuf.message import Message

from sfumato_chassis.requests import Request, fingerprint_of

NOT_IDENTITY = ("request_id", "validate_only")


def request_of(message: Message, principal: str) -> Request:
    """Who asks for what. The request id itself and ``validate_only`` are no part of the fingerprint.

    Args:
        message: A validated ``Create*Request`` with a field ``request_id``.
        principal: Who asks.
    """
    bare = type(message)()
    bare.CopyFrom(message)
    for field in NOT_IDENTITY:
        if field in bare.DESCRIPTOR.fields_by_name:
            bare.ClearField(field)
    request_id: str = getattr(message, "request_id")  # noqa: B009 - Message has no such attribute
    return Request(
        principal=principal,
        method=message.DESCRIPTOR.full_name,
        request_id=request_id,
        fingerprint=fingerprint_of(bare.SerializeToString(deterministic=True)),
    )
