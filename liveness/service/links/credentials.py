"""Looks up Unix users and groups: those of a socket's peer, and those in the settings.

When a socket connects, the kernel stores the process, user and group (unix(7),
SO_PEERCRED), and since Linux 4.13 also the supplementary groups (SO_PEERGROUPS).
"""

import ctypes
import errno
import grp
import os
import pwd
import socket
import struct
from typing import Final

from liveness.config.checks import as_list
from liveness.config.settings import AccessSettings
from liveness.core.access import Access, Allowed, Peer
from liveness.errors import StartError

# asm-generic/socket.h; Python has no name for it.
_SO_PEERGROUPS: Final = 59
_CREDENTIALS: Final = struct.Struct("3i")
# Python's getsockopt() takes 256 groups at most.
MOST_GROUPS: Final = 65_536
_getsockopt: Final = ctypes.CDLL(None, use_errno=True).getsockopt
# The highest id of a user or group; chown(2) takes the next number for "no change".
MOST_ID: Final = 2**32 - 2


def peer_of(sock: socket.socket) -> Peer:
    """The process that connected to a Unix socket, with its user and groups.

    Raises:
        OSError: The kernel does not know.
    """
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, unix_user, gid = _CREDENTIALS.unpack(data)
    return Peer(pid, unix_user, frozenset({gid, *_supplementary(sock)}))


def _supplementary(sock: socket.socket) -> list[int]:
    groups = (ctypes.c_uint * MOST_GROUPS)()
    size = ctypes.c_uint(ctypes.sizeof(groups))
    option = socket.SOL_SOCKET, _SO_PEERGROUPS
    if _getsockopt(sock.fileno(), *option, groups, ctypes.byref(size)):
        failed = ctypes.get_errno()
        if failed == errno.ENOPROTOOPT:  # an older kernel: the primary group alone
            return []
        raise OSError(failed, os.strerror(failed))
    return groups[: size.value // ctypes.sizeof(ctypes.c_uint)]


def access_to(settings: AccessSettings, *, group: int) -> Access:
    """Look up every user and group in the access settings.

    `@own` stands for *group*, that of the gateways' socket.

    Raises:
        StartError: A user or group does not exist on this host.
    """

    def allowed(key: str) -> Allowed:
        users, groups, anyone = set(), set(), False
        for item in as_list(getattr(settings, key)):
            if item == "*":
                anyone = True
            elif item == "@own":
                groups.add(group)
            elif item.startswith("@"):
                groups.add(gid_of(item[1:], f"access.{key}"))
            else:
                users.add(_unix_user_of(item, f"access.{key}"))
        return Allowed(frozenset(users), frozenset(groups), anyone)

    names = (item.rpartition("=") for item in as_list(settings.names))
    return Access(
        gateways=allowed("gateways"),
        watchers=allowed("watchers"),
        everyone=allowed("everyone"),
        admin=allowed("admin"),
        names={name: _unix_user_of(user, "access.names") for name, _, user in names},
    )


def gid_of(name: str, setting: str) -> int:
    """The id of a group, given by name or by number.

    Raises:
        StartError: There is no such group on this host; the error names *setting*.
    """
    if name.isdecimal():
        return _parse_id(name, setting, "group")
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise _unknown(setting, "group", name) from None


def _unix_user_of(name: str, setting: str) -> int:
    if name == "own":
        return os.geteuid()
    if name.isdecimal():
        return _parse_id(name, setting, "user")
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise _unknown(setting, "user", name) from None


def _parse_id(text: str, setting: str, what: str) -> int:
    if len(text) > len(str(MOST_ID)) or int(text) > MOST_ID:
        raise StartError(
            f"{setting} names the {what} {text:.40}, and the highest id of a {what} is "
            f"{MOST_ID}; correct it"
        )
    return int(text)


def _unknown(setting: str, what: str, name: str) -> StartError:
    return StartError(
        f"{setting} names the {what} {name!r}, which does not exist on this host; "
        "create it, or give its number"
    )
