"""Addresses, identity and channel options."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfumato_client.channel import (
    DEFAULT_ADDRESS,
    Addresses,
    Connection,
    Tls,
    channel_options,
    is_loopback,
)


def test_all_services_share_one_address_by_default() -> None:
    assert Addresses.from_environment({}) == Addresses.all_at(DEFAULT_ADDRESS)
    assert Addresses.from_environment({"SFUMATO_ADDRESS": ""}) == Addresses.all_at(DEFAULT_ADDRESS)


def test_a_service_may_be_elsewhere() -> None:
    environment = {"SFUMATO_ADDRESS": "a:1", "SFUMATO_TRAINER_ADDRESS": "b:2"}
    assert Addresses.from_environment(environment) == Addresses(
        datasets="a:1", trainer="b:2", generator="a:1"
    )


def test_metadata_carries_what_is_set() -> None:
    assert Connection.from_environment({}).metadata() == ()
    assert Connection.from_environment({"SFUMATO_API_KEY": "k"}).metadata() == (
        ("authorization", "Bearer k"),
    )
    assert Connection(principal="anna").metadata() == (("x-sfumato-principal", "anna"),)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("10.0.0.1", False),
        ("studio.example", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_loopback_never_goes_through_a_web_proxy() -> None:
    no_proxy = ("grpc.enable_http_proxy", 0)
    assert no_proxy in channel_options("[::1]:7433")
    assert no_proxy not in channel_options("studio.example:7433")


def test_keepalive_is_slower_than_the_server_allows() -> None:
    options = dict(channel_options("localhost:1"))
    assert options["grpc.keepalive_time_ms"] == 20_000
    assert options["grpc.http2.ping_timeout_ms"] == 10_000


def test_a_key_comes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("  sfm_k\n")
    assert Connection.from_environment({"SFUMATO_API_KEY_FILE": str(file)}).api_key == "sfm_k"
    both = {"SFUMATO_API_KEY_FILE": str(file), "SFUMATO_API_KEY": "k"}
    with pytest.raises(ValueError, match="set one of"):
        Connection.from_environment(both)


@pytest.mark.parametrize("content", [b"", b" \n", b"\xff\xfe"])
def test_a_file_without_a_key_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(ValueError, match="holds no API key"):
        Connection.from_environment({"SFUMATO_API_KEY_FILE": str(tmp_path / "key")})
    with pytest.raises(ValueError, match="No such file"):
        Connection.from_environment({"SFUMATO_API_KEY_FILE": str(tmp_path / "absent")})


@pytest.mark.parametrize(
    ("environment", "tls"),
    [
        ({}, None),
        ({"SFUMATO_TLS": "0"}, None),
        ({"SFUMATO_TLS": "1"}, Tls()),
        ({"SFUMATO_TLS_CA": "ca"}, Tls(ca_file=Path("ca"))),
        (
            {"SFUMATO_TLS_CERTIFICATE": "c", "SFUMATO_TLS_KEY": "k"},
            Tls(certificate_file=Path("c"), key_file=Path("k")),
        ),
    ],
)
def test_tls_of_the_environment(environment: dict[str, str], tls: Tls | None) -> None:
    assert Connection.from_environment(environment).tls == tls


@pytest.mark.parametrize(
    "environment",
    [{"SFUMATO_TLS": "yes"}, {"SFUMATO_TLS_KEY": "k"}, {"SFUMATO_INSECURE": "maybe"}],
)
def test_what_says_no_clear_thing_is_refused(environment: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"1 or 0|go together"):
        Connection.from_environment(environment)


@pytest.mark.parametrize("service", ["datasets", "trainer", "generator"])
def test_a_key_never_goes_to_another_machine_unencrypted(service: str) -> None:
    addresses = Addresses(**{service: "studio.example:7433"})
    exposed = Connection(addresses=addresses, api_key="secret-k")
    with pytest.raises(ValueError, match=r"studio.example:7433 unencrypted") as refused:
        exposed.check_secrecy()
    assert "secret-k" not in str(refused.value) + repr(exposed)
    Connection(addresses=addresses).check_secrecy()
    Connection(addresses=addresses, api_key="k", tls=Tls()).check_secrecy()
    Connection(addresses=addresses, api_key="k", insecure=True).check_secrecy()
    Connection(addresses=Addresses.all_at("[::1]:1"), api_key="k").check_secrecy()
