"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from command_line import CommandLine, Services, all_services


@pytest_asyncio.fixture
async def services() -> AsyncIterator[Services]:
    async with all_services() as services:
        yield services


@pytest.fixture
def sfumato(services: Services, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(services.address, capsys)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "cats"
    path.mkdir()
    (path / "a.png").write_bytes(b"first")
    (path / "a.txt").write_text("a cat")
    (path / ".hidden").write_bytes(b"no")
    (path / "inner").mkdir()
    return path
