"""What tests of imports from the Hub have in common."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from datasets_server import Running, Stubs, finished, running
from pictures import picture
from sfumato.datasets.v1 import datasets_pb2, imports_pb2, versions_pb2

CATS = "org/cats"


def keep_hub_alone(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Nothing that this machine has of the Hub is used: no cache, no token, no setting."""
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(home))


@asynccontextmanager
async def serving(tmp_path: Path, hub_url: str, **overrides: Any) -> AsyncIterator[Running]:
    settings = {f"datasets.{name}": value for name, value in overrides.items()}
    overriding = {"datasets.hub_endpoint": hub_url, **settings}
    async with running(tmp_path / "data", overrides=overriding) as server:
        yield server


def asking(dataset: str = "cats", **hub: Any) -> imports_pb2.CreateImportRequest:
    fields = {
        name: hub.pop(name)
        for name in ("mode", "refused_files", "caption_column", "all_captions")
        if name in hub
    }
    return imports_pb2.CreateImportRequest(
        request_id=str(uuid.uuid4()),
        dataset=dataset,
        hub=imports_pb2.HubSource(**{"id": CATS, **hub}),
        **fields,
    )


async def imported(stubs: Stubs, request: imports_pb2.CreateImportRequest) -> Any:
    created = await stubs.datasets.CreateImport(request)
    return await finished(stubs, created.import_job.name)


async def samples(stubs: Stubs, dataset: str = "cats") -> dict[str, str]:
    """Name and caption of each sample of the latest version."""
    version = versions_pb2.VersionRef(dataset=dataset)
    answer = await stubs.datasets.ListSamples(
        datasets_pb2.ListSamplesRequest(version=version, page_size=200)
    )
    return {sample.file_name: sample.caption for sample in answer.samples}


def metadata(*rows: Mapping[str, object]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def image_folder(first: int = 0) -> dict[str, bytes]:
    """Three captioned pictures, one of them by a file beside it."""
    return {
        "README.md": b"# Cats",
        ".gitattributes": b"*.png filter=lfs",
        "data/a.png": picture(first),
        "data/b.png": picture(first + 1),
        "data/c.jpg": picture(first + 2),
        "data/c.txt": b"beside",
        "data/metadata.jsonl": metadata(
            {"file_name": "a.png", "text": f"picture {first}", "prompt": "other"},
            {"file_name": "b.png", "text": f"picture {first + 1}", "prompt": "another"},
        ),
    }
