"""Everything this client raises, and the one place that makes it out of a gRPC status.

SfumatoError                 reason, message, code, field violations, details, error id, retry delay
├── TransportLost            no answer arrived, or a stream ended before its last message
├── ContractViolated         the server broke the contract: events missing, repeated or out of order
├── InvalidArgument          the request is wrong; `field_violations` names the fields
├── Unauthenticated          no key where one is needed, or not a valid one
├── PermissionDenied         the key lacks the scope
├── NotFound                 unknown, removed, or another owner's
├── AlreadyExists            the name is taken, or the request id was used with another body
├── Aborted                  another writer is at work, or the resource has changed
├── FailedPrecondition       the system is not in a state that allows this
├── OutOfRange               an offset or cursor that does not fit what is stored
├── ResourceExhausted        queue, quota, disk or memory is full
├── Unavailable              the server is starting or stopping, or cannot reach another service
├── DataLoss                 stored or received bytes do not match their digest
├── Cancelled                the server took the call as ended by the caller; jobs go on
├── DeadlineExceeded         the deadline passed on the server
├── Unimplemented            the server does not know the method
└── InternalError            a fault of the server; `error_id` finds it in its log
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

ERROR_DOMAIN = "sfumato"
STATUS_DETAILS_KEY = "grpc-status-details-bin"
RETRIED_REASONS = frozenset({"SERVER_DRAINING", "SERVER_STARTING"})

# Never entered into reconnection, whoever sent them. CANCELLED is not among them: the caller's own
# cancel reaches it as asyncio.CancelledError, and a status CANCELLED is a connection torn down.
FINAL_CODES = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.FAILED_PRECONDITION,
    }
)

# gRPC refuses a message over its limit by itself, before any application sees it, and tells which end
# did so in the text alone. Another try would be answered alike.
_TOO_LARGE = re.compile(r"(SERVER|CLIENT): Received message larger than max \((\d+) vs\. (\d+)\)")

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldViolation:
    """One field that the server refused."""

    field: str
    description: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """What is known of a failed call."""

    # UPPER_SNAKE from the catalogue in errors.proto; empty if the status did not come from sfumato.
    reason: str = ""
    message: str
    code: grpc.StatusCode = grpc.StatusCode.UNKNOWN
    field_violations: tuple[FieldViolation, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict)
    error_id: str = ""
    retry_delay_seconds: float | None = None


class SfumatoError(Exception):
    """Base of everything that this client raises for a failed call."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure

    @property
    def reason(self) -> str:
        """Entry of the catalogue, e.g. DATASET_BUSY; empty if sfumato did not send the error."""
        return self.failure.reason

    @property
    def message(self) -> str:
        """For people."""
        return self.failure.message

    @property
    def code(self) -> grpc.StatusCode:
        """Status code as it arrived."""
        return self.failure.code

    @property
    def field_violations(self) -> tuple[FieldViolation, ...]:
        """Fields that were refused, with the reason for each."""
        return self.failure.field_violations

    @property
    def details(self) -> Mapping[str, str]:
        """Machine-readable facts, e.g. the holder of a busy dataset."""
        return self.failure.details

    @property
    def error_id(self) -> str:
        """Finds the entry in the server's log."""
        return self.failure.error_id

    @property
    def retry_delay_seconds(self) -> float | None:
        """How long the server asked to wait before another try."""
        return self.failure.retry_delay_seconds

    def __str__(self) -> str:
        lines = [f"{self.reason or self.code.name}: {self.message}"]
        lines += [
            f"{violation.field}: {violation.description}" for violation in self.field_violations
        ]
        return "\n".join(lines)


class TransportLost(SfumatoError):
    """No answer arrived, or a stream ended before its last message. The work may have been done."""


class ContractViolated(SfumatoError):
    """The server broke the contract; nothing that contradicts it was passed on."""


class InvalidArgument(SfumatoError):
    """The request is wrong."""


class Unauthenticated(SfumatoError):
    """No key where one is needed, or not a valid one."""


class PermissionDenied(SfumatoError):
    """The key lacks the scope."""


class NotFound(SfumatoError):
    """Unknown, removed, or another owner's."""


class AlreadyExists(SfumatoError):
    """The name is taken, or the request id was used with another body."""


class Aborted(SfumatoError):
    """Another writer is at work, or the resource has changed since it was read."""


class FailedPrecondition(SfumatoError):
    """The system is not in a state that allows this."""


class OutOfRange(SfumatoError):
    """An offset or cursor that does not fit what is stored."""


class ResourceExhausted(SfumatoError):
    """Queue, quota, disk or memory is full."""


class Unavailable(SfumatoError):
    """The server is starting or stopping, or cannot reach another service."""


class DataLoss(SfumatoError):
    """Stored or received bytes do not match their digest."""


class Cancelled(SfumatoError):
    """The server took the call as ended by the caller. Jobs go on."""


class DeadlineExceeded(SfumatoError):
    """The deadline passed on the server."""


class Unimplemented(SfumatoError):
    """The server does not know the method."""


class InternalError(SfumatoError):
    """A fault of the server."""


ERROR_CLASSES: Mapping[grpc.StatusCode, type[SfumatoError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.ABORTED: Aborted,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    grpc.StatusCode.OUT_OF_RANGE: OutOfRange,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DATA_LOSS: DataLoss,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.UNIMPLEMENTED: Unimplemented,
    grpc.StatusCode.INTERNAL: InternalError,
    grpc.StatusCode.UNKNOWN: InternalError,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """The application said no; another try would be answered alike."""

    error: SfumatoError


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """The answer is lost; whether the work was done is unknown."""

    error: TransportLost


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryAfter:
    """The application asks for another try, `error.retry_delay_seconds` from now if it said so."""

    error: SfumatoError


def classify(error: grpc.aio.AioRpcError) -> Refusal | Loss | RetryAfter:
    """Tells a refusal from a lost response.

    A status that carries ErrorInfo of domain "sfumato" comes from the application and is final
    whatever its code, except SERVER_DRAINING and SERVER_STARTING. Without it, the final codes are
    refusals (a method that does not exist, a proxy that wants credentials) and every other code is
    a loss: the idle cut of a proxy arrives as INTERNAL, a killed server as UNAVAILABLE. A message
    over gRPC's limit of 4 MiB is a refusal as well, ResourceExhausted without a reason.
    """
    failure = failure_of(error)
    if not failure.reason and (sizes := _TOO_LARGE.search(failure.message)):
        return Refusal(error=_error_class(failure.code)(_too_large(failure, *sizes.groups())))
    if failure.reason in RETRIED_REASONS:
        return RetryAfter(error=_error_class(failure.code)(failure))
    if failure.reason or failure.code in FINAL_CODES:
        return Refusal(error=_error_class(failure.code)(failure))
    return Loss(error=TransportLost(failure))


def failure_of(error: grpc.aio.AioRpcError) -> Failure:
    """Reads the details of a status. Those of another domain do not count."""
    status = _status_details(error)
    code = error.code()
    message = error.details() or code.name
    info = _detail(status, error_details_pb2.ErrorInfo)
    if info is None or info.domain != ERROR_DOMAIN or not info.reason:
        return Failure(message=message, code=code)
    bad_request = _detail(status, error_details_pb2.BadRequest)
    retry = _detail(status, error_details_pb2.RetryInfo)
    return Failure(
        reason=info.reason,
        message=message,
        code=code,
        field_violations=tuple(
            FieldViolation(field=violation.field, description=violation.description)
            for violation in (() if bad_request is None else bad_request.field_violations)
        ),
        details=dict(info.metadata),
        error_id=info.metadata.get("error_id", ""),
        retry_delay_seconds=None
        if retry is None
        else max(0.0, retry.retry_delay.ToNanoseconds() / 1e9),
    )


def lost(message: str) -> TransportLost:
    """A loss that no status tells of: a silent stream, or one that ended too early."""
    return TransportLost(Failure(message=message, code=grpc.StatusCode.UNAVAILABLE))


def violated(message: str) -> ContractViolated:
    """A fault of the server in what it sent with status OK."""
    return ContractViolated(Failure(message=message, code=grpc.StatusCode.INTERNAL))


def damaged(message: str) -> DataLoss:
    """Bytes that arrived are not those that were asked for."""
    return DataLoss(Failure(message=message, code=grpc.StatusCode.DATA_LOSS))


def _too_large(failure: Failure, end: str, size_bytes: str, limit_bytes: str) -> Failure:
    message, taker = ("request", "the server") if end == "SERVER" else ("answer", "this client")
    return replace(
        failure,
        message=f"the {message} takes {size_bytes} bytes, and {taker} takes {limit_bytes} at most",
    )


def _error_class(code: grpc.StatusCode) -> type[SfumatoError]:
    return ERROR_CLASSES.get(code, SfumatoError)


def _status_details(error: grpc.aio.AioRpcError) -> status_pb2.Status:
    """The google.rpc.Status in the trailers; an empty one where a proxy dropped or damaged it."""
    for key, value in error.trailing_metadata() or ():
        if key == STATUS_DETAILS_KEY and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                break
    return status_pb2.Status()


def _detail(status: status_pb2.Status, kind: type[M]) -> M | None:
    for packed in status.details:
        message = kind()
        try:
            if packed.Unpack(message):
                return message
        except DecodeError:
            continue
    return None
