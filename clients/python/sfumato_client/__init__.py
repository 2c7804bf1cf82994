"""Asyncio and blocking clients of the sfumato services."""

from sfumato_client.blobs import Blobs
from sfumato_client.blocking import BlockingClient
from sfumato_client.calls import RetryPolicy, Timing, new_request_id
from sfumato_client.channel import Addresses, Connection, Tls
from sfumato_client.client import Client
from sfumato_client.datasets import Datasets
from sfumato_client.errors import (
    Aborted,
    AlreadyExists,
    Cancelled,
    ContractViolated,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    FieldViolation,
    InternalError,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PermissionDenied,
    ResourceExhausted,
    SfumatoError,
    TransportLost,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from sfumato_client.generator import Generator
from sfumato_client.jobs import has_ended
from sfumato_client.trainer import Trainer
from sfumato_client.watch import (
    Attached,
    Cursor,
    Event,
    Finished,
    Reconnecting,
    Snapshot,
    WatchItem,
)

__all__ = [
    "Aborted",
    "Addresses",
    "AlreadyExists",
    "Attached",
    "Blobs",
    "BlockingClient",
    "Cancelled",
    "Client",
    "Connection",
    "ContractViolated",
    "Cursor",
    "DataLoss",
    "Datasets",
    "DeadlineExceeded",
    "Event",
    "FailedPrecondition",
    "FieldViolation",
    "Finished",
    "Generator",
    "InternalError",
    "InvalidArgument",
    "NotFound",
    "OutOfRange",
    "PermissionDenied",
    "Reconnecting",
    "ResourceExhausted",
    "RetryPolicy",
    "SfumatoError",
    "Snapshot",
    "Timing",
    "Tls",
    "Trainer",
    "TransportLost",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "WatchItem",
    "has_ended",
    "new_request_id",
]
