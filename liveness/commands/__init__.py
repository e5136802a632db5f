"""The commands that speak to a running sidecar, each as a client like any other."""

import os
from pathlib import Path

from liveness.errors import LivenessError


class CommandError(LivenessError):
    """A command cannot go on. The person's to mend; the sidecar is as it was."""


class NoSidecar(CommandError):
    """Nothing answers where the sidecar should be."""


def unreachable(
    socket_path: Path, error: OSError, *, at: Path | None = None
) -> CommandError:
    """Why nothing could be reached at *socket_path*, and what to do about it.

    Args:
        socket_path: The sidecar's socket.
        error: What came of connecting.
        at: The socket that was tried, if it is the one beside it.
    """
    if isinstance(error, PermissionError):
        told = f"not allowed to connect to {at or socket_path}"
        return CommandError(f"{told}: be its user, or of its group")
    if isinstance(error, TimeoutError):
        told = f"what listens at {at or socket_path} does not answer"
        return CommandError(
            f"{told}: see the sidecar's log, or name another with --socket"
        )
    told = f"no sidecar at {socket_path}"
    if not isinstance(error, FileNotFoundError | ConnectionRefusedError):
        told += f" ({os.strerror(error.errno or 0)})"
    return NoSidecar(
        f"{told}: start it with `liveness serve`, or name another with --socket"
    )
