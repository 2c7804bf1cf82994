"""Imports from the Hub where its cache has something, where it is away, and where it wants a token."""

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from datasets_server import Running, finished, watched
from hub_imports import CATS, asking, image_folder, imported, samples, serving
from hub_server import SIGNATURE, HubServer, fill_cache
from pictures import picture
from sfumato.datasets.v1 import datasets_pb2, imports_pb2, versions_pb2
from sfumato.job.v1 import errors_pb2, job_pb2
from sfumato_chassis.blobs import digest_of

TOKEN = "hf_canaryCANARYcanaryCANARY"
COMMIT = "c" * 40


@pytest.fixture
def cache(tmp_path: Path, hub_alone: None) -> Path:
    return tmp_path / "hf" / "hub"


def notes(end: Any) -> list[str]:
    return [note.reason for note in end.notes]


async def digests(server: Running) -> set[str]:
    version = versions_pb2.VersionRef(dataset="cats")
    listed = await server.stubs.datasets.ListSamples(
        datasets_pb2.ListSamplesRequest(version=version)
    )
    return {sample.image.digest for sample in listed.samples}


def in_data(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {path: content for path, content in files.items() if path.startswith("data/")}


async def test_what_the_cache_has_of_the_commit_is_not_fetched(
    hub_client: Running, hub: HubServer, cache: Path
) -> None:
    files = image_folder()
    sha = hub.dataset(CATS).commit(files)
    held = {path: content for path, content in in_data(files).items() if path != "data/b.png"}
    fill_cache(cache, CATS, sha, held)
    end = await imported(hub_client.stubs, asking())
    assert end.status.state == job_pb2.JOB_STATE_SUCCEEDED, end.status.error
    assert len(await samples(hub_client.stubs)) == 3
    assert [path.rpartition("/")[2] for path in hub.paths("/resolve/")] == ["b.png"]
    assert end.progress.num_bytes_fetched == len(files["data/b.png"])
    assert "HUB_CACHE_USED" not in notes(end)


async def test_a_damaged_file_of_the_cache_is_fetched(
    hub_client: Running, hub: HubServer, cache: Path
) -> None:
    files = image_folder()
    sha = hub.dataset(CATS).commit(files)
    fill_cache(cache, CATS, sha, {**in_data(files), "data/b.png": picture(99)})
    end = await imported(hub_client.stubs, asking())
    assert end.status.state == job_pb2.JOB_STATE_SUCCEEDED, end.status.error
    assert [path.rpartition("/")[2] for path in hub.paths("/resolve/")] == ["b.png"]
    assert digest_of(files["data/b.png"]) in await digests(hub_client)


@pytest.mark.parametrize("how", ["away", "setting", "variable"])
async def test_the_cache_alone(
    tmp_path: Path, cache: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    fill_cache(cache, CATS, COMMIT, image_folder())
    hub.dataset(CATS).commit(image_folder(10))
    if how == "away":
        hub.fault("/", *[lambda handler: handler.give(503)] * 100)
    if how == "variable":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    settings = {"allow_download": False} if how == "setting" else {}
    async with serving(tmp_path, hub.url, **settings) as server:
        end = await imported(server.stubs, asking())
        assert end.status.state == job_pb2.JOB_STATE_SUCCEEDED, end.status.error
        assert end.hub.revision == COMMIT
        assert "HUB_CACHE_USED" in notes(end)
        assert (await samples(server.stubs))["a.png"] == "picture 0"
        other = await imported(server.stubs, asking("dogs", id="org/dogs"))
        assert other.status.error.reason == errors_pb2.ERROR_REASON_HUB_UNREACHABLE
        assert other.status.error.message.startswith("org/dogs: ")
    assert bool(hub.requests) == (how == "away")


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_the_token_opens_private_datasets_and_is_told_to_nobody(
    hub: HubServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Neither it nor the signed addresses stand in logs, events, messages or the database."""
    dataset = hub.dataset(CATS)
    dataset.token = TOKEN
    dataset.commit(image_folder())
    async with serving(tmp_path, hub.url) as server:
        end = await imported(server.stubs, asking())
        assert end.status.error.reason == errors_pb2.ERROR_REASON_HUB_NOT_FOUND
        assert "no token" in end.status.error.message
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    messages: list[str] = []
    async with serving(tmp_path, hub.url) as server:
        hub.fault("/cdn/", *[lambda handler: handler.give(500)] * 3)
        end = await imported(server.stubs, asking())
        assert end.status.state == job_pb2.JOB_STATE_SUCCEEDED, end.status.error
        messages += map(str, await watched(server, end.name, replay=True))
        # Each end that has something to say of a request.
        for part, answer in (
            ("/cdn/", lambda handler: handler.give(200, b"x" * 10_000)),
            ("/cdn/", lambda handler: handler.give(404)),
            ("/revision/", lambda handler: handler.give(302, headers={"Location": "https://a.b/"})),
        ):
            hub.faults.clear()
            hub.fault(part, *[answer] * 10)
            failed = await imported(server.stubs, asking("dogs"))
            assert failed.status.state == job_pb2.JOB_STATE_FAILED
            messages += map(str, await watched(server, failed.name, replay=True))
        # A file of a token that was written wrong after the start.
        monkeypatch.setenv("HF_TOKEN", TOKEN + "\x01")
        failed = await imported(server.stubs, asking("dogs"))
        assert failed.status.error.reason == errors_pb2.ERROR_REASON_HUB_GATED
        messages.append(str(failed))
    written = [path.read_bytes() for path in files_below(tmp_path / "data")]
    written += [message.encode() for message in messages]
    written += [text.encode() for text in capfd.readouterr()]
    assert len(written) > 10
    for canary in (TOKEN, SIGNATURE):
        assert not [text for text in written if canary.encode() in text]
    sent = {headers["Authorization"] for _, headers in hub.requests if "Authorization" in headers}
    assert sent == {f"Bearer {TOKEN}"}


async def test_a_cancelled_import_leaves_nothing(hub: HubServer, tmp_path: Path) -> None:
    hub.dataset(CATS).commit(image_folder())
    asked, go_on = threading.Event(), threading.Event()

    def hold(handler: Any) -> None:
        asked.set()
        go_on.wait(30)

    hub.fault("/data/b.png", hold)
    async with serving(tmp_path, hub.url) as server:
        created = await server.stubs.datasets.CreateImport(asking())
        name = created.import_job.name
        assert await asyncio.to_thread(asked.wait, 30)
        await server.stubs.datasets.CancelImport(imports_pb2.CancelImportRequest(name=name))
        go_on.set()
        end = await finished(server.stubs, name)
        assert end.status.state == job_pb2.JOB_STATE_CANCELLED
        assert list((tmp_path / "data" / "staging").iterdir()) == []


async def test_what_ended_imports_left_is_removed_with_the_start(
    hub: HubServer, tmp_path: Path
) -> None:
    left = tmp_path / "data" / "staging" / "import-0123456789abcdef" / "git-0"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"bytes")
    async with serving(tmp_path, hub.url):
        assert not left.parent.exists()


async def test_a_renamed_dataset(hub_client: Running, hub: HubServer) -> None:
    hub.dataset("org/felines").commit(image_folder())
    hub.renamed[CATS] = "org/felines"
    end = await imported(hub_client.stubs, asking())
    assert end.status.state == job_pb2.JOB_STATE_SUCCEEDED, end.status.error
    assert end.hub.id == CATS


async def test_a_name_that_leads_out_of_the_repository(hub_client: Running, hub: HubServer) -> None:
    files = {**in_data(image_folder()), "../../../data/evil.png": picture(3)}
    hub.dataset(CATS).commit(files)
    end = await imported(hub_client.stubs, asking())
    assert end.status.error.reason == errors_pb2.ERROR_REASON_FILES_REFUSED
    assert not hub.paths("evil")
    skipping = asking(refused_files=imports_pb2.REFUSED_FILE_POLICY_SKIP)
    end = await imported(hub_client.stubs, skipping)
    assert end.version.num_samples == 3
    assert "NAME_UNSAFE" in notes(end)
