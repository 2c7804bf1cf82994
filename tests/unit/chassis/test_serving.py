"""A start that cannot be: one line that says why, and a code that tells whose fault it is."""

import errno
import fcntl
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from deployment import ServeProcess
from sfumato_chassis import serve as serve_command
from sfumato_chassis.config import ConfigError, StorageError, load_config
from sfumato_chassis.exit_codes import INTERRUPTED, MISCONFIGURED, STORAGE
from sfumato_chassis.serve import all_sections
from sfumato_chassis.serving import check_packages, lock_service, start, storage_errors

SFUMATO = Path(sys.executable).with_name("sfumato")
START_SECONDS = 60


def serve(
    data_dir: Path, *, port: int | None = 0, **settings: str
) -> subprocess.CompletedProcess[str]:
    ports = [] if port is None else ["--port", str(port)]
    return subprocess.run(
        [SFUMATO, "serve", *ports, "--data-dir", data_dir],
        capture_output=True,
        text=True,
        cwd=data_dir.parent,
        env={**os.environ, **settings},
        timeout=START_SECONDS,
    )


def a_file_for_a_folder(data_dir: Path) -> None:
    (data_dir / "blobs").write_bytes(b"")


def a_folder_for_the_database(data_dir: Path) -> None:
    (data_dir / "sfumato.sqlite3").mkdir()


def a_database_that_is_none(data_dir: Path) -> None:
    (data_dir / "sfumato.sqlite3").write_bytes(b"these are not the bytes of a database" * 100)


def a_database_without_a_table(data_dir: Path) -> None:
    assert serve(data_dir, SFUMATO_SERVER_HOST="192.0.2.1").returncode == MISCONFIGURED
    with sqlite3.connect(data_dir / "sfumato.sqlite3") as connection:
        connection.execute("DROP TABLE chassis_leases")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (a_file_for_a_folder, "/data/blobs/sha256: Not a directory"),
        (a_folder_for_the_database, "the database: unable to open database file"),
        (a_database_that_is_none, "the database: file is not a database"),
        (a_database_without_a_table, "the database: no such table: chassis_leases"),
    ],
)
def test_what_cannot_be_used_is_named_in_one_line(
    tmp_path: Path, damage: Callable[[Path], None], told: str
) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    damage(data_dir)
    ended = serve(data_dir)
    assert ended.returncode == STORAGE
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("sfumato serve: ")
    assert line.endswith(told)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_metrics_port_that_is_taken_is_a_fault_of_the_configuration(
    tmp_path: Path, taken_port: int
) -> None:
    ended = serve(tmp_path / "data", SFUMATO_SERVER_METRICS_PORT=str(taken_port))
    assert ended.returncode == MISCONFIGURED
    assert ended.stderr == (
        f"sfumato serve: server.metrics_port {taken_port}: Address already in use\n"
    )


def test_a_service_whose_workers_lack_a_package_is_refused() -> None:
    check_packages("trainer", ["sqlite3", "sfumato_chassis"])
    with pytest.raises(ConfigError, match=r"the trainer service needs absent_a, absent_b: `pip"):
        check_packages("trainer", ["absent_a", "sqlite3", "absent_b"])


def test_a_package_that_is_not_installed_is_named_in_one_line(tmp_path: Path) -> None:
    program = "import sys; sys.modules['sqlalchemy'] = None\n" + (
        "from sfumato_chassis.serve import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "--data-dir", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS)
    assert ended.returncode == MISCONFIGURED
    (line,) = ended.stderr.splitlines()
    assert line.startswith("sfumato serve: sqlalchemy is not installed; `pip install ")


def test_the_log_has_what_stands_behind_a_start_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"")
    ended = serve(tmp_path / "data", SFUMATO_LOG_LEVEL="debug")
    assert ended.returncode == MISCONFIGURED
    assert "FileExistsError" in ended.stderr


def test_an_address_that_is_taken_is_told_in_one_line(tmp_path: Path, taken_port: int) -> None:
    ended = serve(tmp_path / "data", SFUMATO_SERVER_PORT=str(taken_port), port=None)
    assert ended.returncode == MISCONFIGURED
    assert ended.stderr == (
        f"sfumato serve: cannot listen on 127.0.0.1:{taken_port}: it is taken, or not of this host\n"
    )


def test_a_device_that_another_deployment_uses_is_refused(tmp_path: Path) -> None:
    environment = {
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "SFUMATO_ADDRESSES_TRAINER": "[::1]:1",
    }
    environment |= {f"SFUMATO_{name}_DEVICE": "cuda:0" for name in ("TRAINER", "GENERATOR")}
    for folder in ("data", "other"):
        (tmp_path / folder).mkdir()
    first = ServeProcess(tmp_path / "data", environment=environment)
    first.start()
    try:
        refused = serve(tmp_path / "other", **environment)
    finally:
        first.stop()
    assert refused.returncode == MISCONFIGURED
    assert refused.stderr.startswith(
        "sfumato serve: device cuda:0: the services that use it on one "
    )


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "/data/run/trainer.lock"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
    ],
)
def test_a_full_disk_is_told_as_such(error: OSError) -> None:
    with (
        pytest.raises(StorageError, match=r"^no space is left for /data$"),
        storage_errors(Path("/data")),
    ):
        raise error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files"),
        (TimeoutError(), "TimeoutError"),
        (OSError(errno.EACCES, "Permission denied", "/data/run"), "/data/run: Permission denied"),
    ],
)
def test_an_error_names_a_file_only_where_it_is_of_one(error: OSError, told: str) -> None:
    with pytest.raises(StorageError, match=f"^{told}$"), storage_errors(Path("/data")):
        raise error


async def test_a_full_disk_is_met_before_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(
        all_sections(),
        file=None,
        environment={},
        overrides={"storage.data_dir": tmp_path / "data"},
    )

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "data"))

    monkeypatch.setattr(Path, "mkdir", full)
    with (
        ExitStack() as held,
        pytest.raises(StorageError, match="no space"),
        storage_errors(tmp_path / "data"),
    ):
        await start(config, ["datasets"], held)


def test_a_service_that_runs_already_is_told_from_a_lock_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lock_service(tmp_path, "trainer"), pytest.raises(ConfigError, match="runs already"):
        lock_service(tmp_path, "trainer")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(OSError, match="No locks"):
        lock_service(tmp_path, "trainer")


def test_an_interrupt_before_it_is_ready_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(serve_command, "read_config", interrupt)
    assert serve_command.main([]) == INTERRUPTED
    assert capsys.readouterr().err == "interrupted\n"


def test_a_database_that_cannot_grow_is_told_as_a_full_disk() -> None:
    full = sqlite3.OperationalError("database or disk is full")
    full.sqlite_errorcode = sqlite3.SQLITE_FULL
    with (
        pytest.raises(StorageError, match=r"^no space is left for /data$"),
        storage_errors(Path("/data")),
    ):
        raise OperationalError("INSERT", {}, full) from full


def test_a_fault_of_the_configuration_stays_one() -> None:
    with pytest.raises(ConfigError), storage_errors(Path("/data")):
        raise ConfigError("server.host 0.0.0.0: only loopback addresses")
