"""Servers that several tests of the datasets service use."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from datasets_server import Running, running
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
