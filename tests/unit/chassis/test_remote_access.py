import io
from collections.abc import Iterator

import pytest
import structlog

from sfumato_chassis import remote_access
from sfumato_chassis.config import ConfigError, ServerConfig
from sfumato_chassis.logging import configure_logging, get_logger
from sfumato_chassis.remote_access import (
    check_remote_access,
    is_loopback,
    keys_required,
    reflection_offered,
)

REMOTE = "0.0.0.0"
TLS = {"tls_certificate": "c", "tls_key": "k"}
NO_TLS = "TLS (server.tls_certificate and server.tls_key)"
NO_KEY = "an API key (`sfumato keys create "


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    stream = io.StringIO()
    configure_logging(level="warning", json_lines=False, stream=stream)
    # A logger keeps the stream of its first line.
    monkeypatch.setattr(remote_access, "log", get_logger("remote_access"))
    yield stream
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("::1", True),
        ("[::1]", True),
        (REMOTE, False),
        ("::", False),
        ("", False),
        ("192.0.2.1", False),
        ("example.org", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize("host", [REMOTE, "::", "example.org"])
@pytest.mark.parametrize(
    ("tls", "has_key", "missing", "there"),
    [
        ({}, False, [NO_TLS, NO_KEY], []),
        ({}, True, [NO_TLS], [NO_KEY]),
        (TLS, False, [NO_KEY], [NO_TLS]),
    ],
)
def test_beyond_loopback_what_is_missing_is_named(
    host: str, tls: dict[str, str], has_key: bool, missing: list[str], there: list[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        check_remote_access(ServerConfig(host=host, **tls), has_key=has_key)
    told = str(refused.value)
    assert all(each in told for each in missing)
    assert not any(each in told for each in there)
    assert "--insecure-remote" in told


def test_with_both_it_serves(logged: io.StringIO) -> None:
    server = ServerConfig(host=REMOTE, **TLS)
    check_remote_access(server, has_key=True)
    assert keys_required(server)
    assert logged.getvalue() == ""


def test_the_flag_goes_without_and_says_so(logged: io.StringIO) -> None:
    server = ServerConfig(host=REMOTE, insecure_remote=True)
    check_remote_access(server, has_key=False)
    assert not keys_required(server)
    assert "without TLS" in logged.getvalue()
    assert "without keys" in logged.getvalue()


def test_the_flag_may_go_without_tls_alone(logged: io.StringIO) -> None:
    server = ServerConfig(host=REMOTE, insecure_remote=True, require_keys=True)
    check_remote_access(server, has_key=True)
    assert keys_required(server)
    assert "without TLS" in logged.getvalue()
    assert "without keys" not in logged.getvalue()


def test_keys_that_are_required_and_not_there_are_told_of(logged: io.StringIO) -> None:
    check_remote_access(ServerConfig(require_keys=True), has_key=False)
    assert "sfumato keys create" in logged.getvalue()


def test_on_loopback_nothing_is_asked_for(logged: io.StringIO) -> None:
    check_remote_access(ServerConfig(), has_key=False)
    assert not keys_required(ServerConfig())
    assert keys_required(ServerConfig(tls_client_ca="ca", **TLS))
    assert logged.getvalue() == ""


def test_reflection_is_for_loopback_unless_asked_for() -> None:
    assert reflection_offered(ServerConfig())
    assert not reflection_offered(ServerConfig(reflection=False))
    assert not reflection_offered(ServerConfig(host=REMOTE))
    assert reflection_offered(ServerConfig(host=REMOTE, remote_reflection=True))
