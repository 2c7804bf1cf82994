"""Unary calls against a real server: lost answers, drains, identity, pages."""

from __future__ import annotations

import uuid

import grpc
import pytest

from cutting_proxy import CuttingProxy
from import_server import IMPORT, ImportServer
from serving import quick_client, serving
from sfumato.datasets.v1 import imports_pb2
from sfumato.job.v1 import job_pb2
from sfumato_client import (
    Addresses,
    AlreadyExists,
    Client,
    Connection,
    NotFound,
    ResourceExhausted,
    RetryPolicy,
    TransportLost,
)
from statuses import status


async def test_create_whose_answer_is_lost_is_repeated_with_the_same_request_id() -> None:
    imports = ImportServer()
    async with serving(imports=imports) as port, CuttingProxy(port) as proxy:
        num_to_cut = 2

        async def cut_before_the_answer() -> None:
            nonlocal num_to_cut
            if num_to_cut > 0:
                num_to_cut -= 1
                proxy.cut()

        imports.on_created = cut_before_the_answer
        async with quick_client(proxy.address) as client:
            response = await client.datasets.create_import(
                imports_pb2.CreateImportRequest(dataset="cats")
            )
    assert imports.num_create_calls == 3
    assert len(imports.created) == 1
    assert response.deduplicated
    (request_id,) = imports.created
    assert str(uuid.UUID(request_id)) == request_id


async def test_create_is_repeated_while_the_server_drains() -> None:
    imports = ImportServer()
    draining = status(
        grpc.StatusCode.UNAVAILABLE, reason="SERVER_DRAINING", retry_delay_seconds=0.01
    )
    imports.create_refusals.extend([draining, draining])
    async with serving(imports=imports) as port, quick_client(f"127.0.0.1:{port}") as client:
        response = await client.datasets.create_import(
            imports_pb2.CreateImportRequest(dataset="cats")
        )
    assert imports.num_create_calls == 3
    assert not response.deduplicated


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [
        (grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_REUSED", AlreadyExists),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", ResourceExhausted),
    ],
)
async def test_refused_create_is_not_repeated(
    code: grpc.StatusCode, reason: str, error: type[Exception]
) -> None:
    imports = ImportServer()
    imports.create_refusals.append(status(code, reason=reason))
    async with serving(imports=imports) as port, quick_client(f"127.0.0.1:{port}") as client:
        with pytest.raises(error):
            await client.datasets.create_import(imports_pb2.CreateImportRequest(dataset="cats"))
    assert imports.num_create_calls == 1


async def test_refusal_carries_reason_and_message_over_the_wire() -> None:
    async with serving(imports=ImportServer()) as port, quick_client(f"127.0.0.1:{port}") as client:
        with pytest.raises(NotFound) as caught:
            await client.datasets.get_import("import-2")
    assert caught.value.reason == "RESOURCE_NOT_FOUND"
    assert caught.value.message == "no import import-2"


async def test_server_that_is_not_there_is_a_loss() -> None:
    async with CuttingProxy(0, max_cuts=0) as proxy:
        address = proxy.address
    async with quick_client(address, budget_seconds=0.05) as client:
        with pytest.raises(TransportLost):
            await client.datasets.get_import(IMPORT)


async def test_silent_server_is_given_up_after_the_attempt_timeout() -> None:
    async with serving(imports=ImportServer()) as port, CuttingProxy(port) as proxy:
        proxy.freeze()
        policy = RetryPolicy(attempt_timeout_seconds=0.1, budget_seconds=0.05)
        connection = Connection(addresses=Addresses.all_at(proxy.address))
        async with Client(connection, policy=policy) as client:
            with pytest.raises(TransportLost) as caught:
                await client.datasets.get_import(IMPORT)
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_identity_travels_with_every_call() -> None:
    imports = ImportServer()
    async with serving(imports=imports) as port:
        connection = Connection(
            addresses=Addresses.all_at(f"127.0.0.1:{port}"), api_key="secret", principal="anna"
        )
        async with Client(connection) as client:
            await client.datasets.get_import(IMPORT)
    assert ("authorization", "Bearer secret") in imports.metadata
    assert ("x-sfumato-principal", "anna") in imports.metadata


async def test_lists_run_over_all_pages() -> None:
    async with serving(imports=ImportServer()) as port, quick_client(f"127.0.0.1:{port}") as client:
        names = [each.name async for each in client.datasets.list_imports()]
    assert names == [f"import-{number}" for number in range(6)]


async def test_wait_answers_the_unfinished_job_when_the_time_is_up() -> None:
    async with serving(imports=ImportServer()) as port, quick_client(f"127.0.0.1:{port}") as client:
        running = await client.datasets.wait_import(IMPORT, timeout_seconds=0)
    assert running.status.state == job_pb2.JOB_STATE_RUNNING


async def test_wait_answers_the_finished_job() -> None:
    imports = ImportServer()
    async with serving(imports=imports) as port, quick_client(f"127.0.0.1:{port}") as client:
        await imports.finish()
        finished = await client.datasets.wait_import(IMPORT)
    assert finished.status.state == job_pb2.JOB_STATE_SUCCEEDED


async def test_wait_goes_on_when_the_server_drains() -> None:
    imports = ImportServer()
    imports.wait_refusals.append(
        status(grpc.StatusCode.UNAVAILABLE, reason="SERVER_DRAINING", retry_delay_seconds=0.01)
    )
    async with serving(imports=imports) as port, quick_client(f"127.0.0.1:{port}") as client:
        await imports.finish()
        finished = await client.datasets.wait_import(IMPORT)
    assert finished.status.state == job_pb2.JOB_STATE_SUCCEEDED
    assert not imports.wait_refusals
