"""Turns errors into ``google.rpc.Status``, the one place that does."""

from collections.abc import Iterable, Sequence

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from sfumato_chassis.errors import (
    DOMAIN,
    FailedPrecondition,
    FieldViolation,
    InvalidArgument,
    ResourceError,
    ResourceExhausted,
    SfumatoError,
)

MAX_DETAIL_BYTES = 4096
"""Python clients drop larger trailers at random."""
MAX_VIOLATIONS = 20
MAX_MESSAGE_BYTES = 512
"""gRPC sends the message a second time, percent-encoded to three times its size."""
MAX_TEXT_BYTES = 256
MAX_METADATA_BYTES = 1024
MAX_VIOLATION_BYTES = 2048


def detail_messages(error: SfumatoError) -> Iterable[Message]:
    """The details of ``error``, the most important first; the first always fits."""
    yield error_details_pb2.ErrorInfo(
        reason=error.reason.value, domain=DOMAIN, metadata=fitting_metadata(error)
    )
    if error.retry_after_seconds is not None:
        delay = Duration()
        delay.FromNanoseconds(round(error.retry_after_seconds * 1e9))
        yield error_details_pb2.RetryInfo(retry_delay=delay)
    if isinstance(error, InvalidArgument):
        yield error_details_pb2.BadRequest(field_violations=fitting_violations(error.violations))
    if isinstance(error, ResourceError):
        yield error_details_pb2.ResourceInfo(
            resource_type=error.resource_type, resource_name=cut(error.resource_name)
        )
    if isinstance(error, FailedPrecondition):
        yield error_details_pb2.PreconditionFailure(
            violations=[
                error_details_pb2.PreconditionFailure.Violation(
                    type=error.reason.value,
                    subject=cut(error.details.get("holder", "")),
                    description=cut(error.message),
                )
            ]
        )
    if isinstance(error, ResourceExhausted):
        yield error_details_pb2.QuotaFailure(
            violations=[
                error_details_pb2.QuotaFailure.Violation(
                    subject=error.reason.value, description=cut(error.message)
                )
            ]
        )


def fitting_metadata(error: SfumatoError) -> dict[str, str]:
    """As many of the error's facts as fit, in their order."""
    metadata: dict[str, str] = {}
    size_bytes = 0
    facts = {"error_id": error.error_id} if error.error_id else {}
    for key, value in (facts | error.details).items():
        fact = cut(value)
        size_bytes += len(key.encode()) + len(fact.encode()) + 8
        if size_bytes > MAX_METADATA_BYTES:
            break
        metadata[key] = fact
    return metadata


def fitting_violations(
    violations: Sequence[FieldViolation],
) -> list[error_details_pb2.BadRequest.FieldViolation]:
    """The first violations, at most 20 and as many as fit."""
    fitting: list[error_details_pb2.BadRequest.FieldViolation] = []
    size_bytes = 0
    for violation in violations[:MAX_VIOLATIONS]:
        message = error_details_pb2.BadRequest.FieldViolation(
            field=cut(violation.path), description=cut(violation.message)
        )
        size_bytes += message.ByteSize() + 4
        if size_bytes > MAX_VIOLATION_BYTES:
            break
        fitting.append(message)
    return fitting


def cut(text: str, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """The longest beginning of ``text`` that takes at most ``max_bytes`` in UTF-8."""
    return text.encode(errors="replace")[:max_bytes].decode(errors="ignore")


def to_status(error: SfumatoError) -> grpc.Status:
    """The status of ``error`` with at most 4 KiB of details; a detail that does not fit is left out."""
    status = status_pb2.Status(
        code=grpc.StatusCode[error.status].value[0],
        message=cut(error.message, MAX_MESSAGE_BYTES),
    )
    for message in detail_messages(error):
        packed = Any()
        packed.Pack(message)
        if status.ByteSize() + packed.ByteSize() + 8 <= MAX_DETAIL_BYTES:
            status.details.append(packed)
    return rpc_status.to_status(status)
