"""How another service is reached."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sfumato_chassis.config import AddressesConfig, ConfigError
from sfumato_chassis.remote_access import is_loopback

MAX_KEY_FILE_BYTES = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """Where a service is and what a call to it brings along.

    Attributes:
        ca_file: PEM file of the authorities that ``tls`` trusts; empty for the public ones.
        certificate_file, key_file: Of the caller; empty for none.
    """

    address: str
    api_key: str | None = field(default=None, repr=False)
    tls: bool = False
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""


def configured_peer(addresses: AddressesConfig, address: str) -> Peer:
    """The service at ``address`` as ``[addresses]`` has it. Reads the key's file.

    Raises:
        ConfigError: The key cannot be read.
    """
    return Peer(
        address=address,
        api_key=read_api_key(addresses.api_key_file) if addresses.api_key_file else None,
        tls=addresses.tls or bool(addresses.ca_file),
        ca_file=addresses.ca_file,
        certificate_file=addresses.certificate_file,
        key_file=addresses.key_file,
    )


def check_peers(
    addresses: AddressesConfig, configured: Mapping[str, str], *, insecure_remote: bool
) -> None:
    """Refuses settings with which no service can be called, or not without showing the key to others.

    Args:
        configured: Name and address of each service that is called elsewhere.

    Raises:
        ConfigError: Names the setting.
    """
    for name in ("ca_file", "certificate_file", "key_file"):
        file = getattr(addresses, name)
        if file and not Path(file).is_file():
            raise ConfigError(f"addresses.{name} {file}: no such file")
    if bool(addresses.certificate_file) != bool(addresses.key_file):
        raise ConfigError("addresses.certificate_file and addresses.key_file: set both or none")
    for service, address in configured.items():
        peer = configured_peer(addresses, address)
        host = address.rpartition(":")[0]
        if peer.api_key and not (peer.tls or is_loopback(host) or insecure_remote):
            raise ConfigError(
                f"addresses.{service} {address}: the API key would go there unencrypted; set "
                "addresses.ca_file or addresses.tls, or --insecure-remote"
            )


def read_api_key(file: str) -> str:
    """The key in a file. Raises ConfigError, which never holds any of it."""
    setting = f"addresses.api_key_file {file}"
    try:
        with Path(file).open("rb") as opened:
            key = opened.read(MAX_KEY_FILE_BYTES).strip()
    except OSError as error:
        raise ConfigError(f"{setting}: {error.strerror}") from error
    if not key or not key.isascii() or not key.decode("ascii").isprintable():
        raise ConfigError(f"{setting}: holds no API key")
    return key.decode("ascii")
