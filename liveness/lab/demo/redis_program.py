"""What the demo with several hosts needs of this machine: Redis, and its client."""

import importlib.util
import re
import shutil
import subprocess
from typing import Final

from liveness.errors import StartError

LEAST_VERSION: Final = 7  # the first with functions
PROGRAMS: Final = ("redis-server", "valkey-server")
ANSWER_S: Final = 10.0  # it takes milliseconds


def found_redis() -> str:
    """The path of redis-server, or of valkey-server.

    Raises:
        StartError: There is none, or it is too old, or coredis is missing.
    """
    if importlib.util.find_spec("coredis") is None:
        raise StartError(
            "the demo with several hosts needs the package coredis; run "
            "pip install 'liveness-sidecar[sidecar,cluster]'"
        )
    path = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if path is None:
        raise StartError(
            "the demo with several hosts needs redis-server, which is not on the PATH; "
            "run apt install redis-server"
        )
    version = _version(path)
    if version < LEAST_VERSION:
        raise StartError(
            f"{path} is version {version}, and the demo with several hosts needs "
            f"{LEAST_VERSION} or newer; install a newer Redis, or Valkey"
        )
    return path


def _version(path: str) -> int:
    """Its major version; 0 if it does not say."""
    try:
        shown = subprocess.run(
            [path, "--version"], capture_output=True, encoding="utf-8", timeout=ANSWER_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r"\bv=(\d+)", shown.stdout)
    return int(found[1]) if found else 0
