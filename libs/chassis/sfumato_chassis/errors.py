"""The errors that callers see: one tree of exceptions, one catalogue of reasons.

    SfumatoError
    ├── InvalidArgument       a field or the message is wrong; names the fields
    ├── Unauthenticated       no valid key
    ├── PermissionDenied      the key may not do this
    ├── NotFound              unknown, expired, or another owner's
    ├── AlreadyExists         the name or request id is taken
    ├── Aborted               another writer is at it; names the holder
    ├── FailedPrecondition    the state of things does not allow it
    ├── OutOfRange            an offset or cursor outside what is there
    ├── ResourceExhausted     no room; says when to try again
    ├── Unavailable           not now; says when to try again
    ├── DataLoss              stored bytes are damaged
    ├── Unimplemented         no such method
    ├── Cancelled             the caller went away
    ├── DeadlineExceeded      the caller's deadline passed
    └── Internal              a fault of this program; carries an error id

Each class stands for one gRPC status; each reason belongs to one class. ``sfumato.job.v1.ErrorReason``
is the public list of reasons.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar

DOMAIN = "sfumato"
RETRY_AFTER_DRAIN_SECONDS = 1.0
RETRY_AFTER_DISK_FULL_SECONDS = 30.0
DISK_FULL_MESSAGE = "the server's disk is full"


class Reason(StrEnum):
    """Why a call failed or a job ended; the names of ``sfumato.job.v1.ErrorReason``."""

    FIELD_INVALID = "FIELD_INVALID"
    MESSAGE_MALFORMED = "MESSAGE_MALFORMED"
    PAGE_TOKEN_INVALID = "PAGE_TOKEN_INVALID"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    SCOPE_MISSING = "SCOPE_MISSING"
    MODEL_GATED = "MODEL_GATED"
    RESOURCE_NOT_FOUND = "RESOURCE_NOT_FOUND"
    JOB_EXPIRED = "JOB_EXPIRED"
    PATH_NOT_FOUND = "PATH_NOT_FOUND"
    NAME_TAKEN = "NAME_TAKEN"
    REQUEST_ID_REUSED = "REQUEST_ID_REUSED"
    DATASET_BUSY = "DATASET_BUSY"
    ETAG_MISMATCH = "ETAG_MISMATCH"
    DATASET_NOT_EMPTY = "DATASET_NOT_EMPTY"
    DATASET_EMPTY = "DATASET_EMPTY"
    RESOURCE_PINNED = "RESOURCE_PINNED"
    JOB_STATE_UNSUITABLE = "JOB_STATE_UNSUITABLE"
    DEVICE_BUSY = "DEVICE_BUSY"
    CHECKPOINT_MISSING = "CHECKPOINT_MISSING"
    CHECKPOINT_MISMATCH = "CHECKPOINT_MISMATCH"
    WEIGHTS_UNSAFE = "WEIGHTS_UNSAFE"
    MODEL_UNSUPPORTED = "MODEL_UNSUPPORTED"
    ADAPTER_INCOMPATIBLE = "ADAPTER_INCOMPATIBLE"
    MACHINE_INCAPABLE = "MACHINE_INCAPABLE"
    UPLOAD_INCOMPLETE = "UPLOAD_INCOMPLETE"
    DELETION_PENDING = "DELETION_PENDING"
    VERSION_IS_LATEST = "VERSION_IS_LATEST"
    OFFSET_OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"
    EVENT_LOG_CHANGED = "EVENT_LOG_CHANGED"
    QUEUE_FULL = "QUEUE_FULL"
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
    DISK_FULL = "DISK_FULL"
    MEMORY_EXCEEDED = "MEMORY_EXCEEDED"
    SERVER_DRAINING = "SERVER_DRAINING"
    SERVER_STARTING = "SERVER_STARTING"
    SERVICE_UNREACHABLE = "SERVICE_UNREACHABLE"
    BLOB_CORRUPT = "BLOB_CORRUPT"
    INTERNAL = "INTERNAL"
    METHOD_UNKNOWN = "METHOD_UNKNOWN"
    CALLER_CANCELLED = "CALLER_CANCELLED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    WORKER_DIED = "WORKER_DIED"
    WORKER_DIED_REPEATEDLY = "WORKER_DIED_REPEATEDLY"
    LOSS_NOT_FINITE = "LOSS_NOT_FINITE"
    OUTPUT_NOT_FINITE = "OUTPUT_NOT_FINITE"
    FILES_REFUSED = "FILES_REFUSED"
    MODEL_LOAD_FAILED = "MODEL_LOAD_FAILED"
    ARCHIVE_INVALID = "ARCHIVE_INVALID"
    ARCHIVE_TOO_LARGE = "ARCHIVE_TOO_LARGE"
    HUB_NOT_FOUND = "HUB_NOT_FOUND"
    HUB_GATED = "HUB_GATED"
    HUB_UNREACHABLE = "HUB_UNREACHABLE"
    HUB_UNSUPPORTED = "HUB_UNSUPPORTED"
    HUB_TOO_LARGE = "HUB_TOO_LARGE"
    HUB_REFUSED = "HUB_REFUSED"
    HUB_DAMAGED = "HUB_DAMAGED"


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldViolation:
    """What is wrong with one field of a request."""

    path: str
    message: str


class SfumatoError(Exception):
    """An error that a caller sees. The message is for people and never holds a path of the server or a trace.

    Attributes:
        details: Machine-readable facts.
        error_id: Under which the log has what callers are not told; always set with INTERNAL and
            DISK_FULL, empty where the log has no more.
    """

    status: ClassVar[str]
    """Name of the gRPC status code."""

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        details: Mapping[str, str] = MappingProxyType({}),
        error_id: str = "",
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        if CATALOGUE.get(reason) is not type(self):
            raise TypeError(f"{type(self).__name__} is not the class of {reason}")
        self.reason = reason
        self.message = message
        self.details = dict(details)
        self.error_id = error_id
        self.retry_after_seconds = retry_after_seconds


class InvalidArgument(SfumatoError):
    """A field or the whole message is wrong; at most 20 violations are told."""

    status = "INVALID_ARGUMENT"

    def __init__(
        self, reason: Reason, message: str, *, violations: Sequence[FieldViolation] = ()
    ) -> None:
        super().__init__(reason, message)
        self.violations = tuple(violations)

    @classmethod
    def field(cls, path: str, message: str) -> "InvalidArgument":
        """The error of one wrong field."""
        violation = FieldViolation(path=path, message=message)
        return cls(Reason.FIELD_INVALID, f"{path}: {message}", violations=[violation])


class Unauthenticated(SfumatoError):
    """No valid key."""

    status = "UNAUTHENTICATED"


class PermissionDenied(SfumatoError):
    """The key may not do this."""

    status = "PERMISSION_DENIED"


class ResourceError(SfumatoError):
    """Parent of the errors that name one resource."""

    def __init__(
        self, reason: Reason, message: str, *, resource_type: str, resource_name: str
    ) -> None:
        super().__init__(reason, message)
        self.resource_type = resource_type
        self.resource_name = resource_name


class NotFound(ResourceError):
    """Unknown, expired, or another owner's."""

    status = "NOT_FOUND"

    @classmethod
    def resource(cls, resource_type: str, resource_name: str) -> "NotFound":
        """The error of a resource that is not there for this caller."""
        return cls(
            Reason.RESOURCE_NOT_FOUND,
            f"no {resource_type.replace('_', ' ')} named {resource_name!r}",
            resource_type=resource_type,
            resource_name=resource_name,
        )


class AlreadyExists(ResourceError):
    """The name or request id is taken."""

    status = "ALREADY_EXISTS"


class Aborted(SfumatoError):
    """Another writer is at it; ``details["holder"]`` names it."""

    status = "ABORTED"


class FailedPrecondition(SfumatoError):
    """The state of things does not allow it."""

    status = "FAILED_PRECONDITION"


class OutOfRange(SfumatoError):
    """An offset or cursor outside what is there."""

    status = "OUT_OF_RANGE"


class ResourceExhausted(SfumatoError):
    """No room; says when to try again."""

    status = "RESOURCE_EXHAUSTED"


class Unavailable(SfumatoError):
    """Not now; says when to try again."""

    status = "UNAVAILABLE"


class DataLoss(SfumatoError):
    """Stored bytes are damaged."""

    status = "DATA_LOSS"


class Unimplemented(SfumatoError):
    """No such method."""

    status = "UNIMPLEMENTED"


class Cancelled(SfumatoError):
    """The caller went away."""

    status = "CANCELLED"


class DeadlineExceeded(SfumatoError):
    """The caller's deadline passed."""

    status = "DEADLINE_EXCEEDED"


class Internal(SfumatoError):
    """A fault of this program; ``error_id`` finds it in the log."""

    status = "INTERNAL"


def server_draining() -> Unavailable:
    """The error of a call that a stopping server does not serve any more."""
    return Unavailable(
        Reason.SERVER_DRAINING,
        "the server is stopping",
        retry_after_seconds=RETRY_AFTER_DRAIN_SECONDS,
    )


def disk_full(error_id: str) -> ResourceExhausted:
    """The error of a call or a job that found no space to write to."""
    return ResourceExhausted(
        Reason.DISK_FULL,
        DISK_FULL_MESSAGE,
        error_id=error_id,
        retry_after_seconds=RETRY_AFTER_DISK_FULL_SECONDS,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFailure:
    """Why a job failed or was interrupted."""

    reason: Reason
    message: str
    error_id: str = ""
    details: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, error: SfumatoError) -> "JobFailure":
        """The failure of a job that met ``error``."""
        return cls(
            reason=error.reason,
            message=error.message,
            error_id=error.error_id,
            details=error.details,
        )

    def to_json(self) -> dict[str, Any]:
        """As an event holds it."""
        return {
            "reason": self.reason.value,
            "message": self.message,
            "error_id": self.error_id,
            "details": dict(self.details),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "JobFailure":
        """What ``to_json`` made."""
        return cls(**{**record, "reason": Reason(record["reason"])})


_CLASSES: Mapping[type[SfumatoError], Sequence[Reason]] = {
    InvalidArgument: (
        Reason.FIELD_INVALID,
        Reason.MESSAGE_MALFORMED,
        Reason.PAGE_TOKEN_INVALID,
    ),
    Unauthenticated: (Reason.UNAUTHENTICATED,),
    PermissionDenied: (Reason.SCOPE_MISSING, Reason.MODEL_GATED),
    NotFound: (Reason.RESOURCE_NOT_FOUND, Reason.JOB_EXPIRED, Reason.PATH_NOT_FOUND),
    AlreadyExists: (Reason.NAME_TAKEN, Reason.REQUEST_ID_REUSED),
    Aborted: (Reason.DATASET_BUSY, Reason.ETAG_MISMATCH),
    FailedPrecondition: (
        Reason.DATASET_NOT_EMPTY,
        Reason.DATASET_EMPTY,
        Reason.RESOURCE_PINNED,
        Reason.JOB_STATE_UNSUITABLE,
        Reason.DEVICE_BUSY,
        Reason.CHECKPOINT_MISSING,
        Reason.CHECKPOINT_MISMATCH,
        Reason.WEIGHTS_UNSAFE,
        Reason.MODEL_UNSUPPORTED,
        Reason.ADAPTER_INCOMPATIBLE,
        Reason.MACHINE_INCAPABLE,
        Reason.UPLOAD_INCOMPLETE,
        Reason.DELETION_PENDING,
        Reason.VERSION_IS_LATEST,
    ),
    OutOfRange: (Reason.OFFSET_OUT_OF_RANGE, Reason.EVENT_LOG_CHANGED),
    ResourceExhausted: (
        Reason.QUEUE_FULL,
        Reason.QUOTA_EXCEEDED,
        Reason.DISK_FULL,
        Reason.MEMORY_EXCEEDED,
    ),
    Unavailable: (
        Reason.SERVER_DRAINING,
        Reason.SERVER_STARTING,
        Reason.SERVICE_UNREACHABLE,
    ),
    DataLoss: (Reason.BLOB_CORRUPT,),
    Internal: (Reason.INTERNAL,),
    Unimplemented: (Reason.METHOD_UNKNOWN,),
    Cancelled: (Reason.CALLER_CANCELLED,),
    DeadlineExceeded: (Reason.DEADLINE_EXCEEDED,),
}

CATALOGUE: Mapping[Reason, type[SfumatoError]] = MappingProxyType(
    {reason: error for error, reasons in _CLASSES.items() for reason in reasons}
)
"""The class, and with it the status, of every reason that a call can fail with."""

JOB_REASONS = frozenset(Reason) - frozenset(CATALOGUE)
"""Reasons that stand only in a job's status."""
