"""Accepts connections, whatever the process is short of.

Where there is no descriptor or no memory for another connection, those who wait stay in
the backlog, and those who are there go on. It is tried again ten times a second, as
nothing tells when there is room, and said once a minute.
"""

import errno
import select
import socket
from collections import Counter
from typing import Final

import structlog
import trio

from liveness.service.common.logs import SAY_AGAIN_S, Every

PAUSE_S: Final = 0.1
# Linux passes on what befell the new connection meanwhile; the next one is taken. The list
# is that of accept(2), and what a firewall says.
_OVER: Final = frozenset(
    {
        errno.ECONNABORTED,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENONET,
        errno.ENOPROTOOPT,
        errno.EOPNOTSUPP,
        errno.EPERM,
        errno.EPROTO,
    }
)
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log = structlog.get_logger("socket")


class Acceptor:
    """Accepts what comes at one socket.

    Args:
        listener: Listening; it is made non-blocking, and stays open.
        name: What it is called in the log and in the metrics.
        put_off: Counts by that name how often there was no room.
    """

    def __init__(
        self, listener: socket.socket, name: str, put_off: Counter[str]
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._name = name
        self._put_off = put_off
        self._every = Every(SAY_AGAIN_S, clock=trio.current_time)

    def has_waiting(self) -> bool:
        """Whether somebody waits in the backlog at this moment."""
        looked = select.poll()  # of any number, which select() has not
        looked.register(self._listener, select.POLLIN)
        return bool(looked.poll(0))

    async def accept(self) -> socket.socket:
        """Wait for the next connection; it is non-blocking."""
        while True:
            try:
                await trio.lowlevel.wait_readable(self._listener)
            except trio.ClosedResourceError:
                continue  # its socket was made anew, and has the same descriptor
            # Whoever was not taken when that ended waits for the next process.
            await trio.lowlevel.checkpoint_if_cancelled()
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno in _OVER:
                    continue
                if error.errno not in _EXHAUSTED:
                    raise
                self._put_off[self._name] += 1
                self._every(
                    _log.warning,
                    "no connection can be accepted now; those that are there go on, the "
                    "others wait: raise the limit of open files, or end some",
                    key=error.errno,
                    socket=self._name,
                    error=error.strerror,
                )
                await trio.sleep(PAUSE_S)
                continue
            sock.setblocking(False)
            return sock
