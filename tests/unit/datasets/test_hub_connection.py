import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
import urllib3

from certificates import Authority
from hub_server import HubHandler, HubServer, hub_server
from sfumato_datasets.hub_connection import MAX_REDIRECTS, HubConnection, origin_of
from sfumato_datasets.hub_request import (
    HubCancelledError,
    HubRefusedError,
    HubTooLargeError,
    HubUnreachableError,
)
from sfumato_datasets.hub_settings import HubSettings

HOSTS = ("huggingface.co", "*.hf.co")
TOKEN = "hf_canary"


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server() as server:
        yield server


def connection(
    endpoint: str,
    *,
    addresses: Sequence[str] = (),
    timeout_seconds: float = 60.0,
    **more: object,
) -> HubConnection:
    settings = HubSettings(
        endpoint=endpoint,
        hosts=HOSTS,
        cache=Path("/none"),
        token=TOKEN,
        max_bytes=1 << 30,
        timeout_seconds=timeout_seconds,
    )

    def resolve(host: str, port: int) -> Sequence[str]:
        is_endpoint = host == origin_of(endpoint).host
        return ["127.0.0.1"] if is_endpoint else addresses

    return HubConnection(settings, **{"cancelled": threading.Event(), "resolve": resolve, **more})


def redirect(location: str):
    return lambda handler: handler.give(302, headers={"Location": location})


def told(handler: HubHandler) -> None:
    handler.give(200, b"hello")


def get(asking: HubConnection, url: str) -> bytes:
    with closing(asking), asking.get(url) as answer:
        return b"".join(asking.chunks(answer))


def test_redirects_of_the_endpoint_to_itself_are_followed(hub: HubServer) -> None:
    hub.fault("/first", redirect("/second?a=b%20c"))
    hub.fault("/second", redirect(f"{hub.url}/third"))
    hub.fault("/third", told)
    assert get(connection(hub.url), f"{hub.url}/first") == b"hello"
    assert [path for path, _ in hub.requests] == ["/first", "/second?a=b%20c", "/third"]
    assert {headers["Authorization"] for _, headers in hub.requests} == {f"Bearer {TOKEN}"}


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("http://cdn.hf.co/a", "not over https on port 443"),
        ("https://cdn.hf.co:8443/a", "not over https on port 443"),
        ("https://example.com/a", "example.com, which is not allowed"),
        ("https://hf.co/a", "not allowed"),
        ("https://cdn.hf.co.example.com/a", "not allowed"),
        ("https://evilhf.co/a", "not allowed"),
        ("https://169.254.169.254/latest/meta-data", "not allowed"),
        ("https://[::1]/a", "not allowed"),
        ("https://user@cdn.hf.co/a", "not a URL"),
        ("https://huggingface.co:port/a", "not a URL"),
        ("https:///a", "not a URL"),
        ("file:///etc/passwd", "not a URL"),
        ("ftp://huggingface.co/a", "not a URL"),
        ("https://cdn.hf.co/\x7f", "not a URL"),
        ("https://cdn.hf.co/" + "a" * 20_000, "not a URL"),
    ],
)
def test_where_the_hub_must_not_lead(hub: HubServer, location: str, message: str) -> None:
    hub.fault("/first", redirect(location))
    with pytest.raises(HubRefusedError, match=message):
        get(connection(hub.url, addresses=["8.8.8.8"]), f"{hub.url}/first")


def test_another_port_of_the_same_host_is_another_origin(hub: HubServer) -> None:
    with hub_server() as other:
        hub.fault("/first", redirect(f"{other.url}/second"))
        with pytest.raises(HubRefusedError, match="not over https on port 443"):
            get(connection(hub.url), f"{hub.url}/first")
        assert other.requests == []


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["10.1.2.3"],
        ["169.254.169.254"],
        ["::1"],
        ["fe80::1%eth0"],
        ["::ffff:192.168.0.1"],
        ["64:ff9b::a00:1"],
        ["8.8.8.8", "127.0.0.1"],
        ["127.0.0.1", "8.8.8.8"],
    ],
)
def test_an_allowed_host_with_an_address_that_is_not_public(
    hub: HubServer, addresses: list[str]
) -> None:
    # Whoever answers for the name decides where it leads; the list of hosts alone does not help.
    hub.fault("/first", redirect("https://cdn.hf.co/a"))
    with pytest.raises(HubRefusedError, match="not on the internet"):
        get(connection(hub.url, addresses=addresses), f"{hub.url}/first")


def test_the_address_that_was_checked_is_connected_to(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No second look at the name lies between the check and the connection."""
    connected: list[tuple[str, int]] = []
    connect = urllib3.util.connection.create_connection

    def record(address: tuple[str, int], *arguments: object, **more: object) -> socket.socket:
        if address == ("127.0.0.1", hub.port):
            return connect(address, *arguments, **more)
        connected.append(address)
        raise OSError("no way there")

    monkeypatch.setattr("urllib3.util.connection.create_connection", record)
    hub.fault("/first", redirect("https://cdn.hf.co/a"))
    asking = connection(hub.url, addresses=["8.8.8.8", "2606:4700::1111"])
    with pytest.raises(HubUnreachableError, match=r"cdn\.hf\.co cannot be reached"):
        get(asking, f"{hub.url}/first")
    assert connected == [("8.8.8.8", 443), ("2606:4700::1111", 443)]


def test_redirects_without_an_end(hub: HubServer) -> None:
    hub.fault("/a", *[redirect("/a")] * (MAX_REDIRECTS + 1))
    with pytest.raises(HubRefusedError, match="more than"):
        get(connection(hub.url), f"{hub.url}/a")
    assert len(hub.requests) == MAX_REDIRECTS + 1


def tls(authority: Authority, *names: str) -> ssl.SSLContext:
    issued = authority.issue(*names)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certificate, issued.key)
    return context


def test_the_name_of_the_host_is_that_of_its_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    with hub_server(tls=tls(authority, "hub.test")) as hub:
        hub.fault("/a", told)
        for name, fits in (("hub.test", True), ("other.test", False)):
            endpoint = f"https://{name}:{hub.port}"
            asking = connection(endpoint)
            if fits:
                assert get(asking, f"{endpoint}/a") == b"hello"
                assert hub.requests[-1][1]["Host"] == f"hub.test:{hub.port}"
            else:
                with pytest.raises(
                    HubUnreachableError, match=r"no trusted TLS connection to other\.test"
                ):
                    get(asking, f"{endpoint}/a")
        assert len(hub.requests) == 1


def test_a_certificate_of_nobody(tmp_path: Path) -> None:
    with hub_server(tls=tls(Authority(tmp_path), "127.0.0.1")) as hub:
        with pytest.raises(HubUnreachableError, match="no trusted TLS"):
            get(connection(hub.url), f"{hub.url}/a")
        assert hub.requests == []


def test_nobody_answers() -> None:
    with hub_server() as hub:
        url = hub.url
    with pytest.raises(HubUnreachableError, match="cannot be reached"):
        get(connection(url), f"{url}/a")

    def unknown(host: str, port: int) -> Sequence[str]:
        raise OSError("no such name")

    with pytest.raises(HubUnreachableError, match="has no address"):
        get(connection(url, resolve=unknown), f"{url}/a")


def test_another_address_is_tried_where_one_does_not_answer(hub: HubServer) -> None:
    hub.fault("/a", told)
    asking = connection(hub.url, resolve=lambda host, port: ["127.0.0.2", "127.0.0.1"])
    assert get(asking, f"{hub.url}/a") == b"hello"


@pytest.mark.parametrize("name", ["cancelled", "abandoned", "time"])
def test_it_is_stopped_between_two_chunks(hub: HubServer, name: str) -> None:
    now = 0.0
    cancelled = threading.Event()
    hub.fault("/a", lambda handler: handler.give(200, bytes(3 << 20)))
    asking = connection(hub.url, cancelled=cancelled, monotonic=lambda: now, timeout_seconds=60.0)
    kind: type[Exception] = HubTooLargeError if name == "time" else HubCancelledError
    with closing(asking), asking.get(f"{hub.url}/a") as answer:
        chunks = asking.chunks(answer)
        assert next(chunks)
        if name == "cancelled":
            cancelled.set()
        elif name == "abandoned":
            asking.abandon()
        else:
            now = 61.0
        with pytest.raises(kind):
            next(chunks)


def test_origins_are_compared_by_scheme_host_and_port() -> None:
    assert origin_of("https://Hub.Test./a") == origin_of("https://hub.test:443/b")
    assert origin_of("https://hub.test") != origin_of("http://hub.test:443")
    assert origin_of("https://[2606:4700::1]/").host_header == "[2606:4700::1]"
