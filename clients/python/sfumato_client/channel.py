"""Where the services are, and the gRPC channels to them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import grpc

DEFAULT_ADDRESS = "127.0.0.1:7433"
ADDRESS_VARIABLE = "SFUMATO_ADDRESS"
API_KEY_VARIABLE = "SFUMATO_API_KEY"

MAX_PORT = 65_535
_PORT = re.compile(r":(-?\d+)$")

Options = tuple[tuple[str, int], ...]
CallMetadata = tuple[tuple[str, str], ...]

CHANNEL_OPTIONS: Options = (
    ("grpc.keepalive_time_ms", 20_000),
    # grpcio reads the second name only; the first is the documented one.
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Retries are decided in one place, calls.py, where a refusal can be told from a loss.
    ("grpc.enable_retries", 0),
    # A channel that backs off on its own for minutes would outlast the caller's backoff.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Without this, channels to one address share one connection, and watches would count against
    # the concurrent streams of unary calls.
    ("grpc.use_local_subchannel_pool", 1),
)


class ChannelInterceptors(Protocol):
    """Makes the interceptors of the channels to one address."""

    def __call__(self, address: str) -> Sequence[grpc.aio.ClientInterceptor]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Addresses:
    """Address of each service as `host:port`; by default all three share one port.

    Raises ValueError on construction for a port that no socket has; gRPC would dial another.
    """

    datasets: str = DEFAULT_ADDRESS
    trainer: str = DEFAULT_ADDRESS
    generator: str = DEFAULT_ADDRESS

    def __post_init__(self) -> None:
        for address in (self.datasets, self.trainer, self.generator):
            port = _PORT.search(address)
            if port is not None and not 1 <= int(port[1]) <= MAX_PORT:
                raise ValueError(f"{address}: the port must be 1 to {MAX_PORT}")

    @classmethod
    def all_at(cls, address: str) -> Addresses:
        """All three services at one address, as `sfumato serve` runs them."""
        return cls(datasets=address, trainer=address, generator=address)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Addresses:
        """Reads SFUMATO_ADDRESS, and SFUMATO_<SERVICE>_ADDRESS for a service that is elsewhere."""
        addresses = cls.all_at(environment.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS)
        elsewhere = {
            service: value
            for service in ("datasets", "trainer", "generator")
            if (value := environment.get(f"SFUMATO_{service.upper()}_ADDRESS"))
        }
        return replace(addresses, **elsewhere)


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """Addresses and identity of a client.

    Raises ValueError on construction for an identity that metadata cannot carry.
    """

    addresses: Addresses = Addresses()
    api_key: str | None = None
    # On whose behalf a service calls; accepted only from a key with scope `impersonate`.
    principal: str | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Connection:
        """Reads the addresses and SFUMATO_API_KEY."""
        return cls(
            addresses=Addresses.from_environment(environment),
            api_key=environment.get(API_KEY_VARIABLE) or None,
        )

    def __post_init__(self) -> None:
        for name, value in (("API key", self.api_key), ("principal", self.principal)):
            if value is not None and not (value.isascii() and value.isprintable()):
                # Without the value: a key stays out of messages and logs.
                raise ValueError(f"the {name} may hold printable ASCII characters only")

    def metadata(self) -> CallMetadata:
        """Metadata that every call carries."""
        metadata: CallMetadata = ()
        if self.api_key is not None:
            metadata += (("authorization", f"Bearer {self.api_key}"),)
        if self.principal is not None:
            metadata += (("x-sfumato-principal", self.principal),)
        return metadata


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelPair:
    """Two connections to one address: long watches do not take the streams of unary calls."""

    unary: grpc.aio.Channel
    watch: grpc.aio.Channel

    @classmethod
    def open(cls, address: str, interceptors: ChannelInterceptors | None = None) -> ChannelPair:
        """Opens both channels; neither connects before its first call."""
        return cls(
            unary=_open_channel(address, interceptors), watch=_open_channel(address, interceptors)
        )

    async def close(self) -> None:
        """Closes both; calls in progress end as cancelled."""
        await self.unary.close()
        await self.watch.close()


def _open_channel(address: str, interceptors: ChannelInterceptors | None) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(
        address,
        options=channel_options(address),
        interceptors=None if interceptors is None else interceptors(address),
    )


def channel_options(address: str) -> Options:
    """Options of a channel to `address`; a loopback address never goes through a web proxy."""
    host = address.rpartition(":")[0].strip("[]")
    if is_loopback(host):
        return (*CHANNEL_OPTIONS, ("grpc.enable_http_proxy", 0))
    return CHANNEL_OPTIONS


def is_loopback(host: str) -> bool:
    """Whether a host name or IP address means this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
