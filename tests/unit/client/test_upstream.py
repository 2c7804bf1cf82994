"""What a caller is told when a service cannot reach another one."""

from __future__ import annotations

import grpc
import pytest

from sfumato_chassis.errors import Reason, Unavailable
from sfumato_client.errors import classify
from sfumato_client.upstream import relay
from statuses import rpc_error

ADDRESS = "ipv4:10.1.2.3:7433"


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED])
def test_a_service_is_named_by_its_name_and_not_by_its_address(code: grpc.StatusCode) -> None:
    lost = rpc_error(code, message=f"failed to connect to all addresses; last error: {ADDRESS}")
    told = relay(classify(lost).error, "trainer", "adapter", "run-a")
    assert isinstance(told, Unavailable)
    assert told.reason is Reason.SERVICE_UNREACHABLE
    assert told.message == "the trainer service did not answer"
    assert told.retry_after_seconds
