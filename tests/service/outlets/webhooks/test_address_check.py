"""Which addresses a webhook may connect to."""

from collections.abc import Callable
from ipaddress import IPv4Address

import pytest

from liveness.service.outlets.webhooks.address_check import why_refused

PUBLIC = ("8.8.8.8", "2606:4700::1111")
OF_THIS_HOST = ("127.0.0.1", "127.9.9.9", "::1")
PRIVATE = ("10.0.0.5", "192.0.2.1", "100.64.0.1", "fc00::1", "fec0::1")
NEVER = {
    "0.0.0.0": "unspecified",
    "0.1.2.3": "unspecified",
    "::": "unspecified",
    "169.254.169.254": "link-local",
    "fe80::1%lo": "link-local",
    "224.0.0.1": "multicast",
    "ff02::1": "multicast",
    "240.0.0.1": "reserved",
    "64:ff9b:1::8.8.8.8": "reserved",
    "fd00:ec2::254%lo": "of a cloud's metadata service",
    "fd20:ce::254": "of a cloud's metadata service",
    "100.100.100.200": "of a cloud's metadata service",
    "168.63.129.16": "of a cloud's metadata service",
    "192.0.0.192": "of a cloud's metadata service",
}


def why(address: str, *, private: bool = False, loopback: bool = False) -> str:
    return why_refused(address, allow_private=private, loopback_only=loopback)


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_allowed(address: str) -> None:
    assert why(address) == ""


@pytest.mark.parametrize("address", [*OF_THIS_HOST, *PRIVATE])
def test_a_private_address_takes_a_setting(address: str) -> None:
    assert why(address) == ("private" if address in PRIVATE else "of this host")
    assert why(address, private=True) == ""


@pytest.mark.parametrize("address", NEVER)
def test_some_addresses_are_never_allowed(address: str) -> None:
    assert why(address, private=True) == NEVER[address]


def in_6to4(address: str) -> str:
    number = int(IPv4Address(address))
    return f"2002:{number >> 16:x}:{number & 0xFFFF:x}::"


@pytest.mark.parametrize(
    "form",
    ["::ffff:{}".format, "::{}".format, "64:ff9b::{}".format, in_6to4],
    ids=["mapped", "compatible", "NAT64", "6to4"],
)
@pytest.mark.parametrize("address", ["8.8.8.8", "127.0.0.1", "10.0.0.5", "224.0.0.1"])
def test_an_ipv4_address_within_an_ipv6_address_decides(
    form: Callable[[str], str], address: str
) -> None:
    assert why(form(address)) == why(address)


def test_a_teredo_address_is_refused_for_its_server_or_its_client() -> None:
    # The server 127.0.0.1, and the client 8.8.8.8.
    assert why("2001:0:7f00:1:0:0:f7f7:f7f7") == "of this host"


def test_a_url_of_this_host_goes_nowhere_else() -> None:
    for address in OF_THIS_HOST:
        assert why(address, loopback=True) == ""
    for address in (*PUBLIC, *PRIVATE, *NEVER):
        assert why(address, private=True, loopback=True) == "not of this host"
