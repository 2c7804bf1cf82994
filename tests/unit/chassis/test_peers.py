from pathlib import Path

import pytest

from sfumato_chassis.config import AddressesConfig, ConfigError
from sfumato_chassis.peers import check_peers, configured_peer

REMOTE = {"datasets": "studio.example:7433"}
LOOPBACK = {"datasets": "127.0.0.1:7433", "trainer": "[::1]:7434"}


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    (tmp_path / "key").write_text("sfm_canary\n")
    return str(tmp_path / "key")


def test_the_key_is_read_anew_and_is_not_shown(key_file: str) -> None:
    addresses = AddressesConfig(api_key_file=key_file)
    peer = configured_peer(addresses, "127.0.0.1:1")
    assert peer.api_key == "sfm_canary"
    assert "canary" not in repr(peer) + repr(addresses)
    Path(key_file).write_text("sfm_other")
    assert configured_peer(addresses, "127.0.0.1:1").api_key == "sfm_other"


def test_a_file_of_authorities_means_encryption() -> None:
    assert configured_peer(AddressesConfig(ca_file="ca"), "a:1").tls
    assert configured_peer(AddressesConfig(tls=True), "a:1").tls
    assert not configured_peer(AddressesConfig(), "a:1").tls


@pytest.mark.parametrize("content", [b"", b"\n", b"a\nb", b"\xff", "é".encode()])
def test_a_file_without_a_key_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    addresses = AddressesConfig(api_key_file=str(tmp_path / "key"))
    with pytest.raises(ConfigError, match=r"addresses.api_key_file .* holds no API key"):
        check_peers(addresses, LOOPBACK, insecure_remote=False)


@pytest.mark.parametrize(
    ("addresses", "told"),
    [
        (AddressesConfig(api_key_file="/absent"), "addresses.api_key_file /absent: No such file"),
        (AddressesConfig(ca_file="/absent"), "addresses.ca_file /absent: no such file"),
        (AddressesConfig(certificate_file=__file__), "set both or none"),
    ],
)
def test_files_that_are_not_there_are_named(addresses: AddressesConfig, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        check_peers(addresses, LOOPBACK, insecure_remote=False)


def test_a_key_goes_to_another_machine_only_encrypted_or_by_flag(key_file: str) -> None:
    plain = AddressesConfig(api_key_file=key_file)
    with pytest.raises(ConfigError, match=r"addresses.datasets studio.* unencrypted") as refused:
        check_peers(plain, REMOTE, insecure_remote=False)
    assert "canary" not in str(refused.value)
    check_peers(plain, REMOTE, insecure_remote=True)
    check_peers(plain, LOOPBACK, insecure_remote=False)
    encrypted = AddressesConfig(api_key_file=key_file, tls=True)
    check_peers(encrypted, REMOTE, insecure_remote=False)
    check_peers(AddressesConfig(), REMOTE, insecure_remote=False)
