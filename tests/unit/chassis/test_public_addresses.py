import pytest

from sfumato_chassis.public_addresses import is_public

PUBLIC = (
    "8.8.8.8",
    "1.1.1.1",
    "172.32.0.1",
    "2606:4700::1111",
    "::ffff:8.8.8.8",
    "64:ff9b::8.8.8.8",
    "2002:808:808::1",
)
NOT_PUBLIC = (
    "192.88.99.1",
    "168.63.129.16",
    "::ffff:168.63.129.16",
    "3fff::1",
    "3fff:fff::1",
    "127.0.0.1",
    "127.255.255.254",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "192.0.2.1",
    "198.18.0.1",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::8.8.8.8",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "fc00::1",
    "fd00:ec2::254",
    "ff02::1",
    "2001:db8::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::127.0.0.1",
    "64:ff9b::10.0.0.1",
    "64:ff9b:1::8.8.8.8",
    "2002:7f00:1::1",
    "2002:a00:1::1",
    "2001:0:7f00:1:0:0:f7f7:f7f7",
    "2001:0:808:808:0:0:80ff:fffe",
    "localhost",
    "",
    "127.1",
    "0x7f000001",
    "8.8.8.8 ",
)


@pytest.mark.parametrize("address", PUBLIC)
def test_addresses_of_the_internet(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_addresses_of_this_machine_this_network_or_nobody(address: str) -> None:
    assert not is_public(address)
