"""What it takes to be reached from other machines: TLS and API keys, or a flag that says it goes without."""

import ipaddress

from sfumato_chassis.config import ConfigError, ServerConfig
from sfumato_chassis.logging import get_logger

CREATE_A_KEY = "`sfumato keys create --principal NAME --scope SCOPE`"

log = get_logger(__name__)


def is_loopback(host: str) -> bool:
    """Whether ``host`` means this machine alone; names other than localhost are not looked up."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def keys_required(server: ServerConfig) -> bool:
    """Whether a call without an API key is refused."""
    if server.require_keys or server.tls_client_ca:
        return True
    return not is_loopback(server.host) and not server.insecure_remote


def reflection_offered(server: ServerConfig) -> bool:
    """Whether everybody may ask for the methods."""
    return server.reflection and (is_loopback(server.host) or server.remote_reflection)


def check_remote_access(server: ServerConfig, *, has_key: bool) -> None:
    """Refuses an address beyond loopback without TLS and keys, and warns where that is allowed.

    Args:
        has_key: Whether there is an API key that is valid now.

    Raises:
        ConfigError: Something is missing; the message says what and how to get it.
    """
    missing = []
    if not server.tls_certificate:
        missing.append("TLS (server.tls_certificate and server.tls_key)")
    if not has_key:
        missing.append(f"an API key ({CREATE_A_KEY})")
    if not is_loopback(server.host):
        if missing and not server.insecure_remote:
            raise ConfigError(
                f"server.host {server.host}: beyond loopback it takes {' and '.join(missing)}; "
                "--insecure-remote goes without"
            )
        if not server.tls_certificate:
            log.warning("beyond loopback without TLS: keys and data can be read on the way")
        if not keys_required(server):
            log.warning("beyond loopback without keys: whoever reaches the port may do everything")
    if keys_required(server) and not has_key:
        log.warning(f"no call is answered before there is an API key: {CREATE_A_KEY}")
