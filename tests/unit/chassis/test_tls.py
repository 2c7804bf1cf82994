"""Files of TLS that cannot serve are named by their setting, in one line and without their content."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from certificates import PAST, Authority, Certificate
from sfumato_chassis.config import ConfigError, ServerConfig
from sfumato_chassis.tls import server_credentials


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def config_of(certificate: Certificate, client_ca: Path | None = None) -> ServerConfig:
    return ServerConfig(
        tls_certificate=str(certificate.certificate),
        tls_key=str(certificate.key),
        tls_client_ca="" if client_ca is None else str(client_ca),
    )


def encrypted(key: Path) -> Path:
    private = serialization.load_pem_private_key(key.read_bytes(), password=None)
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"word"),
        )
    )
    return key


def test_without_files_there_is_no_tls() -> None:
    assert server_credentials(ServerConfig()) is None


def test_a_certificate_with_its_key_serves(authority: Authority) -> None:
    assert server_credentials(config_of(authority.issue())) is not None
    assert server_credentials(config_of(authority.issue(), authority.file)) is not None


@pytest.mark.parametrize(
    ("server", "told"),
    [
        (ServerConfig(tls_certificate="a"), "server.tls_key: must be set"),
        (ServerConfig(tls_key="a"), "server.tls_certificate: must be set"),
        (ServerConfig(tls_client_ca="a"), "server.tls_client_ca: needs"),
        (
            ServerConfig(tls_certificate="/absent", tls_key="/absent"),
            "server.tls_certificate /absent: No such file",
        ),
        (ServerConfig(tls_certificate="/\0", tls_key="k"), "server.tls_certificate"),
    ],
)
def test_settings_that_lack_something_are_named(server: ServerConfig, told: str) -> None:
    with pytest.raises(ConfigError, match=f"^{told}"):
        server_credentials(server)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda its, other: its.key.write_bytes(other.key.read_bytes()), "tls_key .* not the key"),
        (lambda its, other: its.key.write_text("no key"), "tls_key .* no private key"),
        (lambda its, other: encrypted(its.key), "tls_key .* no private key in PEM, unencrypted"),
        (
            lambda its, other: its.certificate.write_text("none"),
            "tls_certificate .* no certificate",
        ),
        (lambda its, other: its.certificate.write_bytes(b""), "tls_certificate .* no certificate"),
        (lambda its, other: its.key.unlink(), "tls_key .* No such file"),
    ],
)
def test_a_damaged_file_is_named_and_not_shown(
    authority: Authority, damage: Callable[[Certificate, Certificate], object], told: str
) -> None:
    mine = authority.issue()
    secret = mine.key.read_text().splitlines()[1]
    damage(mine, authority.issue())
    with pytest.raises(ConfigError, match=told) as refused:
        server_credentials(config_of(mine))
    assert "\n" not in str(refused.value)
    assert secret not in str(refused.value)


def test_a_certificate_that_has_expired_is_refused(authority: Authority) -> None:
    with pytest.raises(ConfigError, match=r"server.tls_certificate .* certificate has expired"):
        server_credentials(config_of(authority.issue(not_after=PAST)))


def test_authorities_of_clients_must_be_some(authority: Authority, tmp_path: Path) -> None:
    mine = authority.issue()
    with pytest.raises(ConfigError, match=r"server.tls_client_ca .* holds no authority"):
        server_credentials(config_of(mine, mine.certificate))
    with pytest.raises(ConfigError, match=r"server.tls_client_ca .* no certificate in PEM"):
        server_credentials(config_of(mine, mine.key))


def test_a_key_on_an_elliptic_curve_serves(tmp_path: Path) -> None:
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    subprocess.run(
        [*command.split(), "-subj", "/CN=localhost", "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    assert server_credentials(config_of(Certificate(certificate=certificate, key=key))) is not None
