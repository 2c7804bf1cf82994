"""TLS of a server: its files are checked before it listens, since gRPC tells nothing of what is wrong."""

import ssl
import time
from pathlib import Path

import grpc

from sfumato_chassis.config import ConfigError, ServerConfig


def server_credentials(server: ServerConfig) -> grpc.ServerCredentials | None:
    """Credentials of the configured files; None where there are none.

    Raises:
        ConfigError: A file is missing, cannot be read or used, or belongs to another; names the setting.
    """
    if not server.tls_certificate and not server.tls_key:
        if server.tls_client_ca:
            raise ConfigError("server.tls_client_ca: needs server.tls_certificate too")
        return None
    for name, other in (("tls_certificate", "tls_key"), ("tls_key", "tls_certificate")):
        if not getattr(server, name):
            raise ConfigError(f"server.{name}: must be set, since server.{other} is")
    certificate = read_setting("tls_certificate", server.tls_certificate)
    key = read_setting("tls_key", server.tls_key)
    authorities = None
    if server.tls_client_ca:
        authorities = read_setting("tls_client_ca", server.tls_client_ca)
        check_authorities(server.tls_client_ca)
    check_certificate(server.tls_certificate, server.tls_key)
    return grpc.ssl_server_credentials(
        [(key, certificate)],
        root_certificates=authorities,
        require_client_auth=authorities is not None,
    )


def read_setting(name: str, file: str) -> bytes:
    """The bytes of a file that a setting of ``[server]`` names. Raises ConfigError."""
    try:
        return Path(file).read_bytes()
    except (OSError, ValueError) as error:
        told = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"server.{name} {file}: {told}") from error


def check_authorities(file: str) -> None:
    """Refuses a file without a certificate of an authority that is valid now. Raises ConfigError."""
    setting = f"server.tls_client_ca {file}"
    found = trusting(file, setting).get_ca_certs()
    now = time.time()
    if not any(ssl.cert_time_to_seconds(str(each["notAfter"])) > now for each in found):
        raise ConfigError(f"{setting}: {'expired' if found else 'holds no authority'}")


def check_certificate(certificate: str, key: str) -> None:
    """Proves with a handshake in memory that the certificate serves now and that the key is its own.

    Raises:
        ConfigError: It does not, or is not.
    """
    setting = f"server.tls_certificate {certificate}"
    client = trusting(certificate, setting)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # An encrypted key would else be asked for on the terminal.
        server.load_cert_chain(certificate, key, password=lambda: b"")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"server.tls_key {key}: not the key of server.tls_certificate"
            ) from None
        raise ConfigError(f"server.tls_key {key}: no private key in PEM, unencrypted") from None
    try:
        shake_hands(client, server)
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(f"{setting}: {error.verify_message}") from None
    except ssl.SSLError as error:
        raise ConfigError(f"{setting}: cannot serve ({error.reason})") from None


def trusting(file: str, setting: str) -> ssl.SSLContext:
    """A client that trusts the certificates of ``file`` and those alone. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cafile=file)
    except ssl.SSLError:
        raise ConfigError(f"{setting}: no certificate in PEM") from None
    return context


def shake_hands(client_context: ssl.SSLContext, server_context: ssl.SSLContext) -> None:
    """Connects the two without a network. Raises SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    waiting = [client, server]
    while waiting:
        for side in tuple(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                continue
