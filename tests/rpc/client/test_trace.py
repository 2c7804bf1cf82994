"""A trace records each attempt, and its line makes the same call."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from pathlib import Path

import grpc
from google.protobuf import json_format
from grpc_reflection.v1alpha import reflection

from import_server import IMPORT, ImportServer
from serving import serving
from sfumato.datasets.v1 import datasets_pb2, datasets_pb2_grpc, imports_pb2
from sfumato_client import Addresses, Client, Connection, Cursor, Finished
from sfumato_client.trace import Trace, TracedCall

GRPCURL = Path(sys.executable).with_name("grpcurl")


async def test_calls_and_watches_are_recorded_and_still_work() -> None:
    imports = ImportServer()
    calls: list[TracedCall] = []
    async with serving(imports=imports) as port:
        await imports.finish()
        connection = Connection(addresses=Addresses.all_at(f"127.0.0.1:{port}"), api_key="secret")
        async with Client(connection, interceptors=Trace(record=calls.append)) as client:
            await client.datasets.get_import(IMPORT)
            cursor = Cursor(replay=True)
            items = [item async for item in client.datasets.watch_import(IMPORT, cursor=cursor)]
    assert isinstance(items[-1], Finished)
    assert [call.method for call in calls] == ["GetImport", "WatchImport"]
    assert {call.service for call in calls} == {"sfumato.datasets.v1.DatasetsService"}
    assert [json.loads(call.request_json) for call in calls] == [
        {"name": IMPORT},
        {"name": IMPORT, "replay": True},
    ]
    assert all(call.address == f"127.0.0.1:{port}" and call.authorized for call in calls)
    assert all("secret" not in repr(call) + call.grpcurl() for call in calls)


async def test_line_makes_the_same_call() -> None:
    imports = ImportServer()
    server = grpc.aio.server()
    datasets_pb2_grpc.add_DatasetsServiceServicer_to_server(imports, server)
    reflection.enable_server_reflection(
        [datasets_pb2.DESCRIPTOR.services_by_name["DatasetsService"].full_name], server
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    calls: list[TracedCall] = []
    connection = Connection(addresses=Addresses.all_at(f"127.0.0.1:{port}"))
    async with Client(connection, interceptors=Trace(record=calls.append)) as client:
        await client.datasets.get_import(IMPORT)
    words = shlex.split(calls[0].grpcurl())
    process = await asyncio.create_subprocess_exec(
        str(GRPCURL), *words[1:], stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    await server.stop(None)
    assert process.returncode == 0
    # This grpcurl prints the names of the proto, newer ones print those of JSON; both are read.
    response = json_format.Parse(output, imports_pb2.GetImportResponse())
    assert response.import_job.name == IMPORT
