"""Accepts connections, and keeps trying while the process has no room for more.

Without a file descriptor or memory for another connection, new ones wait in the backlog,
and open ones are served. The kernel does not report when there is room again, so accepting
is tried ten times a second, and logged once a minute.
"""

import errno
import select
import socket
from collections import Counter
from typing import Final

import structlog
import trio

from liveness.service.common.logs import REPEAT_LOG_S, LogThrottle

PAUSE_S: Final = 0.1
# Errors of a connection that died before accept(2) returned it, or that a firewall
# refused: skip it.
RETRYABLE_ACCEPT_ERRNOS: Final = frozenset(
    {
        errno.ECONNABORTED, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN,
        errno.ENETUNREACH, errno.ENONET, errno.ENOPROTOOPT, errno.EOPNOTSUPP,
        errno.EPERM, errno.EPROTO,
    }
)  # fmt: skip
NO_ROOM_ERRNOS: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
)

_log = structlog.get_logger("socket")


class Acceptor:
    """Accepts the connections of one listening socket, which is made non-blocking.

    The caller closes it. The log and the metrics know it by *name*. *put_off* counts how
    often there was no room.
    """

    def __init__(
        self, listener: socket.socket, name: str, put_off: Counter[str]
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._name = name
        self._put_off = put_off
        self._every = LogThrottle(REPEAT_LOG_S, clock=trio.current_time)

    def has_waiting(self) -> bool:
        poll = select.poll()  # select() does not take descriptors above 1,023
        poll.register(self._listener, select.POLLIN)
        return bool(poll.poll(0))

    async def accept(self) -> socket.socket:
        """Wait for the next connection; it is non-blocking."""
        while True:
            try:
                await trio.lowlevel.wait_readable(self._listener)
            except trio.ClosedResourceError:
                continue  # another socket replaced it under the same descriptor
            # At a stop, leave the connection in the backlog for the next process.
            await trio.lowlevel.checkpoint_if_cancelled()
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno in RETRYABLE_ACCEPT_ERRNOS:
                    continue
                if error.errno not in NO_ROOM_ERRNOS:
                    raise
                self._put_off[self._name] += 1
                self._every(
                    _log.warning,
                    "no connection can be accepted now; open ones go on, new ones "
                    "wait: raise the limit of open files, or end some connections",
                    key=error.errno,
                    socket=self._name,
                    error=error.strerror,
                )
                await trio.sleep(PAUSE_S)
                continue
            sock.setblocking(False)
            return sock
