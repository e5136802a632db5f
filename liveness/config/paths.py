"""The default paths of the socket and the state, which depend on the user.

A user without a runtime folder gets a folder in the temporary one. Another user may have
made one of that name there, so its owner and mode are checked before it is used.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from liveness.errors import ConfigError


def default_socket(environ: Mapping[str, str], unix_user: int) -> Path:
    """The path of the socket of the Unix user *unix_user*, which need not exist.

    Raises:
        ConfigError: Its folder fails `check_private`.
    """
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if unix_user == 0:
        folder = Path("/run/liveness")
    elif runtime.startswith("/"):  # the XDG specification ignores relative ones
        folder = Path(runtime) / "liveness"
    else:
        folder = private_folder(environ, unix_user)
        check_private(folder, unix_user)
    return folder / "gateway.sock"


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
        ConfigError: It cannot be made, or must be private and is not.
    """
    folder, unix_user = path.parent, os.geteuid()
    # Not by chmod afterwards: by then another folder may be at this path.
    before = os.umask(0o022)
    try:
        folder.mkdir(mode=0o700 if unix_user else 0o755)
    except FileExistsError:
        pass
    except OSError as error:
        message = f"{folder}: the socket's folder cannot be made ({error.strerror})"
        raise ConfigError(f"{message}; make it, or name another by --socket") from None
    finally:
        os.umask(before)
    if unix_user != 0 and folder == private_folder(os.environ, unix_user):
        check_private(folder, unix_user)  # another user may have made it


def private_folder(environ: Mapping[str, str], unix_user: int) -> Path:
    """The folder for the sockets of a user who has no runtime folder."""
    return Path(environ.get("TMPDIR") or "/tmp").absolute() / f"liveness-{unix_user}"


def check_private(folder: Path, unix_user: int) -> None:
    """Check that a folder, if it exists, belongs to *unix_user* and is closed to others.

    Raises:
        ConfigError: It exists and is not such a folder.
    """
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode):
        wrong = "is not a folder"
    elif found.st_uid != unix_user:
        wrong = f"belongs to user {found.st_uid}, not to {unix_user}"
    elif found.st_mode & 0o077:
        wrong = "is open to others"
    else:
        return
    raise ConfigError(f"{folder} {wrong}; remove it, or name a socket: --socket")
