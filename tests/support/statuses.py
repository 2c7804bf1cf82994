"""Statuses as the services send them."""

from __future__ import annotations

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status


def status(
    code: grpc.StatusCode,
    *,
    reason: str = "",
    domain: str = "sfumato",
    message: str = "no",
    fields: dict[str, str] | None = None,
    details: dict[str, str] | None = None,
    retry_delay_seconds: float | None = None,
) -> grpc.Status:
    """A status with ErrorInfo if it has a reason, BadRequest and RetryInfo."""
    parts: list[Any] = []

    def add(message: error_details_pb2.ErrorInfo | error_details_pb2.BadRequest | object) -> None:
        packed = Any()
        packed.Pack(message)
        parts.append(packed)

    if retry_delay_seconds is not None:
        delay = Duration(nanos=int(retry_delay_seconds % 1 * 1e9), seconds=int(retry_delay_seconds))
        add(error_details_pb2.RetryInfo(retry_delay=delay))
    if fields:
        violation = error_details_pb2.BadRequest.FieldViolation
        add(
            error_details_pb2.BadRequest(
                field_violations=[
                    violation(field=field, description=description)
                    for field, description in fields.items()
                ]
            )
        )
    if reason:
        add(error_details_pb2.ErrorInfo(reason=reason, domain=domain, metadata=details or {}))
    return rpc_status.to_status(
        status_pb2.Status(code=code.value[0], message=message, details=parts)
    )


def rpc_error(code: grpc.StatusCode, **parts: object) -> grpc.aio.AioRpcError:
    """The exception that grpc.aio raises for such a status."""
    sent = status(code, **parts)  # type: ignore[arg-type]
    return grpc.aio.AioRpcError(
        code,
        initial_metadata=grpc.aio.Metadata(),
        trailing_metadata=grpc.aio.Metadata(*sent.trailing_metadata),
        details=sent.details,
    )
