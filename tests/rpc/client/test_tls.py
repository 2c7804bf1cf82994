"""The command line against a real server with TLS and keys."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from certificates import Authority
from datasets_server import running
from pictures import write_pictures
from sfumato_chassis.api_keys import ApiKeyStore
from sfumato_chassis.principals import Scope
from sfumato_client.cli.exit_codes import ExitCode
from sfumato_client.cli.main import main


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """A server, and the files with which it answers."""

    address: str
    ca_file: Path
    key_file: Path


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    authority = Authority(tmp_path)
    overrides = {"server.require_keys": True, **authority.issue().server}
    async with running(tmp_path / "data", overrides=overrides) as server:
        store = ApiKeyStore(server.platform.database, clock=server.platform.clock)
        _, key = await store.create("anna", [Scope.READ, Scope.DATASETS])
        (tmp_path / "key").write_text(f"{key}\n")
        yield Guarded(address=server.address, ca_file=authority.file, key_file=tmp_path / "key")


async def test_a_folder_is_imported_with_options(
    guarded: Guarded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pictures(tmp_path / "cats", 2)
    options = ["--address", guarded.address, "--tls-ca", str(guarded.ca_file)]
    options += ["--api-key-file", str(guarded.key_file), "--json"]
    words = ["datasets", "import", str(tmp_path / "cats"), "cats"]
    assert await asyncio.to_thread(main, [*options, *words]) == ExitCode.OK
    capsys.readouterr()
    assert await asyncio.to_thread(main, [*options, "datasets", "list"]) == ExitCode.OK
    # The server of this process logs beside it.
    (listed,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert json.loads(listed)["name"] == "cats"


async def test_variables_do_the_same_and_the_traced_line_can_be_run(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SFUMATO_ADDRESS", guarded.address)
    monkeypatch.setenv("SFUMATO_TLS_CA", str(guarded.ca_file))
    monkeypatch.setenv("SFUMATO_API_KEY_FILE", str(guarded.key_file))
    assert await asyncio.to_thread(main, ["--trace", "datasets", "list"]) == ExitCode.OK
    (line,) = capsys.readouterr().err.splitlines()
    key = guarded.key_file.read_text().strip()
    assert shlex.split(line)[:3] == ["grpcurl", "-cacert", str(guarded.ca_file)]
    assert key not in line
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = await asyncio.to_thread(
        subprocess.run,
        ["sh", "-c", line],
        capture_output=True,
        text=True,
        env={"PATH": path, "SFUMATO_API_KEY": key},
    )
    assert ran.returncode == 0, ran.stderr


async def test_without_a_key_the_refusal_is_named(
    guarded: Guarded, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--address", guarded.address, "--tls-ca", str(guarded.ca_file)]
    assert await asyncio.to_thread(main, [*options, "datasets", "list"]) == ExitCode.REFUSED
    assert capsys.readouterr().err.startswith("UNAUTHENTICATED: ")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--address", "192.0.2.1:7433"], "unencrypted"),
        (["--tls-key", "k"], "go together"),
        (["--api-key-file", "absent"], "absent: No such file"),
        (["--tls-ca", "absent"], "absent: No such file"),
    ],
)
def test_what_cannot_be_used_is_wrong_usage(
    options: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("SFUMATO_API_KEY", "canary-4711")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    assert main([*options, "datasets", "list"]) == ExitCode.INVALID
    captured = capsys.readouterr()
    assert told in captured.err
    assert "4711" not in captured.err + captured.out
