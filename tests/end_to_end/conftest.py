"""Tiny models built once, and deployments that hold the emoji dataset."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from deployment import ServeProcess, client_of, import_emoji
from sfumato_client import Client

FAMILIES = ("z-image", "flux.1")


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model of each family, `tiny-<family>`."""
    folder = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        subprocess.run(
            [
                *(sys.executable, "-m", "sfumato_client.cli.main"),
                *("tiny", family, str(folder / f"tiny-{family}")),
            ],
            check=True,
        )
    return folder


@pytest.fixture
def data_dir(tmp_path: Path, tiny_models: Path) -> Path:
    """A fresh data folder with the tiny models in it."""
    folder = tmp_path / "data"
    shutil.copytree(tiny_models, folder / "models", copy_function=shutil.copy2)
    return folder


@pytest.fixture
def serve(data_dir: Path) -> Iterator[ServeProcess]:
    """The datasets and trainer services in one process."""
    process = ServeProcess(data_dir, only=("datasets", "trainer"))
    process.start()
    yield process
    process.stop()


@pytest_asyncio.fixture
async def client(serve: ServeProcess) -> AsyncIterator[Client]:
    """A client of `serve`, where the emoji are a dataset already."""
    async with client_of(serve.address) as client:
        await import_emoji(client)
        yield client


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests may take long on a busy machine."""
    for item in items:
        if item.get_closest_marker("slow") is not None:
            item.add_marker(pytest.mark.timeout(1200))
