"""Which addresses a webhook may connect to."""

import pytest

from liveness.service.outlets.webhooks.address_check import why_refused

PUBLIC = (
    "8.8.8.8",
    "2606:4700::1111",
    "::ffff:8.8.8.8",
    "64:ff9b::8.8.8.8",
    "2002:808:808::1",
)
OF_THIS_HOST = (
    "127.0.0.1",
    "127.9.9.9",
    "::1",
    "::ffff:127.0.0.1",
    "::127.0.0.1",
    "64:ff9b::127.0.0.1",
    "2002:7f00:1::",
)
PRIVATE = (
    "10.0.0.5",
    "172.31.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "198.18.0.1",
    "192.0.2.1",
    "fc00::1",
    "fec0::1",
    "::ffff:10.0.0.5",
    "64:ff9b::10.0.0.5",
    "2002:a00:5::",
)
NEVER = (
    "0.0.0.0",
    "0.1.2.3",
    "::",
    "169.254.169.254",
    "::ffff:169.254.169.254",
    "64:ff9b::169.254.169.254",
    "2002:a9fe:a9fe::",
    "fe80::1",
    "fe80::1%lo",
    "224.0.0.1",
    "ff02::1",
    "240.0.0.1",
    "255.255.255.255",
    "64:ff9b:1::8.8.8.8",
    # Metadata services of clouds that are not link-local.
    "fd00:ec2::254",
    "fd00:ec2::254%lo",
    "fd20:ce::254",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "::ffff:168.63.129.16",
    "64:ff9b::100.100.100.200",
)


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_allowed(address: str) -> None:
    assert why_refused(address, allow_private=False, loopback_only=False) == ""


@pytest.mark.parametrize("address", [*OF_THIS_HOST, *PRIVATE])
def test_a_private_address_takes_a_setting(address: str) -> None:
    assert why_refused(address, allow_private=False, loopback_only=False)
    assert why_refused(address, allow_private=True, loopback_only=False) == ""


@pytest.mark.parametrize("address", NEVER)
def test_some_addresses_are_never_allowed(address: str) -> None:
    assert why_refused(address, allow_private=True, loopback_only=False)


def test_a_teredo_address_is_refused_for_its_server_or_its_client() -> None:
    # Teredo: the server 127.0.0.1, and the client 8.8.8.8.
    why = why_refused(
        "2001:0:7f00:1:0:0:f7f7:f7f7", allow_private=False, loopback_only=False
    )
    assert why == "of this host"


@pytest.mark.parametrize("address", OF_THIS_HOST)
def test_a_url_of_this_host_goes_to_this_host(address: str) -> None:
    assert why_refused(address, allow_private=False, loopback_only=True) == ""


@pytest.mark.parametrize("address", [*PUBLIC, *PRIVATE, *NEVER])
def test_a_url_of_this_host_goes_nowhere_else(address: str) -> None:
    assert why_refused(address, allow_private=True, loopback_only=True)
