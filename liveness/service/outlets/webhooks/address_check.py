"""Checks the addresses that a webhook connects to.

Neither a url, nor a DNS change of its name, must give access to services that only this
host or its network can reach. So the addresses themselves are checked, not the name.
"""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address

_THIS_NETWORK: Final = ip_network("0.0.0.0/8")
# Shared address space of carriers (RFC 6598); some clouds serve metadata there.
_CARRIER: Final = ip_network("100.64.0.0/10")
# IPv6 with an IPv4 address in its last 32 bits: NAT64, and the deprecated
# IPv4-compatible form.
_WITH_IPV4: Final = (ip_network("64:ff9b::/96"), ip_network("::/96"))
_LAST_32: Final = 2**32 - 1
# Where clouds serve a host's own credentials, besides link-local: some are in private or
# public networks. AWS, Google, Alibaba, Azure, Oracle.
_METADATA: Final = (
    *map(ip_network, ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200")),
    *map(ip_network, ("168.63.129.16", "192.0.0.192")),
)


def why_refused(
    text: str, *, allow_private: bool, loopback_only: bool, is_encrypted: bool = True
) -> str:
    """Why a webhook must not connect to an address; empty: it may.

    *allow_private* is about addresses of this host and of private networks. With
    *loopback_only* the url names this host itself, and nothing else is allowed; if it is not
    encrypted, no public address is.
    """
    reasons = {_why_not(address) for address in _meant(ip_address(text))}
    if loopback_only:
        return "" if reasons == {"of this host"} else "not of this host"
    if "" in reasons and not is_encrypted:
        return "public, and http:// is not encrypted"
    harmless = {"", *({"of this host", "private"} if allow_private else ())}
    return " and ".join(sorted(reasons - harmless))


def _meant(address: Address) -> list[Address]:
    """The addresses that packets to this one may reach."""
    if isinstance(address, IPv4Address):
        return [address]
    embedded: list[Address | None] = [address.ipv4_mapped, address.sixtofour]
    embedded += address.teredo or ()
    has_ipv4 = any(address in network for network in _WITH_IPV4)
    if has_ipv4 and int(address) > 1:  # not `::` and `::1`
        embedded.append(IPv4Address(int(address) & _LAST_32))
    return [inner for inner in embedded if inner is not None] or [address]


def _why_not(address: Address) -> str:
    """The kind of a forbidden address; empty: a public one."""
    if address.is_loopback:
        return "of this host"
    if address.is_link_local:
        return "link-local"
    if any(address in network for network in _METADATA):
        return "of a cloud's metadata service"
    if address.is_multicast:
        return "multicast"
    if address.is_unspecified or address in _THIS_NETWORK:
        return "unspecified"
    if address.is_reserved:
        return "reserved"
    is_site_local = isinstance(address, IPv6Address) and address.is_site_local
    if not address.is_global or address in _CARRIER or is_site_local:
        return "private"
    return ""
