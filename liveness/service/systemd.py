"""The service manager that started us: what it hands over, and what it is told.

The protocols are systemd's, which other managers speak too: sockets that were opened
before this process and outlive it (sd_listen_fds(3)), a word when it is ready, stops or
reads its settings anew (sd_notify(3)), and a sign of life that ends when the hand stands
still (sd_watchdog_enabled(3)). Whoever was started by hand has none of them, and tells
nobody.
"""

import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog
import trio

from liveness.errors import StartError
from liveness.service.common.logs import Every
from liveness.service.components import SidecarService
from liveness.service.links.sockets import UnixListener

# The names of sockets that are taken; all of the kind that gateways connect to.
GATEWAY_SOCKET: Final = "gateway"
ADMIN_SOCKET: Final = "admin"
HANDED_OVER: Final = (GATEWAY_SOCKET, ADMIN_SOCKET)
# How often the manager is told how it goes, if it does not ask for more.
TELL_EVERY_S: Final = 10.0
# A manager that reads nothing is not waited for; the next sign of life comes anyway.
TELL_S: Final = 1.0
LOG_S: Final = 60.0

_FIRST: Final = 3  # the first descriptor that is handed over

_log = structlog.get_logger("manager")


class ServiceManager:
    """Whoever started this process, as its environment tells.

    Args:
        environ: The environment.
        pid: This process.
    Raises:
        StartError: The environment says what cannot be.
    """

    def __init__(self, environ: Mapping[str, str], pid: int) -> None:
        self._sockets = handed_over(environ, pid)
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self.watchdog_s = _watchdog_s(environ, pid)
        self._every = Every(LOG_S, clock=trio.current_time)

    def socket(self, name: str, path: Path) -> UnixListener | None:
        """The listening socket of this name; None if none was handed over.

        Args:
            name: One of `HANDED_OVER`.
            path: Where clients look for it.
        Raises:
            StartError: It is no listening Unix socket, or another than that at *path*.
        """
        number = self._sockets.get(name)
        if number is None:
            return None
        told = f"the service manager's socket {name}"
        try:
            sock = UnixListener(path, fileno=number)
        except OSError as error:
            raise StartError(
                f"{told}: descriptor {number} is no socket ({error.strerror}); start it "
                "with the sockets that LISTEN_FDS counts"
            ) from None
        os.set_inheritable(number, False)
        sock.setblocking(False)
        if (sock.family, sock.type) != (socket.AF_UNIX, socket.SOCK_STREAM) or (
            not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        ):
            sock.detach()
            raise StartError(
                f"{told} is no Unix stream socket that listens; give it "
                f"ListenStream={path}"
            )
        found = os.fsdecode(sock.getsockname())
        if not _is_same(Path(found), path):
            sock.detach()
            raise StartError(
                f"{told} is at {found or 'no path'}, and clients look for it at {path}; "
                "name one path in ListenStream= and socket.path"
            )
        sock.found()
        return sock

    async def tell(self, *lines: str) -> None:
        """Tells the manager, if there is one that listens; a failure is logged."""
        if not self._address:
            return
        try:
            with trio.socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                with trio.fail_after(TELL_S):
                    await sock.connect(self._address)
                    await sock.send("\n".join(lines).encode())
        except (OSError, trio.TooSlowError) as error:
            self._every(
                _log.warning,
                "the service manager cannot be told how it goes",
                key="tell",
                error=str(error) or "it reads nothing",
                lost=lines[0],
            )

    async def keep_told(self, sidecar: SidecarService) -> None:
        """Gives a sign of life in time, for as long as *sidecar* has one."""
        every_s = min(self.watchdog_s / 2 or TELL_EVERY_S, TELL_EVERY_S)
        while self._address:
            why = sidecar.why_ill()
            alive = ["WATCHDOG=1"] if self.watchdog_s and not why else []
            if why and self.watchdog_s:
                self._every(
                    _log.error,
                    "the service manager gets no sign of life",
                    key="ill",
                    why="; ".join(why),
                )
            await self.tell(*alive, f"STATUS={sidecar.status}")
            await trio.sleep(every_s)


def handed_over(environ: Mapping[str, str], pid: int) -> dict[str, int]:
    """The descriptors of the sockets that are meant for process *pid*, by their names.

    Raises:
        StartError: They are not counted, or have other names than ours.
    """
    if environ.get("LISTEN_PID") != str(pid):
        return {}
    count = environ.get("LISTEN_FDS", "0")
    if not _is_number(count):
        raise StartError(
            f"LISTEN_FDS={count!r} is no number of sockets: unset it, or let the service "
            "manager set it"
        )
    names = environ.get("LISTEN_FDNAMES", "").split(":") if int(count) else []
    if len(names) != int(count) or len({*names} & {*HANDED_OVER}) != len(names):
        raise StartError(
            f"the service manager's sockets are named {':'.join(names)!r} "
            f"(LISTEN_FDS={count}), and there may be a gateway and an admin; set "
            "FileDescriptorName= in the socket's unit"
        )
    return {name: _FIRST + index for index, name in enumerate(names)}


def _address(notify_socket: str) -> str:
    if notify_socket.startswith("@"):
        return "\0" + notify_socket[1:]
    if notify_socket and not notify_socket.startswith("/"):
        raise StartError(
            f"NOTIFY_SOCKET={notify_socket!r} is neither a path nor @ and a name: unset "
            "it, or let the service manager set it"
        )
    return notify_socket


def _watchdog_s(environ: Mapping[str, str], pid: int) -> float:
    """Seconds within which a sign of life has to come; 0: none is wanted."""
    if environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return 0.0
    wanted = environ.get("WATCHDOG_USEC", "0")
    if not _is_number(wanted):
        raise StartError(
            f"WATCHDOG_USEC={wanted!r} is no number of microseconds: unset it, or let "
            "the service manager set it"
        )
    return int(wanted) / 1e6


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) < 20  # as 64 bits have


def _is_same(one: Path, other: Path) -> bool:
    """Whether two paths lead to one and the same socket."""
    try:
        found = one.stat()
        return stat.S_ISSOCK(found.st_mode) and os.path.samestat(found, other.stat())
    except (OSError, ValueError):  # it was removed, or is of the abstract kind
        return False
