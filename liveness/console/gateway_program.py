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


# What the placeholders that every program needs stand for.
MEANINGS: Final = {
    "socket": "the path of the sidecar's socket",
    "port": "the port for its users",
}


def gateway_words(
    command: str, required: Sequence[str] = ("socket", "port")
) -> list[str]:
    """Split a command as a shell would; its program becomes an absolute path.

    Args:
        command: As typed in a shell.
        required: The placeholders that it must contain.
    Raises:
        ConfigError: It is no command, a placeholder is unknown or missing, or there is
            no such program.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"the gateway's command {command!r:.200}: {error}") from None
    if not words:
        raise ConfigError("the gateway's command is empty; name a program to run")
    found = PLACEHOLDER.findall(command)
    for name in found:
        if name not in PLACEHOLDERS:
            known = ", ".join(f"{{{each}}}" for each in PLACEHOLDERS)
            raise ConfigError(
                f"the gateway's command has {{{name}}}, which is none of {known}"
            )
    for name in required:
        if name not in found:
            raise ConfigError(
                f"the gateway's command lacks {{{name}}}: write it where your program "
                f"takes {MEANINGS[name]}"
            )
    program = shutil.which(words[0])
    if program is None:
        raise ConfigError(
            f"there is no program {words[0]!r:.200}: build it first, or name its path"
        )
    return [str(Path(program).absolute()), *words[1:]]


def filled(words: Sequence[str], values: Mapping[str, object]) -> list[str]:
    """The words with a value in the place of each placeholder."""

    def value(found: re.Match[str]) -> str:
        return str(values.get(found[1], found[0]))

    return [PLACEHOLDER.sub(value, word) for word in words]
