"""The blocking client, from a program without an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from import_server import IMPORT, ImportServer
from serving import quick_client, serving
from sfumato_client import BlockingClient, Cursor, Event, Finished, NotFound


@pytest.fixture
def address() -> Iterator[str]:
    """A server with a finished import of five events, in a thread with a loop of its own."""
    started: list[int] = []
    ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        imports = ImportServer()
        async with serving(imports=imports) as port:
            await imports.append(4)
            await imports.finish()
            started.append(port)
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    ready.wait(timeout=10)
    yield f"127.0.0.1:{started[0]}"
    stop.set()
    thread.join()


def test_calls_lists_and_watches(address: str) -> None:
    with BlockingClient(lambda: quick_client(address)) as client:
        imported = client.call(lambda c: c.datasets.get_import(IMPORT))
        names = [each.name for each in client.iterate(lambda c: c.datasets.list_imports())]
        items = list(
            client.iterate(lambda c: c.datasets.watch_import(IMPORT, cursor=Cursor(replay=True)))
        )
    assert imported.dataset == "cats"
    assert len(names) == 6
    assert sum(isinstance(item, Event) for item in items) == 5
    assert isinstance(items[-1], Finished)


def test_errors_come_through(address: str) -> None:
    with BlockingClient(lambda: quick_client(address)) as client, pytest.raises(NotFound):
        client.call(lambda c: c.datasets.get_import("import-2"))


def test_iteration_may_be_left_early(address: str) -> None:
    with BlockingClient(lambda: quick_client(address)) as client:
        for item in client.iterate(lambda c: c.datasets.watch_import(IMPORT)):
            assert item is not None
            break
        assert client.call(lambda c: c.datasets.get_import(IMPORT)).name == IMPORT
    assert "sfumato-client" not in {thread.name for thread in threading.enumerate()}
