"""Where the sidecar's socket is."""

import os
from typing import Final

from liveness.errors import ReportError

MAX_SOCKET_PATH_BYTES: Final = 107  # sun_path, without its terminating 0


def socket_at(path: str | os.PathLike[str] | None) -> str:
    """Check the path of the sidecar's socket; look it up in the settings if None."""
    if path is None:
        from liveness.config.sources import socket_path  # slow, and rarely needed

        path = socket_path(None)
    socket = os.fsdecode(path)
    if not socket or "\0" in socket:
        raise ReportError(f"{socket!r} is not the path of a socket")
    if (size := len(os.fsencode(socket))) > MAX_SOCKET_PATH_BYTES:
        raise ReportError(
            f"the socket's path has {size} bytes, and at most {MAX_SOCKET_PATH_BYTES} "
            f"are possible: {socket}"
        )
    return socket
