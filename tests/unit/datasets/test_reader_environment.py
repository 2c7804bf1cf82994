import subprocess
import sys

import pytest

from sfumato_datasets.reader_environment import reader_environment


def test_no_secret_reaches_what_reads_files_of_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "SFUMATO_API_KEY", "DATABASE_PASSWORD")
    for name in secrets:
        monkeypatch.setenv(name, "canary")
    environment = reader_environment(MALLOC_ARENA_MAX="1")
    assert "canary" not in environment.values()
    assert environment["MALLOC_ARENA_MAX"] == "1"
    assert environment["OMP_NUM_THREADS"] == "1"


def test_it_is_enough_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sfumato_datasets.verifier_process; print('there')"
    found = subprocess.run(
        [sys.executable, "-c", program],
        env=reader_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "there\n"
