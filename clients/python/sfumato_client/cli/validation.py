"""Checks a request before it is sent, with the server's own rules."""

from __future__ import annotations

import grpc
from google.protobuf.message import Message

from sfumato_client.errors import Failure, FieldViolation, InvalidArgument


def check(request: Message) -> None:
    """Raises InvalidArgument as the server would, but without a connection."""
    from sfumato_chassis.errors import InvalidArgument as Refused
    from sfumato_chassis.validation import check_request

    try:
        check_request(request, refuse_unknown_fields=True)
    except Refused as error:
        violations = tuple(
            FieldViolation(field=violation.path, description=violation.message)
            for violation in error.violations
        )
        raise InvalidArgument(
            Failure(
                reason=error.reason.value,
                message=error.message,
                code=grpc.StatusCode.INVALID_ARGUMENT,
                field_violations=violations,
            )
        ) from error
