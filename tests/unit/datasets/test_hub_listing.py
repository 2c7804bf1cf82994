import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hub_server import HubHandler, HubServer, git_sha1, hub_server
from sfumato_datasets.hub_connection import HubConnection
from sfumato_datasets.hub_listing import HubFile, find_commit, list_files
from sfumato_datasets.hub_request import HubDamagedError, HubRefusedError, HubRequest
from sfumato_datasets.hub_settings import HubSettings

CATS = HubRequest(id="org/cats")
OTHER = "b" * 40


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server(page_size=2) as server:
        yield server


@pytest.fixture
def asking(hub: HubServer) -> Iterator[HubConnection]:
    settings = HubSettings(
        endpoint=hub.url, hosts=(), cache=Path("/none"), max_bytes=1, timeout_seconds=60
    )
    with closing(HubConnection(settings, cancelled=threading.Event())) as connection:
        yield connection


def entry(path: object = "a.png", size: object = 1, **more: object) -> dict[str, object]:
    return {"type": "file", "path": path, "size": size, "oid": git_sha1(b"a"), **more}


def page(*entries: object, link: str = "") -> Any:
    headers = {"Link": f'<{link}>; rel="next"'} if link else {}
    return lambda handler: handler.give_json(list(entries), headers)


def test_every_page_of_a_folder(hub: HubServer, asking: HubConnection) -> None:
    files = {f"data/{number}.png": bytes([number]) for number in range(5)}
    sha = hub.dataset(CATS.id).commit({**files, "other/a.png": b"a"})
    assert find_commit(asking, hub.url, CATS) == sha
    inside = HubRequest(id=CATS.id, folder="/data/")
    listed = list_files(asking, hub.url, inside, sha)
    assert [file.path for file in listed] == sorted(files)
    assert all(isinstance(file, HubFile) and file.sha256 for file in listed)


def test_another_commit_than_was_asked_for(hub: HubServer, asking: HubConnection) -> None:
    hub.dataset(CATS.id).commit({"a.png": b"a"})
    hub.fault("/revision/", lambda handler: handler.give_json({"sha": "c" * 40}))
    with pytest.raises(HubDamagedError, match="another commit"):
        find_commit(asking, hub.url, HubRequest(id=CATS.id, revision=OTHER))


def leads_back(handler: HubHandler) -> None:
    page(entry(), link=handler.path)(handler)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([leads_back] * 2, "leads back to itself"),
        ([page(link="/api/datasets/org/cats/tree/x?cursor=1")], "an empty page"),
        ([page(entry("other/a.png"))], "files of another folder"),
        ([page(entry("data"))], "files of another folder"),
        ([page(entry(3))], "malformed"),
        ([page(entry(size=True))], "malformed"),
        ([page(entry(size=-1))], "malformed"),
        ([page(entry(size=1.5))], "malformed"),
        ([page(entry(oid="x"))], "malformed"),
        ([page(entry(lfs={"oid": "x", "size": 1}))], "malformed"),
        ([page(entry(lfs="yes"))], "malformed"),
        ([page("a.png")], "malformed"),
        ([lambda handler: handler.give(200, b"[" * 100_000)], "not JSON"),
    ],
)
def test_a_list_that_cannot_be_right(
    hub: HubServer, asking: HubConnection, answers: list[Any], message: str
) -> None:
    hub.fault("/tree/", *answers)
    inside = HubRequest(id=CATS.id, folder="data" if "folder" in message else "")
    with pytest.raises(HubDamagedError, match=message):
        list_files(asking, hub.url, inside, OTHER)


def test_a_next_page_elsewhere(hub: HubServer, asking: HubConnection) -> None:
    hub.fault("/tree/", page(entry(), link="https://example.com/more"))
    with pytest.raises(HubRefusedError, match=r"example\.com, which is not allowed"):
        list_files(asking, hub.url, CATS, OTHER)
    hub.fault("/tree/", page(entry(), link="http://[oops/more"))
    with pytest.raises(HubRefusedError, match="not a URL"):
        list_files(asking, hub.url, CATS, OTHER)
