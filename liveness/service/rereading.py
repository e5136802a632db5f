"""The settings, read anew while the sidecar runs: who may do what, the token, the level.

What an operator changes in the middle of the day takes effect; everything else waits for
a restart, which loses nothing, and is named. Settings that are wrong change nothing at
all. Links and requests that were let in stay.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import structlog

from liveness.config import SETTINGS, Config
from liveness.errors import LivenessError
from liveness.service import logs
from liveness.service.peers import access_to
from liveness.service.sidecar import Sidecar
from liveness.service.tokens import read_token

# Settings that take effect; beside them what is in the file of the token.
AT_ONCE: Final = (
    *(setting.name for setting in SETTINGS if setting.section == "access"),
    "logging.level",
)

_log = structlog.get_logger("settings")


def reread(
    config: Config, read: Callable[[], Config], sidecar: Sidecar, *, group: int
) -> Config:
    """Read the settings anew, and let *sidecar* go on with them as far as it can.

    Args:
        config: Those in effect.
        read: Reads them.
        sidecar: Who goes on with them.
        group: That of the gateways' socket.
    Returns:
        Those in effect from now on.
    """
    try:
        wanted = read()
        access = access_to(wanted.access, group=group)
        token = read_token(config.http.token_file)
    except LivenessError as error:
        _log.error(
            "the settings are wrong, and nothing was changed; correct them and have "
            "them read again",
            error=str(error),
        )
        return config
    sidecar.engine.book.access = access
    is_new_token = bool(sidecar.token and token and sidecar.token.become(token))
    logs.set_level(wanted.logging.level)
    now = replace(
        config,
        access=wanted.access,
        logging=replace(config.logging, level=wanted.logging.level),
    )
    _log.info(
        "settings read anew",
        changed=_different(config, now),
        new_token=is_new_token,
        after_a_restart=_different(now, wanted),
    )
    return now


def _different(one: Config, other: Config) -> Sequence[str]:
    """The names of the settings that two have different values of."""
    return [
        setting.name
        for setting in SETTINGS
        if setting.value_in(one) != setting.value_in(other)
    ]
