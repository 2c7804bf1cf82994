"""Which addresses belong to the internet, and which to this machine, this network or nobody.

A server that fetches what a stranger names must not be led to what only it can reach.
"""

import ipaddress
from typing import Final

_TRANSLATED: Final = ipaddress.IPv6Network("64:ff9b::/96")
"""IPv4 behind a translator (RFC 6052)."""
_LOCALLY_TRANSLATED: Final = ipaddress.IPv6Network("64:ff9b:1::/48")
"""The same for use inside one network (RFC 8215)."""
_NOT_FOR_ALL: Final = (
    ipaddress.ip_network("192.88.99.0/24"),  # relays of 6to4, deprecated by RFC 7526
    ipaddress.ip_network("168.63.129.16/32"),  # one network's own services, though it looks public
    ipaddress.ip_network("3fff::/20"),  # documentation (RFC 9637)
)
_COMPATIBLE: Final = ipaddress.IPv6Network("::/96")
"""IPv4-compatible addresses, deprecated by RFC 4291; `::` and `::1` lie among them."""


def is_public(address: str) -> bool:
    """Whether an address is reached over the internet.

    IPv6 that carries IPv4 (mapped, 6to4, Teredo, NAT64) counts as what it carries.

    Args:
        address: IPv4 or IPv6 in digits, with or without a zone; anything else is not public.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv4Address):
        return _is_global(parsed)
    if parsed in _COMPATIBLE or parsed in _LOCALLY_TRANSLATED or parsed.is_site_local:
        return False
    carried = _carried(parsed)
    if carried:
        return all(map(_is_global, carried))
    return _is_global(parsed)


def _is_global(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not any(address in network for network in _NOT_FOR_ALL)
    )


def _carried(address: ipaddress.IPv6Address) -> tuple[ipaddress.IPv4Address, ...]:
    """The IPv4 addresses to which packets for this one may go."""
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address.sixtofour is not None:
        return (address.sixtofour,)
    if address.teredo is not None:
        return address.teredo
    if address in _TRANSLATED:
        return (ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF),)
    return ()
