"""Addresses, identity and channel options."""

from __future__ import annotations

import pytest

from sfumato_client.channel import (
    DEFAULT_ADDRESS,
    Addresses,
    Connection,
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
