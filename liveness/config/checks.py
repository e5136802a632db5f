"""Checks of settings that are text: paths, addresses, names, lists.

Each `check_` function raises a ValueError that says what the value must be.
"""

import os
import re
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final

from liveness.core.wheel.devices import MAX_SEPARATOR_CHARS
from liveness.core.wire.uids import MAX_NAME_BYTES, is_text

# `sockaddr_un.sun_path` is 108 bytes on Linux, the last of them a NUL.
MAX_SOCKET_PATH_BYTES: Final = 107
ADMIN_SOCKET: Final = "admin.sock"

# Most items in the list of a setting.
MOST_LISTED: Final = 1_000
ALLOWED: Final = (
    "Unix users and @groups by name or number, separated by commas; own: the sidecar's "
    "user, @own: the socket's group, *: anyone"
)
TIES: Final = "NAME=UNIX_USER, separated by commas"
ADDRESSES: Final = "HOST:PORT, separated by commas"
_LOOPBACK: Final = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}\$?")
_ALLOWED: Final = re.compile(rf"\*|@?{_USER.pattern}")

# A host name in `http.hosts`. DNS allows at most 253 characters.
_HOST_NAME: Final = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?", re.ASCII | re.I)
MAX_HOST_NAME: Final = 253
MAX_HOSTS: Final = 100


def check_socket_path(path: Path) -> None:
    if not path.name:
        raise ValueError("it is a folder; name the socket in it")
    if path.name == ADMIN_SOCKET:
        raise ValueError(f"{ADMIN_SOCKET} is the name of the socket beside it")
    # The longer of the two paths must fit.
    length = max(
        len(os.fsencode(place)) for place in (path, path.with_name(ADMIN_SOCKET))
    )
    if length > MAX_SOCKET_PATH_BYTES:
        raise ValueError(
            f"with {ADMIN_SOCKET} beside it that takes {length} bytes, and the path of a "
            f"socket has room for {MAX_SOCKET_PATH_BYTES}; choose a shorter one"
        )


def split_address(address: str) -> tuple[str, int]:
    """Split an address into host, without the brackets of IPv6, and port.

    Raises:
        ValueError: It is not HOST:PORT.
    """
    host, colon, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_whole = bool(colon and bare) and (":" in bare) == (bare != host)
    if not (is_whole and port.isascii() and port.isdigit() and int(port[:6]) <= 65535):
        raise ValueError("it must be HOST:PORT, the port 0 to 65535 (0: any free one)")
    return bare, int(port)


def waits_ms(text: str) -> tuple[int, ...]:
    return tuple(round(float(wait) * 1000) for wait in text.split(","))


def check_waits(text: str) -> None:
    try:
        waits = waits_ms(text)
        is_good = all(1_000 <= wait <= 86_400_000 for wait in waits)
    except (ValueError, OverflowError):
        is_good = False
    if not is_good or len(waits) > 100:
        raise ValueError(
            "it must be 1 to 100 numbers from 1 to 86400, seconds, separated by commas"
        )


def as_list(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def check_allowed(text: str) -> None:
    items = as_list(text)
    if len(items) > MOST_LISTED or not all(map(_ALLOWED.fullmatch, items)):
        raise ValueError(f"it must be {ALLOWED}")


def check_ties(text: str) -> None:
    ties = [item.rpartition("=") for item in as_list(text)]
    is_good = all(
        is_text(name, MAX_NAME_BYTES) and _USER.fullmatch(user)
        for name, _, user in ties
    )
    if not is_good or len(ties) > MOST_LISTED:
        raise ValueError(f"it must be {TIES}")
    if len({name for name, _, _ in ties}) < len(ties):
        raise ValueError("a name is there twice; only one user may have it")


def check_separator(text: str) -> None:
    is_short = len(text) <= MAX_SEPARATOR_CHARS
    has_digits = re.search("[0-9]", text)  # they would separate integers
    if not is_short or has_digits or not (text == "" or is_text(text, 255)):
        raise ValueError(
            f"it must be 1 to {MAX_SEPARATOR_CHARS} characters, no digits and no control "
            "characters, or empty: users have no devices"
        )


def check_group(text: str) -> None:
    if text and not _USER.fullmatch(text):
        raise ValueError("it must be a group's name or number, or empty")


def check_address(address: str) -> None:
    split_address(address)


def check_addresses(text: str) -> None:
    addresses = as_list(text)
    try:
        are_good = all(split_address(address)[1] > 0 for address in addresses)
    except ValueError:
        are_good = False
    if not addresses or not are_good or len(addresses) > MOST_LISTED:
        raise ValueError(f"it must be {ADDRESSES}")


def is_loopback(host: str) -> bool:
    """Whether it is an address of loopback, or `localhost`.

    Any other name may resolve to any address.
    """
    try:
        # Whether is_loopback includes ::ffff:127.0.0.1 depends on the version of Python.
        return host == "localhost" or any(ip_address(host) in net for net in _LOOPBACK)
    except ValueError:
        return False


def host_names(text: str) -> list[str]:
    return [name.strip().lower() for name in text.split(",")] if text.strip() else []


def check_host_names(text: str) -> None:
    names = host_names(text)
    if len(names) > MAX_HOSTS or not all(
        len(name) <= MAX_HOST_NAME and _HOST_NAME.fullmatch(name) for name in names
    ):
        raise ValueError(
            f"it must be at most {MAX_HOSTS} names of hosts, without ports, separated "
            "by commas"
        )
