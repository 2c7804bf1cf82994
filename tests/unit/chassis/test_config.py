import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sfumato_chassis.config import (
    CHASSIS_SECTIONS,
    Config,
    ConfigError,
    LogConfig,
    ServerConfig,
    StorageConfig,
    load_config,
)
from sfumato_datasets.config import DatasetsConfig

SECTIONS = {**CHASSIS_SECTIONS, "datasets": DatasetsConfig}


def load(
    text: str | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    tmp_path: Path,
) -> Config:
    file = None
    if text is not None:
        file = tmp_path / "sfumato.toml"
        file.write_text(text)
    return load_config(
        SECTIONS, file=file, environment=environment or {}, overrides=overrides or {}
    )


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_defaults_are_the_dataclasses_own(tmp_path: Path) -> None:
    config = load(tmp_path=tmp_path)
    assert config.section(ServerConfig) == ServerConfig()
    assert {setting.origin for setting in config.settings} == {"default"}


def test_the_command_line_wins_over_environment_over_file(tmp_path: Path) -> None:
    text = "[server]\nport = 1\nhost = 'localhost'\nreflection = false\n"
    environment = {"SFUMATO_SERVER_PORT": "2", "SFUMATO_SERVER_HOST": "::1"}
    config = load(text, environment, {"server.port": 3}, tmp_path=tmp_path)
    assert config.section(ServerConfig) == ServerConfig(port=3, host="::1", reflection=False)
    origins = {f"{each.section}.{each.field}": each.origin for each in config.settings}
    assert origins["server.port"] == "command line"
    assert origins["server.host"] == "environment SFUMATO_SERVER_HOST"
    assert origins["server.reflection"] == str(tmp_path / "sfumato.toml")
    assert origins["server.heartbeat_seconds"] == "default"


def test_settings_lists_every_field_once(tmp_path: Path) -> None:
    expected = [
        (name, field.name) for name, kind in SECTIONS.items() for field in dataclasses.fields(kind)
    ]
    settings = load(tmp_path=tmp_path).settings
    assert [(setting.section, setting.field) for setting in settings] == expected


def test_a_file_in_the_working_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "sfumato.toml").write_text("[log]\njson = true\n")
    assert load_config(SECTIONS, file=None, environment={}).section(LogConfig).json


def test_every_kind_of_value_is_read_from_text(tmp_path: Path) -> None:
    environment = {
        "SFUMATO_SERVER_HEARTBEAT_SECONDS": "2.5",
        "SFUMATO_LOG_JSON": "TRUE",
        "SFUMATO_STORAGE_DATA_DIR": "/somewhere",
        "SFUMATO_DATASETS_IMPORT_ROOTS": "/a,/b",
    }
    config = load(environment=environment, tmp_path=tmp_path)
    assert config.section(ServerConfig).heartbeat_seconds == 2.5
    assert config.section(LogConfig).json
    assert config.section(StorageConfig).data_dir == Path("/somewhere")
    assert config.section(DatasetsConfig).import_roots == (Path("/a"), Path("/b"))


def test_every_kind_of_value_is_read_from_a_file(tmp_path: Path) -> None:
    text = "[server]\nheartbeat_seconds = 2\n[datasets]\nimport_roots = ['/a', '/b']\n"
    config = load(text, tmp_path=tmp_path)
    assert config.section(ServerConfig).heartbeat_seconds == 2.0
    assert config.section(DatasetsConfig).import_roots == (Path("/a"), Path("/b"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[serve]\nport = 1\n", "unknown section"),
        ("server = 1\n", "must be a section"),
        ("[server]\nprot = 1\n", "unknown setting server.prot"),
        ("[server]\nport = '7433x'\n", "server.port"),
        ("[server]\nport = 7433.5\n", "server.port"),
        ("[server]\nport = true\n", "server.port"),
        ("[server]\nheartbeat_seconds = nan\n", "server.heartbeat_seconds"),
        ("[server]\nheartbeat_seconds = inf\n", "server.heartbeat_seconds"),
        ("[server]\nheartbeat_seconds = '1e999'\n", "server.heartbeat_seconds"),
        ("[server]\nreflection = 'yes'\n", "server.reflection"),
        ("[server]\nhost = 1\n", "server.host"),
        ("[server]\nport = -1\n", "server.port .*at least 0"),
        ("[server]\nport = 65536\n", "server.port .*at most 65535"),
        (
            "[log]\nlevel = 'loud'\n",
            "log.level .*must be debug, info, warning or error, not 'loud'",
        ),
        ("[workers]\nlease_seconds = 0\n", "workers.lease_seconds .*at least 0.1"),
        ("[datasets]\nimport_retention_hours = 1e9\n", "import_retention_hours .*at most 876000"),
        ("[datasets]\nimport_roots = 1\n", "datasets.import_roots"),
        ("[datasets]\nimport_roots = [1]\n", "datasets.import_roots"),
        ("[server\n", "sfumato.toml"),
    ],
)
def test_what_cannot_be_used_is_named(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=told):
        load(text, tmp_path=tmp_path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        load_config(SECTIONS, file=tmp_path / "absent.toml", environment={})


@pytest.mark.parametrize("variable", ["SFUMATO_SERVER_PROT", "SFUMATO_DATASETS_ROOTS"])
def test_an_unknown_variable_is_an_error(variable: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=variable):
        load(environment={variable: "1"}, tmp_path=tmp_path)


def test_variables_of_others_are_left_alone(tmp_path: Path) -> None:
    environment = {"SFUMATO_FAILPOINTS": "", "SERVER_PORT": "1", "SFUMATO_DATASETS_ADDRESS": "a:1"}
    assert load(environment=environment, tmp_path=tmp_path).section(ServerConfig).port == 7433
