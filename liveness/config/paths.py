"""Where things are when nobody says where: the default paths of a user.

The temporary folder is everyone's, and whoever comes first may have taken a name in it:
so the folder of a user who has no runtime folder is checked before it is trusted.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from liveness.errors import ConfigError


def default_socket(environ: Mapping[str, str], uid: int) -> Path:
    """The socket of user *uid*, whether it is there or not.

    Raises:
        ConfigError: Its folder would be one that others may write to.
    """
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if uid == 0:
        folder = Path("/run/liveness")
    elif runtime.startswith("/"):  # a relative one is invalid, says its specification
        folder = Path(runtime) / "liveness"
    else:
        folder = private_folder(environ, uid)
        check_private(folder, uid)
    return folder / "gateway.sock"


def default_state(environ: Mapping[str, str], uid: int) -> Path:
    """The state folder of user *uid*, whether it is there or not.

    Raises:
        ConfigError: The environment names no home to keep it in.
    """
    if uid == 0:
        return Path("/var/lib/liveness")
    state, home = environ.get("XDG_STATE_HOME", ""), environ.get("HOME", "")
    if state.startswith("/"):
        return Path(state) / "liveness"
    if home.startswith("/"):
        return Path(home) / ".local/state/liveness"
    raise ConfigError("there is no HOME to keep the state in; name a folder: --state")


def make_socket_folder(path: Path) -> None:
    """Makes the folder of the socket at *path*, if nothing but that folder is missing.

    Open to all for root, whose gateways run as other users and are kept out by the
    socket's own mode; closed to others for anyone else.

    Raises:
        ConfigError: It cannot be made, or is not the private one it should be.
    """
    folder, uid = path.parent, os.geteuid()
    # Not by a chmod afterwards: by then another folder may have taken its place.
    before = os.umask(0o022)
    try:
        folder.mkdir(mode=0o700 if uid else 0o755)
    except FileExistsError:
        pass
    except OSError as error:
        told = f"{folder}: the socket's folder cannot be made ({error.strerror})"
        raise ConfigError(f"{told}; make it, or name another by --socket") from None
    finally:
        os.umask(before)
    if uid != 0 and folder == private_folder(os.environ, uid):
        check_private(folder, uid)  # again: somebody may have made it meanwhile


def private_folder(environ: Mapping[str, str], uid: int) -> Path:
    """The folder for the sockets of a user who has no runtime folder."""
    return Path(environ.get("TMPDIR") or "/tmp").absolute() / f"liveness-{uid}"


def check_private(folder: Path, uid: int) -> None:
    """Refuses a folder that somebody else made, or could put a socket into.

    Raises:
        ConfigError: It is there and is not a folder of *uid*, closed to others.
    """
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode):
        wrong = "is not a folder"
    elif found.st_uid != uid:
        wrong = f"belongs to user {found.st_uid}, not to {uid}"
    elif found.st_mode & 0o077:
        wrong = "is open to others"
    else:
        return
    raise ConfigError(f"{folder} {wrong}; remove it, or name a socket: --socket")
