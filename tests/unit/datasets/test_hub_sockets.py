"""A server that always says a little more is left all the same, wherever it does so."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hub_server import HubHandler, HubServer, hub_server
from sfumato_datasets.hub_connection import HubConnection
from sfumato_datasets.hub_request import HubCancelledError, HubTooLargeError
from sfumato_datasets.hub_settings import HubSettings

LONG_SECONDS = 20.0


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server() as server:
        yield server


def connection(
    hub: HubServer, *, cancelled: threading.Event, timeout_seconds: float
) -> HubConnection:
    settings = HubSettings(
        endpoint=hub.url,
        hosts=(),
        cache=Path("/none"),
        max_bytes=1 << 30,
        timeout_seconds=timeout_seconds,
    )
    return HubConnection(settings, cancelled=cancelled)


def dripping(start: bytes, drop: bytes) -> Callable[[HubHandler], None]:
    """Says `start`, and `drop` again and again until nobody listens."""

    def answer(handler: HubHandler) -> None:
        handler.answered, handler.close_connection = True, True
        ends_at = time.monotonic() + LONG_SECONDS
        try:
            handler.wfile.write(start)
            while time.monotonic() < ends_at:
                handler.wfile.write(drop)
                time.sleep(0.02)
        except OSError:
            return

    return answer


DRIPS = {
    "status": dripping(b"HTTP/1.1 ", b"2"),
    "headers": dripping(b"HTTP/1.1 200 OK\r\nX-Endless: ", b"x"),
    "interim answers": dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "size of a chunk": dripping(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0"),
    "trailers": dripping(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n"
    ),
    "body": dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b"x"),
}


def read(asking: HubConnection, url: str) -> None:
    with closing(asking), asking.get(url) as answer:
        for _ in asking.chunks(answer):
            continue


@pytest.mark.parametrize("drip", DRIPS)
def test_the_time_is_up(hub: HubServer, drip: str) -> None:
    hub.fault("/a", DRIPS[drip])
    asking = connection(hub, cancelled=threading.Event(), timeout_seconds=0.3)
    begun = time.monotonic()
    with pytest.raises(HubTooLargeError, match="takes longer than"):
        read(asking, f"{hub.url}/a")
    assert time.monotonic() - begun < LONG_SECONDS / 2


@pytest.mark.parametrize("drip", ["headers", "body"])
def test_it_is_cancelled(hub: HubServer, drip: str) -> None:
    cancelled = threading.Event()

    def answer(handler: HubHandler) -> None:
        cancelled.set()
        DRIPS[drip](handler)

    hub.fault("/a", answer)
    asking = connection(hub, cancelled=cancelled, timeout_seconds=10 * LONG_SECONDS)
    begun = time.monotonic()
    with pytest.raises(HubCancelledError):
        read(asking, f"{hub.url}/a")
    assert time.monotonic() - begun < LONG_SECONDS / 2


def test_a_connection_is_used_again_after_a_redirect(hub: HubServer) -> None:
    clients: list[int] = []

    def remembering(answer: Callable[[HubHandler], None]) -> Callable[[HubHandler], None]:
        return lambda handler: (clients.append(handler.client_address[1]), answer(handler))[1]

    moved = remembering(lambda handler: handler.give(302, b"moved", {"Location": "/b"}))
    hub.fault("/a", moved)
    hub.fault("/b", remembering(lambda handler: handler.give(200, b"hello")))
    read(connection(hub, cancelled=threading.Event(), timeout_seconds=60), f"{hub.url}/a")
    assert len(clients) == 2
    assert len(set(clients)) == 1


def test_nothing_is_left_of_a_closed_connection(hub: HubServer) -> None:
    hub.fault("/a", lambda handler: handler.give(200, b"hello"))
    asking = connection(hub, cancelled=threading.Event(), timeout_seconds=60)
    read(asking, f"{hub.url}/a")
    ends_at = time.monotonic() + LONG_SECONDS
    while any(thread.name == "watch-hub" for thread in threading.enumerate()):
        assert time.monotonic() < ends_at
        time.sleep(0.01)
