"""Imports of a small Hub over HTTP, by a real server."""

import asyncio
import io
import re
import threading
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datasets_server import Running, finished, watched
from hub_imports import CATS, asking, image_folder, imported, metadata, samples, serving
from hub_server import HubServer
from pictures import picture
from sfumato.datasets.v1 import datasets_pb2, export_pb2, imports_pb2, versions_pb2
from sfumato.job.v1 import errors_pb2, job_pb2
from sfumato_datasets import engine


async def test_a_folder_of_images_with_its_captions(
    hub_client: Running, hub: HubServer, tmp_path: Path
) -> None:
    files = image_folder()
    sha = hub.dataset(CATS).commit(files)
    end = await imported(hub_client.stubs, asking())
    assert end.status.state == job_pb2.JOB_STATE_SUCCEEDED, end.status.error
    assert await samples(hub_client.stubs) == {
        "a.png": "picture 0",
        "b.png": "picture 1",
        "c.jpg": "beside",
    }
    assert end.hub.revision == sha
    fetched = sum(len(content) for path, content in files.items() if path.startswith("data/"))
    assert end.progress.num_bytes_to_fetch == end.progress.num_bytes_fetched == fetched
    assert end.progress.num_files_done == 3
    assert list((tmp_path / "data" / "staging").iterdir()) == []
    assert len(hub.paths("/tree/")) == 4, "every page of the list was read"
    events = await watched(hub_client, end.name, replay=True)
    kinds = [message.event.WhichOneof("event") for message in events]
    assert kinds.index("revision_pinned") < kinds.index("progress")


async def test_a_branch_that_moves_meanwhile(hub_client: Running, hub: HubServer) -> None:
    sha = hub.dataset(CATS).commit(image_folder())
    moved: list[str] = []
    hub.fault("/resolve/", lambda handler: moved.append(hub.dataset(CATS).commit(image_folder(10))))
    end = await imported(hub_client.stubs, asking(revision="main"))
    assert end.hub.revision == sha != moved[0]
    assert (await samples(hub_client.stubs))["a.png"] == "picture 0"
    again = await imported(hub_client.stubs, asking("dogs"))
    assert again.hub.revision == moved[0]
    assert (await samples(hub_client.stubs, "dogs"))["a.png"] == "picture 10"


async def test_a_stopped_import_goes_on_at_its_commit_with_what_it_has(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "REPORT_SECONDS", 3600.0)  # what it says when it stops must do
    sha = hub.dataset(CATS).commit({**image_folder(), "data/clip.mp4": b"a clip"})
    asked, go_on = threading.Event(), threading.Event()

    def fetched() -> list[str]:
        there = (tmp_path / "data" / "staging").glob("*/*")
        return [path.name for path in there if path.suffix != ".part"]

    def hold(handler: Any) -> None:
        while len(fetched()) < 4:
            go_on.wait(0.01)
        asked.set()
        go_on.wait(30)
        handler.give(500)

    async with serving(tmp_path, hub.url) as first:
        hub.fault("/data/b.png", hold)
        created = await first.stubs.datasets.CreateImport(asking())
        name = created.import_job.name
        assert await asyncio.to_thread(asked.wait, 30)
        _, report = first.service._engine._running[name]
        stopping = asyncio.create_task(first.server.stop())
        assert await asyncio.to_thread(report.cancelled.wait, 30)
        go_on.set()
        await stopping
    staging = tmp_path / "data" / "staging" / name
    assert len(fetched()) == 4
    hub.dataset(CATS).commit(image_folder(10))
    num_asked = len(hub.paths("/resolve/"))
    async with serving(tmp_path, hub.url) as second:
        end = await finished(second.stubs, name)
        assert end.status.state == job_pb2.JOB_STATE_SUCCEEDED, end.status.error
        assert (end.hub.revision, end.status.attempt) == (sha, 2)
        assert [note.reason for note in end.notes] == ["FILES_LEFT_OUT", "SUFFIX_WRONG"]
        assert (await samples(second.stubs))["b.png"] == "picture 1"
    assert len(hub.paths("/resolve/")) - num_asked == 1
    assert not staging.exists()


async def test_parquet(hub_client: Running, hub: HubServer) -> None:
    def shard(first: int, count: int, **more: list[Any]) -> bytes:
        images = [{"bytes": picture(first + row), "path": None} for row in range(count)]
        captions = [f"row {first + row}" for row in range(count)]
        written = io.BytesIO()
        pq.write_table(pa.table({"image": images, "text": captions, **more}), written)
        return written.getvalue()

    hub.dataset(CATS).commit(
        {
            "README.md": b"# Cats",
            "data/train-00000-of-00002.parquet": shard(0, 3),
            "data/train-00001-of-00002.parquet": shard(3, 2),
            "data/test-00000-of-00001.parquet": shard(5, 1),
        }
    )
    end = await imported(hub_client.stubs, asking())
    assert end.status.state == job_pb2.JOB_STATE_SUCCEEDED, end.status.error
    expected = {f"train-{row:06d}.png": f"row {row}" for row in range(5)}
    assert await samples(hub_client.stubs) == expected
    few = await imported(hub_client.stubs, asking("few", max_samples=2, split="train"))
    assert await samples(hub_client.stubs, "few") == dict(list(expected.items())[:2])
    # The second file holds none of them.
    assert few.progress.num_bytes_fetched < end.progress.num_bytes_fetched
    await imported(hub_client.stubs, asking("test", split="test"))
    assert await samples(hub_client.stubs, "test") == {"test-000000.png": "row 5"}


async def test_parquet_with_names_and_columns_of_its_own(
    hub_client: Running, hub: HubServer
) -> None:
    written = io.BytesIO()
    images = [{"bytes": picture(row), "path": f"pets/{row}.png"} for row in range(2)]
    masks = [{"bytes": picture(9), "path": "m.png"}] * 2
    table = {"photo": images, "mask": masks, "words": [["one", "two"], []], "tags": [["x"], None]}
    pq.write_table(pa.table(table), written)
    hub.dataset(CATS).commit({"all.parquet": written.getvalue()})
    end = await imported(hub_client.stubs, asking())
    assert end.status.error.reason == errors_pb2.ERROR_REASON_HUB_UNSUPPORTED
    assert "photo" in end.status.error.message
    assert "mask" in end.status.error.message
    end = await imported(
        hub_client.stubs, asking(image_column="photo", caption_column="words", all_captions=True)
    )
    assert end.status.state == job_pb2.JOB_STATE_SUCCEEDED, end.status.error
    answer = await hub_client.stubs.datasets.ListSamples(
        datasets_pb2.ListSamplesRequest(version=versions_pb2.VersionRef(dataset="cats"))
    )
    first, second = answer.samples
    assert (first.file_name, first.caption, list(first.tags)) == ("0.png", "one", ["x"])
    assert list(first.caption_variants) == ["two"]
    assert (second.file_name, second.caption, list(second.tags)) == ("1.png", "", [])


async def test_rows_without_an_image_are_refused_by_name(
    hub_client: Running, hub: HubServer
) -> None:
    written = io.BytesIO()
    images = [{"bytes": picture(0), "path": None}, None, {"bytes": b"no image", "path": None}]
    pq.write_table(pa.table({"image": images}), written)
    hub.dataset(CATS).commit({"train.parquet": written.getvalue()})
    end = await imported(
        hub_client.stubs, asking(refused_files=imports_pb2.REFUSED_FILE_POLICY_SKIP)
    )
    assert end.status.state == job_pb2.JOB_STATE_SUCCEEDED, end.status.error
    refused = {note.file_name: note.reason for note in end.notes if note.refused}
    assert refused == {
        "train-000001.png": "FILE_UNREADABLE",
        "train-000002.png": "NOT_AN_IMAGE",
    }


async def test_captions_of_several_folders(hub_client: Running, hub: HubServer) -> None:
    hub.dataset(CATS).commit(
        {
            f"{split}/{name}": content
            for index, split in enumerate(("test", "train"))
            for name, content in {
                "a.png": picture(index),
                "metadata.jsonl": metadata({"file_name": "a.png", "text": f"of {split}"}),
            }.items()
        }
    )
    await imported(hub_client.stubs, asking())
    assert await samples(hub_client.stubs) == {"test__a.png": "of test", "train__a.png": "of train"}
    await imported(hub_client.stubs, asking("one", folder="train"))
    assert await samples(hub_client.stubs, "one") == {"a.png": "of train"}


@pytest.mark.parametrize("name", ["tuxemon", "tarot", "nouns", "dog", "butterflies"])
async def test_examples_by_name(hub_client: Running, hub: HubServer, name: str) -> None:
    listed = await hub_client.stubs.datasets.ListExamples(export_pb2.ListExamplesRequest())
    example = next(each for each in listed.examples if each.name == name)
    count = example.max_samples + 3
    column = {"tuxemon": "prompt", "tarot": "caption", "nouns": "text"}.get(name)
    files = {f"{index:03d}.png": picture(index) for index in range(count)}
    if column is not None:
        rows = [{"file_name": path, column: f"caption of {path}"} for path in files]
        # As in Tuxemon: a picture with two rows, and a row without a picture.
        more = [{"file_name": "000.png", column: "second"}, {"file_name": "x.png", column: "x"}]
        files["metadata.jsonl"] = metadata(*rows, *more)
    hub.dataset(example.hub_id).commit(files)
    request = imports_pb2.CreateImportRequest(
        request_id=str(uuid.uuid4()),
        dataset=name,
        example=imports_pb2.ExampleSource(name=name),
    )
    end = await imported(hub_client.stubs, request)
    assert end.status.state == job_pb2.JOB_STATE_SUCCEEDED, end.status.error
    assert end.version.num_samples == example.max_samples
    assert end.version.num_captioned == (0 if column is None else example.max_samples)
    assert end.example.name == name
    found = await samples(hub_client.stubs, name)
    assert found["000.png"] == ("" if column is None else "caption of 000.png")
    if column is not None:
        assert ("000.png", "FIRST_CAPTION_USED") in {(n.file_name, n.reason) for n in end.notes}


def led_to(location: str) -> Any:
    return lambda handler: handler.give(302, headers={"Location": location})


@pytest.mark.parametrize(
    ("asked", "faults", "reason", "message"),
    [
        ({"id": "org/dogs"}, {}, "HUB_NOT_FOUND", "no dataset .* or it is private"),
        ({"revision": "dev"}, {}, "HUB_NOT_FOUND", "no dataset with a revision dev"),
        ({"folder": "none"}, {}, "HUB_NOT_FOUND", "no folder 'none'"),
        ({}, {"/resolve/": "gated"}, "HUB_GATED", "its licence must be accepted"),
        ({}, {"/revision/": "busy"}, "HUB_UNREACHABLE", "too much to do"),
        ({}, {"/tree/": "broken"}, "HUB_UNREACHABLE", "status 500"),
        ({"folder": "words"}, {}, "HUB_UNSUPPORTED", "neither images nor Parquet"),
        ({"folder": "large"}, {}, "HUB_TOO_LARGE", "at most 1000000"),
        ({}, {"/resolve/": "led"}, "HUB_REFUSED", "example.com, which is not allowed"),
        ({}, {"/revision/": "led"}, "HUB_REFUSED", "example.com, which is not allowed"),
        ({}, {"/revision/": "no JSON"}, "HUB_DAMAGED", "not JSON"),
        ({}, {"/revision/": "no commit"}, "HUB_DAMAGED", "names no commit"),
        ({}, {"/tree/": "no list"}, "HUB_DAMAGED", "list of files is malformed"),
        ({}, {"/tree/": "odd list"}, "HUB_DAMAGED", "list of files is malformed"),
        ({}, {"/cdn/": "other bytes"}, "HUB_DAMAGED", "not those that the Hub announced"),
        ({"folder": "parquet"}, {}, "HUB_DAMAGED", "parquet/train.parquet: "),
    ],
)
async def test_what_the_hub_does_not_give(
    hub: HubServer,
    tmp_path: Path,
    asked: dict[str, Any],
    faults: dict[str, str],
    reason: str,
    message: str,
) -> None:
    hub.dataset(CATS).commit(
        {
            **image_folder(),
            "words/a.csv": b"a,b",
            "large/a.png": bytes(1_000_001),
            "parquet/train.parquet": b"PAR1 and no more",
        }
    )
    answers: dict[str, Any] = {
        "gated": lambda handler: handler.give(403, headers={"X-Error-Code": "GatedRepo"}),
        "busy": lambda handler: handler.give(429, headers={"Retry-After": "0"}),
        "broken": lambda handler: handler.give(500),
        "led": led_to("https://example.com/secret"),
        "no JSON": lambda handler: handler.give(200, b"<html>"),
        "no commit": lambda handler: handler.give_json({"sha": "main"}),
        "no list": lambda handler: handler.give_json({"error": "none"}),
        "odd list": lambda handler: handler.give_json([{"type": "file", "path": 3, "size": -1}]),
        "other bytes": lambda handler: handler.give(200, bytes(len(picture(0)))),
    }
    for part, answer in faults.items():
        hub.fault(part, *[answers[answer]] * 20)
    folder = {} if asked or faults.get("/tree/") else {"folder": "data"}
    async with serving(tmp_path, hub.url, hub_max_bytes=1_000_000) as server:
        end = await imported(server.stubs, asking(**folder, **asked))
        assert end.status.state == job_pb2.JOB_STATE_FAILED
        assert errors_pb2.ErrorReason.Name(end.status.error.reason) == f"ERROR_REASON_{reason}"
        assert re.search(message, end.status.error.message), end.status.error.message
        assert end.status.error.message.startswith(asked.get("id", CATS))
        listed = await server.stubs.datasets.ListDatasets(datasets_pb2.ListDatasetsRequest())
        assert not listed.datasets
    assert not any(tmp_path.glob("data/staging/*"))
