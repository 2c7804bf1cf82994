"""Commands that need no server."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Sequence
from pathlib import Path

import pytest

from sfumato_client.cli.main import main

COMMANDS = [
    (),
    ("datasets",),
    ("datasets", "import"),
    ("datasets", "watch"),
    ("datasets", "list"),
    ("datasets", "show"),
    ("train",),
    ("train", "start"),
    ("train", "watch"),
    ("train", "stop"),
    ("train", "cancel"),
    ("train", "list"),
    ("train", "show"),
    ("generate",),
    ("gallery", "list"),
    ("gallery", "get"),
    ("tiny",),
    ("config", "show"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    assert main([*words, "--help"]) == 0
    assert "Usage: sfumato" in capsys.readouterr().out


@pytest.mark.parametrize("before", [(), ("--address", "127.0.0.1:1")], ids=["plain", "with option"])
@pytest.mark.parametrize(
    ("command", "name"),
    [("serve", "sfumato_chassis.serve"), ("keys", "sfumato_chassis.keys_command")],
)
def test_commands_of_the_server_get_their_words(
    monkeypatch: pytest.MonkeyPatch, before: tuple[str, ...], command: str, name: str
) -> None:
    received: list[list[str]] = []

    def server_main(arguments: Sequence[str]) -> int:
        received.append(list(arguments))
        return 7

    module = types.ModuleType(name)
    module.main = server_main  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    assert main([*before, command, "--only", "trainer", "--help"]) == 7
    assert received == [["--only", "trainer", "--help"]]


def test_config_show_prints_value_and_origin(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    file = tmp_path / "sfumato.toml"
    file.write_text("[server]\nport = 7999\n")
    assert main(["config", "show", "--config", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["server.port", "7999", str(file)] in [line.split() for line in lines]
    assert ["server.host", '"127.0.0.1"', "default"] in [line.split() for line in lines]


def test_config_show_has_values_as_the_file_and_json_have_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SFUMATO_TRAINER_MODEL_ROOTS", "/a,/b")
    assert main(["config", "show"]) == 0
    shown = capsys.readouterr().out
    assert main(["--json", "config", "show"]) == 0
    settings = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    values = {f"{each['section']}.{each['field']}": each["value"] for each in settings}
    for name, text, value in (
        ("trainer.model_roots", '["/a", "/b"]', ["/a", "/b"]),
        ("generator.model_roots", "[]", []),
        ("server.reflection", "true", True),
        ("server.drain_seconds", "25.0", 25.0),
    ):
        (line,) = (line for line in shown.splitlines() if line.startswith(f"{name} "))
        assert text in line
        assert values[name] == value


def test_unknown_setting_is_code_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "sfumato.toml"
    file.write_text("[server]\nporto = 1\n")
    assert main(["config", "show", "--config", str(file)]) == 2
    assert "porto" in capsys.readouterr().err
