"""The proxies that other tests rely on do what they say."""

from __future__ import annotations

import pytest

from import_server import IMPORT, ImportServer
from recording_proxy import RecordingProxy
from serving import quick_client, serving
from sfumato_client import Cursor, Finished, NotFound


async def test_recording_proxy_forwards_and_records_every_kind_of_call() -> None:
    imports = ImportServer()
    async with (
        serving(imports=imports) as port,
        RecordingProxy(f"127.0.0.1:{port}") as proxy,
        quick_client(proxy.address) as client,
    ):
        await imports.append(3)
        await imports.finish()
        await client.datasets.get_import(IMPORT)
        items = [item async for item in client.datasets.watch_import(IMPORT, cursor=Cursor())]
        with pytest.raises(NotFound) as caught:
            await client.datasets.get_import("import-2")
    assert isinstance(items[-1], Finished)
    assert caught.value.reason == "RESOURCE_NOT_FOUND"
    service = "sfumato.datasets.v1.DatasetsService"
    assert proxy.methods == [
        f"{service}.GetImport",
        f"{service}.WatchImport",
        f"{service}.GetImport",
    ]
