import json
import re
from pathlib import Path

import pytest

from sfumato_chassis import exit_codes
from sfumato_chassis.keys_command import main

KEY = re.compile(r"sfm_([0-9a-f]{16})_[A-Za-z0-9_-]{43}\n")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def create(*words: str) -> int:
    return main(["create", "--data-dir", "data", "--principal", "anna", "--scope", "read", *words])


def test_the_key_alone_is_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert create("--scope", "datasets") == 0
    captured = capsys.readouterr()
    match = KEY.fullmatch(captured.out)
    assert match is not None
    assert f"id: {match[1]}\nprincipal: anna\nscopes: datasets,read\n" in captured.err
    assert captured.out.strip() not in captured.err


def test_a_list_tells_of_each_key_and_shows_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert create() == 0
    assert create("--expires-in-days", "30") == 0
    keys = capsys.readouterr().out.splitlines()
    assert main(["list", "--data-dir", "data"]) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == 3
    assert shown.split()[:4] == ["id", "principal", "scopes", "state"]
    assert not any(key.split("_", 2)[2] in shown for key in keys)
    assert main(["list", "--data-dir", "data", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["id"] for row in rows] == [key.split("_")[1] for key in keys]
    assert [bool(row["expires"]) for row in rows] == [False, True]
    assert {row["state"] for row in rows} == {"valid"}


def test_a_revoked_key_is_listed_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    assert create() == 0
    key_id = capsys.readouterr().out.split("_")[1]
    assert main(["revoke", "--data-dir", "data", key_id]) == 0
    assert "state: revoked" in capsys.readouterr().err
    assert main(["list", "--data-dir", "data", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "revoked"


def test_a_key_that_is_not_there_cannot_be_revoked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["revoke", "--data-dir", "data", "00ff"]) == exit_codes.NOT_FOUND
    assert capsys.readouterr().err == "sfumato keys: no api key named '00ff'\n"


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["create", "--scope", "read"],
        ["create", "--principal", "anna"],
        ["create", "--principal", "a b", "--scope", "read"],
        ["create", "--principal", "anna", "--scope", "all"],
        ["create", "--principal", "anna", "--scope", "read", "--expires-in-days", "0"],
        ["create", "--principal", "anna", "--scope", "read", "--expires-in-days", "nan"],
        ["create", "--principal", "anna", "--scope", "read", "--expires-in-days", "1e9"],
    ],
)
def test_wrong_usage_is_2(words: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "data").write_bytes(b"")
    assert create() == exit_codes.MISCONFIGURED
    assert capsys.readouterr().err == "sfumato keys: storage.data_dir data: File exists\n"


def test_a_database_that_is_none_is_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "sfumato.sqlite3").write_bytes(b"no database" * 1000)
    assert create() == exit_codes.STORAGE
    assert capsys.readouterr().err == "sfumato keys: the database: file is not a database\n"
