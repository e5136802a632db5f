"""TCP connections of users who read nothing, and whether their other end is still there."""

import socket
from pathlib import Path
from typing import Final

TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ESTABLISHED: Final = "01"


def narrow_connection(port: int, within_s: float) -> socket.socket:
    """Connect with small segments and a small window: buffers on the way here are soon full."""
    narrow = socket.socket()
    narrow.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    narrow.settimeout(within_s)
    narrow.connect(("127.0.0.1", port))
    return narrow


def is_held(connection: socket.socket) -> bool:
    """Whether the other end of a connection is open, or a process still has it.

    Asking takes nothing from the connection. For bytes that are not read, the kernel keeps
    an end that was closed for some minutes more.
    """
    try:
        ports = [connection.getpeername()[1], connection.getsockname()[1]]
    except OSError:  # it was reset
        return False
    rows = [row.split() for table in TABLES for row in table.read_text().splitlines()]
    return any(
        row[3] == ESTABLISHED or row[9] != "0"  # the inode
        for row in rows
        if row[0] != "sl" and [int(end.split(":")[1], 16) for end in row[1:3]] == ports
    )
