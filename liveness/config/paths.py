"""The default paths of the socket and the state, which depend on the user."""

import os
from collections.abc import Mapping
from pathlib import Path

from liveness.errors import ConfigError


def default_socket(environ: Mapping[str, str], unix_user: int) -> Path:
    """The path of the socket of the Unix user *unix_user*, which need not exist.

    Raises:
        ConfigError: The environment has no XDG_RUNTIME_DIR to make it in.
    """
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if unix_user == 0:
        return Path("/run/liveness/gateway.sock")
    if runtime.startswith("/"):  # the XDG specification ignores relative ones
        return Path(runtime) / "liveness/gateway.sock"
    raise ConfigError(
        "there is no XDG_RUNTIME_DIR to make the socket in; name one: --socket"
    )


def default_state(environ: Mapping[str, str], unix_user: int) -> Path:
    """The state folder of the Unix user *unix_user*, which need not exist.

    Raises:
        ConfigError: The environment has no HOME to keep it in.
    """
    if unix_user == 0:
        return Path("/var/lib/liveness")
    state, home = environ.get("XDG_STATE_HOME", ""), environ.get("HOME", "")
    if state.startswith("/"):
        return Path(state) / "liveness"
    if home.startswith("/"):
        return Path(home) / ".local/state/liveness"
    raise ConfigError("there is no HOME to keep the state in; name a folder: --state")


def make_socket_folder(path: Path) -> None:
    """Make the folder of the socket at *path*, if its parent exists.

    The folder of root is open to all: its gateways run as other users, and the mode of
    the socket restricts access. Any other user's folder is private.

    Raises:
        ConfigError: It cannot be made.
    """
    folder = path.parent
    # Not by chmod afterwards: by then another folder may be at this path.
    before = os.umask(0o022)
    try:
        folder.mkdir(mode=0o700 if os.geteuid() else 0o755)
    except FileExistsError:
        pass
    except OSError as error:
        message = f"{folder}: the socket's folder cannot be made ({error.strerror})"
        raise ConfigError(f"{message}; make it, or name another by --socket") from None
    finally:
        os.umask(before)
