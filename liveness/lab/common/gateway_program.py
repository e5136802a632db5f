"""The command of a gateway in any language, for the commands that run one.

    ./gateway --sidecar {socket} --name {name} --port {port}

The placeholders are filled in when it starts. Users of such a gateway speak the demo's
protocol: an object of JSON a line, as `liveness/lab/demo/gateway.py` takes it.
"""

import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from liveness.errors import ConfigError

# The sidecar's socket, the name for hello, the TCP port for users, and how many
# connections the gateway must accept at a time.
PLACEHOLDERS: Final = ("socket", "name", "port", "most")
PLACEHOLDER: Final = re.compile(r"\{(\w*)\}")


def gateway_words(command: str) -> list[str]:
    """Split a command as a shell would; its program becomes an absolute path.

    Raises:
        ConfigError: It is no command, or has an unknown placeholder or no {port}, or there
            is no such program.
    """
    found = PLACEHOLDER.findall(command)
    if "port" not in found or not {*found} <= {*PLACEHOLDERS}:
        known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        raise ConfigError(
            f"the gateway's command {command!r:.200} needs {{port}} where your program takes "
            f"the port for its users, and may have no others than {known}"
        )
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"the gateway's command {command!r:.200}: {error}") from None
    program = shutil.which(words[0])
    if program is None:
        raise ConfigError(
            f"there is no program {words[0]!r:.200}: build it first, or name its path"
        )
    return [str(Path(program).absolute()), *words[1:]]


def filled(words: Sequence[str], values: Mapping[str, object]) -> list[str]:
    return [
        PLACEHOLDER.sub(lambda found: str(values[found[1]]), word) for word in words
    ]
