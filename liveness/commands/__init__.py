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
    told = f"no sidecar at {socket_path}"
    if not isinstance(error, FileNotFoundError | ConnectionRefusedError):
        # A time-out has no number, and its text is of the library's choice.
        told += f" ({os.strerror(error.errno) if error.errno else 'no answer'})"
    return NoSidecar(
        f"{told}: start it with `liveness serve`, or name another with --socket"
    )
