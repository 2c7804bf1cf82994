"""Where the services are, and the gRPC channels to them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import grpc

DEFAULT_ADDRESS = "127.0.0.1:7433"
ADDRESS_VARIABLE = "SFUMATO_ADDRESS"
API_KEY_VARIABLE = "SFUMATO_API_KEY"
API_KEY_FILE_VARIABLE = "SFUMATO_API_KEY_FILE"
TLS_VARIABLE = "SFUMATO_TLS"
INSECURE_VARIABLE = "SFUMATO_INSECURE"
SWITCHES = {"": False, "0": False, "false": False, "1": True, "true": True}

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
        for address in self.all:
            port = _PORT.search(address)
            if port is not None and not 1 <= int(port[1]) <= MAX_PORT:
                raise ValueError(f"{address}: the port must be 1 to {MAX_PORT}")

    @property
    def all(self) -> tuple[str, str, str]:
        """Of datasets, trainer and generator."""
        return (self.datasets, self.trainer, self.generator)

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
class Tls:
    """Encrypted channels. All files are PEM.

    Attributes:
        ca_file: authorities to trust in place of the public ones.
        certificate_file, key_file: the client's own, for a server that asks for one.

    Raises ValueError on construction for a certificate without its key, or the reverse.
    """

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None

    def __post_init__(self) -> None:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("a client certificate and its key go together")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Tls | None:
        """Reads SFUMATO_TLS=1 and SFUMATO_TLS_CA, _CERTIFICATE and _KEY; None when none is set."""
        ca_file, certificate_file, key_file = (
            Path(value) if (value := environment.get(f"{TLS_VARIABLE}_{name}")) else None
            for name in ("CA", "CERTIFICATE", "KEY")
        )
        named = ca_file or certificate_file or key_file
        if not named and not switch(environment, TLS_VARIABLE):
            return None
        return cls(ca_file=ca_file, certificate_file=certificate_file, key_file=key_file)

    def credentials(self) -> grpc.ChannelCredentials:
        """Reads the files. Raises OSError."""
        files = (self.ca_file, self.key_file, self.certificate_file)
        root, key, certificate = (None if file is None else file.read_bytes() for file in files)
        return grpc.ssl_channel_credentials(root, key, certificate)


@dataclass(frozen=True, kw_only=True, slots=True)
class Connection:
    """Addresses and identity of a client.

    Raises ValueError on construction for an identity that metadata cannot carry.
    """

    addresses: Addresses = Addresses()
    api_key: str | None = field(default=None, repr=False)
    # On whose behalf a service calls; accepted only from a key with scope `impersonate`.
    principal: str | None = None
    # None: channels are not encrypted.
    tls: Tls | None = None
    # Send the key to other machines even where channels are not encrypted.
    insecure: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Connection:
        """Reads the addresses, the key and the files of TLS from the SFUMATO_* variables.

        Raises ValueError for one that cannot be used.
        """
        return cls(
            addresses=Addresses.from_environment(environment),
            api_key=_api_key_of(environment),
            tls=Tls.from_environment(environment),
            insecure=switch(environment, INSECURE_VARIABLE),
        )

    def check_secrecy(self) -> None:
        """Raises ValueError when the key would go to another machine unencrypted."""
        if self.api_key is None or self.tls is not None or self.insecure:
            return
        for address in self.addresses.all:
            if not is_loopback(host_of(address)):
                raise ValueError(
                    f"the API key would go to {address} unencrypted: use TLS (SFUMATO_TLS=1 or"
                    " SFUMATO_TLS_CA), or say that it may (SFUMATO_INSECURE=1)"
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
    def open(
        cls,
        address: str,
        interceptors: ChannelInterceptors | None = None,
        *,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> ChannelPair:
        """Opens both channels, encrypted with `credentials`; neither connects before its first call."""
        unary, watch = (_open_channel(address, interceptors, credentials) for _ in range(2))
        return cls(unary=unary, watch=watch)

    async def close(self) -> None:
        """Closes both; calls in progress end as cancelled."""
        await self.unary.close()
        await self.watch.close()


def _open_channel(
    address: str,
    interceptors: ChannelInterceptors | None,
    credentials: grpc.ChannelCredentials | None,
) -> grpc.aio.Channel:
    options = channel_options(address)
    chain = None if interceptors is None else interceptors(address)
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=options, interceptors=chain)
    return grpc.aio.secure_channel(address, credentials, options=options, interceptors=chain)


def _api_key_of(environment: Mapping[str, str]) -> str | None:
    key, file = (environment.get(name) for name in (API_KEY_VARIABLE, API_KEY_FILE_VARIABLE))
    if key and file:
        raise ValueError(f"set one of {API_KEY_VARIABLE} and {API_KEY_FILE_VARIABLE}")
    return read_api_key(Path(file)) if file else key or None


def read_api_key(file: Path) -> str:
    """The key in a file, without the white space around it. Raises ValueError, never with the key."""
    try:
        key = file.read_text(encoding="ascii").strip()
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from error
    except UnicodeError:
        raise ValueError(f"{file}: holds no API key") from None
    if not key:
        raise ValueError(f"{file}: holds no API key")
    return key


def switch(environment: Mapping[str, str], name: str) -> bool:
    """Whether a variable is 1 or true; not set, empty, 0 and false are not. Raises ValueError."""
    try:
        return SWITCHES[environment.get(name, "").lower()]
    except KeyError:
        raise ValueError(f"{name} must be 1 or 0") from None


def host_of(address: str) -> str:
    """The host of `host:port`; an IPv6 one without its brackets."""
    return address.rpartition(":")[0].strip("[]")


def channel_options(address: str) -> Options:
    """Options of a channel to `address`; a loopback address never goes through a web proxy."""
    if is_loopback(host_of(address)):
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
