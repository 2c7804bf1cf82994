"""Reads what a refused call says."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A status with its details."""

    code: grpc.StatusCode
    message: str
    reason: str = ""
    details: dict[str, str] = field(default_factory=dict)
    fields: dict[str, str] = field(default_factory=dict)
    retry_after_seconds: float | None = None
    resource: tuple[str, str] | None = None


def read_refusal(error: Any) -> Refusal:
    """The refusal in an error of grpc, synchronous or not."""
    status = rpc_status.from_call(error)
    if status is None:
        return Refusal(code=error.code(), message=error.details() or "")
    found: dict[str, Any] = {}
    for packed in status.details:
        for kind in (
            error_details_pb2.ErrorInfo,
            error_details_pb2.BadRequest,
            error_details_pb2.RetryInfo,
            error_details_pb2.ResourceInfo,
        ):
            if packed.Is(kind.DESCRIPTOR):
                found[kind.DESCRIPTOR.name] = kind()
                packed.Unpack(found[kind.DESCRIPTOR.name])
    info = found["ErrorInfo"]
    assert info.domain == "sfumato"
    violations = found["BadRequest"].field_violations if "BadRequest" in found else []
    delay = found["RetryInfo"].retry_delay if "RetryInfo" in found else None
    resource = found.get("ResourceInfo")
    return Refusal(
        code=error.code(),
        message=status.message,
        reason=info.reason,
        details=dict(info.metadata),
        fields={violation.field: violation.description for violation in violations},
        retry_after_seconds=None if delay is None else delay.ToTimedelta().total_seconds(),
        resource=None if resource is None else (resource.resource_type, resource.resource_name),
    )


async def refusal_of(call: Awaitable[Any]) -> Refusal:
    """The refusal of a call that must be refused; a stream is read to its end."""
    try:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                continue
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return read_refusal(AioCall(error))
    raise AssertionError("the call was not refused")


class AioCall:
    """What `rpc_status` needs of an error of grpc.aio."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        self._error = error

    def code(self) -> grpc.StatusCode:
        return self._error.code()

    def details(self) -> str:
        return self._error.details() or ""

    def trailing_metadata(self) -> Any:
        return tuple(self._error.trailing_metadata() or ())
