"""Socket activation, readiness notifications and the watchdog, as systemd defines them.

Other service managers use the same protocols: the gateways' socket, opened by the manager
(sd_listen_fds(3)), notifications of ready, reloading and stopping (sd_notify(3)), and a
watchdog that is fed while the engine runs (sd_watchdog_enabled(3)). Without a service
manager, their variables are not in the environment, and nothing is sent.
"""

import os
import re
import socket
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog
import trio

from liveness.errors import StartError
from liveness.service.common.logs import REPEAT_LOG_S, LogThrottle
from liveness.service.components import SidecarService
from liveness.service.links.sockets import UnixListener

# How often the status is sent, unless the watchdog needs it more often.
STATUS_EVERY_S: Final = 10.0
# A notification that the manager has not read within this time is dropped.
SEND_S: Final = 1.0

_FIRST_DESCRIPTOR: Final = 3  # SD_LISTEN_FDS_START

_log = structlog.get_logger("manager")


class ServiceManager:
    """The service manager that started this process, if one did.

    Raises:
        StartError: A variable of the protocols has an invalid value.
    """

    def __init__(self, environ: Mapping[str, str], pid: int) -> None:
        self.descriptor = passed_socket(environ, pid)
        # An abstract socket's name begins with @ there, and with NUL for the kernel.
        self._address = re.sub("^@", "\0", environ.get("NOTIFY_SOCKET", ""))
        self.watchdog_s = _watchdog_s(environ, pid)
        self._log_throttled = LogThrottle(REPEAT_LOG_S, clock=trio.current_time)

    def socket(self, path: Path) -> UnixListener | None:
        """The socket at *path*, where clients look for it; None if none was passed.

        Raises:
            StartError: It is no listening Unix socket, or *path* leads to another one.
        """
        number = self.descriptor
        if number is None:
            return None
        try:
            sock = UnixListener(path, fileno=number)
        except OSError as error:
            raise StartError(
                f"the service manager's socket: descriptor {number} is no socket "
                f"({error.strerror}); start it with the socket that LISTEN_FDS counts"
            ) from None
        os.set_inheritable(number, False)
        sock.setblocking(False)
        if (sock.family, sock.type) != (socket.AF_UNIX, socket.SOCK_STREAM) or (
            not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        ):
            sock.detach()
            raise StartError(
                "the service manager's socket is no Unix stream socket that listens; give "
                f"it ListenStream={path}"
            )
        found = os.fsdecode(sock.getsockname())
        if not _is_same_socket(Path(found), path):
            sock.detach()
            raise StartError(
                f"the service manager's socket is at {found or 'no path'}, and clients look "
                f"for it at {path}; name one path in ListenStream= and socket.path"
            )
        sock.found()
        return sock

    async def notify(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with trio.socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                with trio.fail_after(SEND_S):
                    await sock.connect(self._address)
                    await sock.send("\n".join(lines).encode())
        except (OSError, trio.TooSlowError) as error:
            self._log_throttled(
                _log.warning,
                "the service manager cannot be notified",
                key="notify",
                error=str(error) or "it reads nothing",
                lost=lines[0],
            )

    async def report_status(self, sidecar: SidecarService) -> None:
        """Send the status regularly, and feed the watchdog while the engine runs."""
        every_s = min(self.watchdog_s / 2 or STATUS_EVERY_S, STATUS_EVERY_S)
        while self._address:
            why = sidecar.why_unhealthy()
            watchdog = ["WATCHDOG=1"] if self.watchdog_s and not why else []
            if why and self.watchdog_s:
                self._log_throttled(
                    _log.error,
                    "the watchdog of the service manager is not fed",
                    key="ill",
                    why="; ".join(why),
                )
            await self.notify(*watchdog, f"STATUS={sidecar.status}")
            await trio.sleep(every_s)


def passed_socket(environ: Mapping[str, str], pid: int) -> int | None:
    """The descriptor of the socket that was passed to process *pid*.

    Raises:
        StartError: `LISTEN_FDS` counts more than one.
    """
    if environ.get("LISTEN_PID") != str(pid):
        return None
    count = environ.get("LISTEN_FDS", "0")
    if count not in ("0", "1"):
        raise StartError(
            f"LISTEN_FDS={count!r} is not 1: have the service manager pass one socket, that "
            "of the gateways"
        )
    return _FIRST_DESCRIPTOR if count == "1" else None


def _watchdog_s(environ: Mapping[str, str], pid: int) -> float:
    """Seconds within which the watchdog must be fed; 0 if there is no watchdog."""
    if environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return 0.0
    interval = environ.get("WATCHDOG_USEC", "0")
    if not (interval.isdecimal() and len(interval) < 20):  # fits into 64 bits
        raise StartError(
            f"WATCHDOG_USEC={interval!r} is no number of microseconds: unset it, or let "
            "the service manager set it"
        )
    return int(interval) / 1e6


def _is_same_socket(path: Path, other: Path) -> bool:
    try:
        found = path.stat()
        return stat.S_ISSOCK(found.st_mode) and os.path.samestat(found, other.stat())
    except (OSError, ValueError):  # removed, or an abstract socket
        return False
