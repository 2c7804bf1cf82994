import hashlib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import urllib3

from certificates import Authority
from hub_server import SIGNATURE, HubHandler, HubServer, git_sha1, hub_server
from sfumato_datasets.hub_connection import NUM_CONNECTIONS, HubConnection
from sfumato_datasets.hub_download import HubDownloads
from sfumato_datasets.hub_listing import NUM_TRIES, HubFile, file_url
from sfumato_datasets.hub_request import (
    HubBusyError,
    HubCancelledError,
    HubDamagedError,
    HubError,
    HubGatedError,
    HubNotFoundError,
    HubRequest,
    HubUnreachableError,
)
from sfumato_datasets.hub_settings import HubSettings

CATS = HubRequest(id="org/cats")
CONTENT = bytes(range(256)) * 8192  # 2 MiB
TOKEN = "hf_canary"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfumato_datasets.hub_listing.FIRST_PAUSE_SECONDS", 0.001)


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server() as server:
        yield server


class Fetching:
    """Fetches from a hub into a folder."""

    def __init__(self, hub: HubServer, folder: Path, **connecting: Any) -> None:
        self.hub, self.folder = hub, folder
        self.folder.mkdir(exist_ok=True)
        self.progress: dict[str, int] = {}
        self.cancelled = threading.Event()
        self._connecting = connecting

    def files(self, contents: dict[str, bytes], *, lfs: bool = True) -> list[HubFile]:
        self.sha = self.hub.dataset(CATS.id).commit(contents)
        return [file_of(path, content, lfs=lfs) for path, content in contents.items()]

    def fetch(self, files: list[HubFile]) -> dict[str, Path]:
        settings = HubSettings(
            endpoint=self.hub.url,
            hosts=("*.hf.co",),
            cache=Path("/none"),
            token=TOKEN,
            max_bytes=1 << 30,
            timeout_seconds=60,
        )
        connection = HubConnection(settings, cancelled=self.cancelled, **self._connecting)
        with closing(connection):
            downloads = HubDownloads(
                connection,
                self.folder,
                url=lambda file: file_url(self.hub.url, CATS, self.sha, file),
                on_bytes=self.progress.__setitem__,
            )
            return dict(downloads.fetch(files))


def file_of(path: str, content: bytes, *, lfs: bool = True) -> HubFile:
    return HubFile(
        path=path,
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest() if lfs else None,
        git_sha1=None if lfs else git_sha1(content),
    )


@pytest.fixture
def fetching(hub: HubServer, tmp_path: Path) -> Fetching:
    return Fetching(hub, tmp_path / "staging")


def broken_off(after: int):
    return lambda handler: handler.give_bytes(CONTENT, break_off_after=after)


def test_equal_contents_are_fetched_once(fetching: Fetching, hub: HubServer) -> None:
    contents = {"a.png": CONTENT, "b/c d.png": CONTENT, "empty.png": b"", "é.png": b"e"}
    files = fetching.files(contents)
    found = fetching.fetch(files)
    assert {file.path: found[file.key].read_bytes() for file in files} == contents
    assert len(hub.paths("/resolve/")) == len(hub.paths("/cdn/")) == 3
    assert sum(fetching.progress.values()) == len(CONTENT) + 1


def test_small_files_are_checked_by_their_name_in_git(fetching: Fetching, hub: HubServer) -> None:
    files = fetching.files({"a.txt": b"a cat", "b.txt": b""}, lfs=False)
    assert [path.read_bytes() for path in fetching.fetch(files).values()] == [b"a cat", b""]
    hub.fault("a.txt", lambda handler: handler.give(200, b"a dog"))
    for file in fetching.folder.iterdir():
        file.unlink()
    with pytest.raises(HubDamagedError, match=r"a\.txt"):
        fetching.fetch(files)


def test_a_broken_download_goes_on_where_it_stopped(fetching: Fetching, hub: HubServer) -> None:
    files = fetching.files({"a.png": CONTENT})
    hub.fault("/resolve/", broken_off(1_000_000))
    found = fetching.fetch(files)
    assert found[files[0].key].read_bytes() == CONTENT
    ranges = [headers.get("Range") for path, headers in hub.requests if "/resolve/" in path]
    assert ranges == [None, "bytes=1000000-"]


def test_it_breaks_off_often_but_always_comes_further(fetching: Fetching, hub: HubServer) -> None:
    files = fetching.files({"a.png": CONTENT})

    def a_little(handler: HubHandler) -> None:
        handler.give_bytes(CONTENT, break_off_after=1000)

    hub.fault("/cdn/", *[a_little] * (3 * NUM_TRIES))
    assert fetching.fetch(files)[files[0].key].read_bytes() == CONTENT
    assert len(hub.paths("/cdn/")) == 3 * NUM_TRIES + 1


def test_what_an_earlier_attempt_fetched_is_not_fetched_again(
    fetching: Fetching, hub: HubServer
) -> None:
    files = fetching.files({"a.png": CONTENT, "b.png": CONTENT[:-1]})
    whole, part = (fetching.folder / file.key for file in files)
    whole.write_bytes(CONTENT)
    part.with_name(f"{part.name}.part").write_bytes(CONTENT[:5])
    found = fetching.fetch(files)
    assert found[files[1].key].read_bytes() == CONTENT[:-1]
    assert [headers.get("Range") for _, headers in hub.requests] == ["bytes=5-"] * 2
    assert sorted(path.name for path in fetching.folder.iterdir()) == sorted(found)


@pytest.mark.parametrize("held", [b"other", CONTENT + b"more", b"x" * len(CONTENT)])
def test_what_does_not_fit_is_fetched_anew(fetching: Fetching, hub: HubServer, held: bytes) -> None:
    files = fetching.files({"a.png": CONTENT})
    (fetching.folder / f"{files[0].key}.part").write_bytes(held)
    (fetching.folder / files[0].key).write_bytes(b"neither")
    assert fetching.fetch(files)[files[0].key].read_bytes() == CONTENT


@pytest.mark.parametrize(("status", "then"), [(416, None), (500, "bytes=9-")])
def test_a_range_that_is_not_given(
    fetching: Fetching, hub: HubServer, status: int, then: str | None
) -> None:
    files = fetching.files({"a.png": CONTENT})
    (fetching.folder / f"{files[0].key}.part").write_bytes(CONTENT[:9])
    hub.fault("/cdn/", lambda handler: handler.give(status))
    assert fetching.fetch(files)[files[0].key].read_bytes() == CONTENT
    ranges = [headers.get("Range") for path, headers in hub.requests if "/cdn/" in path]
    assert ranges == ["bytes=9-", then]


def test_a_server_that_knows_no_ranges(fetching: Fetching, hub: HubServer) -> None:
    files = fetching.files({"a.png": CONTENT})
    (fetching.folder / f"{files[0].key}.part").write_bytes(CONTENT[:9])
    hub.fault("/cdn/", lambda handler: handler.give(200, CONTENT))
    assert fetching.fetch(files)[files[0].key].read_bytes() == CONTENT


def other_range(handler: HubHandler) -> None:
    size = len(CONTENT)
    handler.give(206, CONTENT[:5], {"Content-Range": f"bytes 5-9/{size}"})


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda handler: handler.give(200, CONTENT + b"more"), "longer than"),
        (lambda handler: handler.give(200, b"x" * len(CONTENT)), "not those that"),
        (lambda handler: handler.give(206, CONTENT), "another part"),
        (other_range, "another part"),
    ],
)
def test_other_bytes_than_were_announced(
    fetching: Fetching, hub: HubServer, answer: Any, message: str
) -> None:
    files = fetching.files({"a.png": CONTENT})
    hub.fault("/cdn/", answer)
    with pytest.raises(HubDamagedError, match=rf"a\.png: .*{message}"):
        fetching.fetch(files)


@pytest.mark.parametrize(
    ("status", "headers", "kind"),
    [
        (500, {}, HubUnreachableError),
        (200, {}, HubUnreachableError),
        (408, {}, HubUnreachableError),
        (429, {"Retry-After": "0"}, HubBusyError),
        (503, {"Retry-After": "tomorrow"}, HubUnreachableError),
        (404, {}, HubNotFoundError),
        (401, {}, HubNotFoundError),
        (403, {}, HubGatedError),
        (401, {"X-Error-Code": "GatedRepo"}, HubGatedError),
        (410, {}, HubNotFoundError),
        (418, {}, HubNotFoundError),
        (304, {}, HubDamagedError),
        (204, {}, HubDamagedError),
    ],
)
def test_statuses(
    fetching: Fetching,
    hub: HubServer,
    status: int,
    headers: dict[str, str],
    kind: type[HubError],
) -> None:
    files = fetching.files({"a.png": CONTENT})
    hub.fault("/resolve/", *[lambda handler: handler.give(status, b"", headers)] * 50)
    with pytest.raises(HubError) as refusal:
        fetching.fetch(files)
    assert type(refusal.value) is kind
    is_final = not issubclass(kind, HubUnreachableError)
    assert len(hub.paths("/resolve/")) == (1 if is_final else NUM_TRIES)


def test_one_that_cannot_be_had_ends_the_others(
    fetching: Fetching, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = fetching.files({f"{number:02d}.png": b"%d" % number for number in range(100)})
    given_up = threading.Event()
    abandon = HubConnection.abandon

    def note(connection: HubConnection) -> None:
        abandon(connection)
        given_up.set()

    monkeypatch.setattr(HubConnection, "abandon", note)
    hub.fault(f"{fetching.sha}/00.png", lambda handler: handler.give(404))
    # Each of the others is answered when they have been given up, and then comes to nothing.
    hub.fault("/resolve/", *[lambda handler: given_up.wait(30) and None] * 99)
    with pytest.raises(HubNotFoundError, match=r"00\.png"):
        fetching.fetch(files)
    assert len(hub.paths("/resolve/")) <= NUM_CONNECTIONS + 1
    assert not hub.paths("/cdn/")


def test_a_cancelled_import_ends_at_the_next_chunk(fetching: Fetching, hub: HubServer) -> None:
    files = fetching.files({"a.png": CONTENT})
    hub.fault("/cdn/", lambda handler: fetching.cancelled.set())
    with pytest.raises(HubCancelledError):
        fetching.fetch(files)


class Cdn:
    """Hosts of the internet, which this machine answers for."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        authority = Authority(tmp_path)
        issued = authority.issue(*names)
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(issued.certificate, issued.key)
        self.port = 0
        connect = urllib3.util.connection.create_connection

        def lead(address: tuple[str, int], *arguments: Any, **more: Any) -> socket.socket:
            there = ("127.0.0.1", self.port) if address == ("8.8.8.8", 443) else address
            return connect(there, *arguments, **more)

        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        monkeypatch.setattr("urllib3.util.connection.create_connection", lead)


def resolve(host: str, port: int) -> list[str]:
    return [host if host == "127.0.0.1" else "8.8.8.8"]


def test_bytes_of_another_host(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cdn = Cdn(tmp_path, monkeypatch, "cdn.hf.co")
    fetching = Fetching(hub, tmp_path / "staging", resolve=resolve)
    files = fetching.files({"a.png": CONTENT})
    hub.cdn = "https://cdn.hf.co"
    with hub_server(tls=cdn.tls) as other:
        cdn.port = other.port
        other.datasets = hub.datasets
        other.fault("/cdn/", *[lambda handler: handler.give(403)] * 2)
        assert fetching.fetch(files)[files[0].key].read_bytes() == CONTENT
        # The address had expired, and the Hub was asked for another one.
        assert len(hub.paths("/resolve/")) == len(other.requests) == 3
        assert other.requests[0][0] == f"/cdn/{files[0].sha256}?{SIGNATURE}"
        for _, headers in other.requests:
            assert headers["Host"] == "cdn.hf.co"
            assert "Authorization" not in headers
    assert all(TOKEN in headers["Authorization"] for _, headers in hub.requests)


def test_a_host_that_is_another_than_it_says(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cdn = Cdn(tmp_path, monkeypatch, "other.hf.co")
    fetching = Fetching(hub, tmp_path / "staging", resolve=resolve)
    files = fetching.files({"a.png": CONTENT})
    hub.cdn = "https://cdn.hf.co"
    with hub_server(tls=cdn.tls) as other:
        cdn.port = other.port
        with pytest.raises(HubUnreachableError, match=r"no trusted TLS .* cdn\.hf\.co") as refusal:
            fetching.fetch(files)
        assert other.requests == []
    assert SIGNATURE not in str(refusal.value)
