"""Turns errors into ``google.rpc.Status``, the one place that does."""

from collections.abc import Iterable

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from sfumato_chassis.errors import (
    DOMAIN,
    FailedPrecondition,
    InvalidArgument,
    ResourceError,
    ResourceExhausted,
    SfumatoError,
)

MAX_DETAIL_BYTES = 4096
"""Python clients drop larger trailers at random."""
MAX_VIOLATIONS = 20
MAX_MESSAGE_CHARACTERS = 1000


def detail_messages(error: SfumatoError) -> Iterable[Message]:
    """The details of ``error``, the most important first."""
    yield error_details_pb2.ErrorInfo(
        reason=error.reason.value,
        domain=DOMAIN,
        metadata={key: value[:256] for key, value in error.details.items()},
    )
    if error.retry_after_seconds is not None:
        delay = Duration()
        delay.FromNanoseconds(round(error.retry_after_seconds * 1e9))
        yield error_details_pb2.RetryInfo(retry_delay=delay)
    if isinstance(error, InvalidArgument):
        yield error_details_pb2.BadRequest(
            field_violations=[
                error_details_pb2.BadRequest.FieldViolation(
                    field=violation.path[:200], description=violation.message[:200]
                )
                for violation in error.violations[:MAX_VIOLATIONS]
            ]
        )
    if isinstance(error, ResourceError):
        yield error_details_pb2.ResourceInfo(
            resource_type=error.resource_type, resource_name=error.resource_name[:256]
        )
    if isinstance(error, FailedPrecondition):
        yield error_details_pb2.PreconditionFailure(
            violations=[
                error_details_pb2.PreconditionFailure.Violation(
                    type=error.reason.value,
                    subject=error.details.get("holder", ""),
                    description=error.message[:256],
                )
            ]
        )
    if isinstance(error, ResourceExhausted):
        yield error_details_pb2.QuotaFailure(
            violations=[
                error_details_pb2.QuotaFailure.Violation(
                    subject=error.reason.value, description=error.message[:256]
                )
            ]
        )


def to_status(error: SfumatoError) -> grpc.Status:
    """The status of ``error`` with at most 4 KiB of details; a detail that does not fit is left out."""
    status = status_pb2.Status(
        code=grpc.StatusCode[error.status].value[0], message=error.message[:MAX_MESSAGE_CHARACTERS]
    )
    for message in detail_messages(error):
        packed = Any()
        packed.Pack(message)
        if status.ByteSize() + packed.ByteSize() + 8 <= MAX_DETAIL_BYTES:
            status.details.append(packed)
    return rpc_status.to_status(status)
