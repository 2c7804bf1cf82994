"""Servers that several tests of the datasets service use."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from datasets_server import Running, running
from hub_imports import keep_hub_alone, serving
from hub_server import HubServer, hub_server
from pictures import write_pictures
from sfumato_chassis.failpoints import Failpoints, parse


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_pictures(tmp_path / "root" / "cats", 3)
    return tmp_path / "root"


@pytest.fixture
async def server(tmp_path: Path, root: Path) -> AsyncIterator[Running]:
    overrides = {"datasets.import_roots": (root,)}
    async with running(tmp_path / "data", overrides=overrides) as started:
        yield started


@pytest.fixture
async def held(tmp_path: Path, root: Path) -> AsyncIterator[tuple[Running, Path]]:
    """A server whose imports wait before they publish, until the file is there."""
    gate = tmp_path / "gate"
    failpoint = Failpoints(parse(f"import.before_publish=hold:{gate}"))
    overrides = {"datasets.import_roots": (root,), "datasets.max_concurrent_imports": 1}
    async with running(tmp_path / "data", failpoint=failpoint, overrides=overrides) as started:
        try:
            yield started, gate
        finally:
            gate.touch()


@pytest.fixture
def hub_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cache and no token of this machine, and short pauses."""
    keep_hub_alone(monkeypatch, tmp_path / "hf")
    monkeypatch.setattr("sfumato_datasets.hub_listing.FIRST_PAUSE_SECONDS", 0.001)


@pytest.fixture
def hub(hub_alone: None) -> Iterator[HubServer]:
    with hub_server(page_size=2) as server:
        yield server


@pytest.fixture
async def hub_client(tmp_path: Path, hub: HubServer) -> AsyncIterator[Running]:
    async with serving(tmp_path, hub.url) as started:
        yield started
