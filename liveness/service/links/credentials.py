"""Who is at the other end of a Unix socket, and whom a name in the settings means.

The kernel tells user, group and process of whoever connected (unix(7), SO_PEERCRED), and
since Linux 4.13 its supplementary groups too (SO_PEERGROUPS), as they were at that moment.
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
# Python's own takes 256 groups at most; Linux allows 65,536.
_getsockopt: Final = ctypes.CDLL(None, use_errno=True).getsockopt
# Room for those of most peers; of one that has more, the kernel says how much it takes.
_GROUPS_BYTES: Final = 256
# Of a user or group. The number after it means none to chown(2), which would do nothing.
MOST_ID: Final = 2**32 - 2


def peer_of(sock: socket.socket) -> Peer:
    """Who connected to a Unix socket.

    Raises:
        OSError: The kernel does not say.
    """
    told = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(told)
    return Peer(pid, uid, frozenset({gid, *_supplementary(sock, uid, gid)}))


def _supplementary(sock: socket.socket, uid: int, gid: int) -> list[int]:
    size = ctypes.c_uint(_GROUPS_BYTES)
    option = socket.SOL_SOCKET, _SO_PEERGROUPS
    while True:
        groups = (ctypes.c_uint * (size.value // ctypes.sizeof(ctypes.c_uint)))()
        if not _getsockopt(sock.fileno(), *option, groups, ctypes.byref(size)):
            return groups[: size.value // ctypes.sizeof(ctypes.c_uint)]
        failed = ctypes.get_errno()
        if failed == errno.ENOPROTOOPT:  # an older kernel, or one that is no Linux
            return _groups_by_name(uid, gid)
        if failed != errno.ERANGE:
            raise OSError(failed, os.strerror(failed))


def _groups_by_name(uid: int, gid: int) -> list[int]:
    try:
        return os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    except KeyError:
        return []


def access_to(settings: AccessSettings, *, group: int) -> Access:
    """The rights at a socket, with every name looked up.

    Args:
        settings: Who is allowed what.
        group: That of the gateways' socket.
    Raises:
        StartError: A user or group is not known on this host.
    """

    def allowed(key: str) -> Allowed:
        users, groups, anyone = set(), set(), False
        for item in as_list(getattr(settings, key)):
            if item == "*":
                anyone = True
            elif item.startswith("@"):
                name = item[1:]
                groups.add(group if name == "own" else gid_of(name, f"access.{key}"))
            else:
                users.add(_uid_of(item, f"access.{key}"))
        return Allowed(frozenset(users), frozenset(groups), anyone)

    ties = (item.rpartition("=") for item in as_list(settings.names))
    return Access(
        gateways=allowed("gateways"),
        watchers=allowed("watchers"),
        everyone=allowed("everyone"),
        admin=allowed("admin"),
        names={name: _uid_of(user, "access.names") for name, _, user in ties},
    )


def gid_of(name: str, setting: str) -> int:
    """The number of a group, by its name or number.

    Raises:
        StartError: *setting* names one that this host does not know.
    """
    if name.isdecimal():
        return _number(name, setting, "group")
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise _unknown(setting, "group", name) from None


def _uid_of(name: str, setting: str) -> int:
    if name == "own":
        return os.geteuid()
    if name.isdecimal():
        return _number(name, setting, "user")
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise _unknown(setting, "user", name) from None


def _number(name: str, setting: str, what: str) -> int:
    if len(name) > len(str(MOST_ID)) or int(name) > MOST_ID:
        raise StartError(
            f"{setting} names the {what} {name:.40}, and the numbers of such end at "
            f"{MOST_ID}; correct it"
        )
    return int(name)


def _unknown(setting: str, what: str, name: str) -> StartError:
    return _out_of_files(setting, what, name) or StartError(
        f"{setting} names the {what} {name!r}, which this host does not know; create it, "
        "or give its number"
    )


def _out_of_files(setting: str, what: str, name: str) -> StartError | None:
    """Why a name could not be looked up; who may open no file is told it is unknown."""
    try:
        os.close(os.open("/", os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return StartError(
            f"{setting} names the {what} {name!r}, which cannot be looked up "
            f"({error.strerror}): raise the limit of open files, or end some connections"
        )
    return None
