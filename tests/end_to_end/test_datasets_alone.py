"""`pip install '.[datasets]'` in an environment of its own runs the datasets service without torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deployment import EMOJI, client_of, import_emoji

ROOT = Path(__file__).parents[2]
ABSENT = ("torch", "diffusers", "transformers", "peft", "typer", "rich")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment with the datasets service alone."""
    environment = tmp_path_factory.mktemp("alone") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    interpreter = str(environment / "bin" / "python")
    subprocess.run(
        [interpreter, "-m", "pip", "install", "--quiet", f"{ROOT}[datasets]"],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return interpreter


@pytest.mark.slow
def test_nothing_else_is_installed(python: str) -> None:
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format=freeze"], check=True, capture_output=True, text=True
    )
    installed = {line.partition("==")[0].lower() for line in listed.stdout.splitlines()}
    assert "sfumato" in installed
    assert not installed & set(ABSENT)


@pytest.mark.slow
async def test_it_serves(python: str, tmp_path: Path) -> None:
    with subprocess.Popen(  # noqa: ASYNC220 - nothing else runs meanwhile
        [python, "-m", "sfumato_datasets", "--data-dir", str(tmp_path / "data"), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "SFUMATO_DATASETS_IMPORT_ROOTS": str(EMOJI.parent)},
    ) as service:
        assert service.stdout is not None
        address = service.stdout.readline().split()[-1]
        async with client_of(address) as client:
            await import_emoji(client)
            dataset = await client.datasets.get_dataset("emoji")
            assert dataset.latest_version.num_samples == 24
        service.terminate()
        assert service.wait() == 0
