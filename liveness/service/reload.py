"""The settings, read anew while the sidecar runs: who may do what, the token, the level.

What an operator changes in the middle of the day takes effect; everything else waits for
a restart, which loses nothing, and is named. Settings that are wrong change nothing at
all. Links that were let in stay, and requests, but for streams by a token that was replaced.

A file may be on a network mount, and a user be known to a name service; either may not
answer. So they are read in a thread, which is left behind where that takes too long; what
it still reads is not used. A few may be left behind, so that a token can be replaced once
its file can be read.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import structlog
import trio

from liveness.config.settings import SETTINGS, Config
from liveness.core.access import Access
from liveness.errors import LivenessError
from liveness.service.common import logs
from liveness.service.common.threads import in_thread
from liveness.service.components import SidecarService
from liveness.service.http.sign_in import Token, read_token
from liveness.service.links.credentials import access_to

# Settings that take effect; beside them what is in the file of the token.
AT_ONCE: Final = (
    *(setting.name for setting in SETTINGS if setting.section == "access"),
    "logging.level",
)
READ_S: Final = 10.0
# Threads that read, and nearly always wait for a file that never answers.
MOST_READINGS: Final = 4

_log = structlog.get_logger("settings")


class Reloader:
    """Has a sidecar go on with new settings as far as it can.

    Args:
        config: The settings in effect.
        read: Reads them anew.
        sidecar: Who goes on with them.
        group: That of the gateways' socket.
    """

    def __init__(
        self,
        config: Config,
        read: Callable[[], Config],
        sidecar: SidecarService,
        *,
        group: int,
    ) -> None:
        self._config = config
        self._read = read
        self._sidecar = sidecar
        self._group = group
        # A thread that was left behind keeps its place until it ends.
        self._limiter = trio.CapacityLimiter(MOST_READINGS)

    async def reload(self) -> None:
        """Read the settings, and apply them; what became of it is logged."""
        if not self._limiter.available_tokens:
            _log.error(
                "the settings are not read, as earlier readings have still not ended; "
                "mend the mount or the name service that they wait for, or restart",
                readings=MOST_READINGS,
            )
            return
        try:
            with trio.fail_after(READ_S):
                wanted, access, token = await in_thread(
                    self._read_all, abandon_on_cancel=True, limiter=self._limiter
                )
        except trio.TooSlowError:
            _log.error(
                "the settings could not be read in time, and nothing was changed; see "
                "that their files and the users in [access] can be looked up, and have "
                "them read again",
                limit_s=READ_S,
            )
        except LivenessError as error:
            _log.error(
                "the settings are wrong, and nothing was changed; correct them and have "
                "them read again",
                error=str(error),
            )
        else:
            self._apply(wanted, access, token)

    def _read_all(self) -> tuple[Config, Access, Token | None]:
        wanted = self._read()
        access = access_to(wanted.access, group=self._group)
        return wanted, access, read_token(self._config.http.token_file)

    def _apply(self, wanted: Config, access: Access, token: Token | None) -> None:
        was, sidecar = self._config, self._sidecar
        sidecar.engine.book.access = access
        is_new_token = bool(sidecar.token and token and sidecar.token.become(token))
        if is_new_token:
            sidecar.streams.end_disallowed()
        level = wanted.logging.level
        # What changed is said before one that would not let it through.
        logs.set_level(min(level, was.logging.level, key=logs.urgency))
        self._config = replace(
            was,
            access=wanted.access,
            logging=replace(was.logging, level=level),
        )
        _log.info(
            "settings read anew",
            changed=_different(was, self._config),
            new_token=is_new_token,
            after_a_restart=_different(self._config, wanted),
        )
        logs.set_level(level)


def _different(one: Config, other: Config) -> Sequence[str]:
    """The names of the settings that two have different values of."""
    return [
        setting.name
        for setting in SETTINGS
        if setting.value_in(one) != setting.value_in(other)
    ]
