"""Reloads the settings at SIGHUP: access, the HTTP token and the log level take effect.

Other changed settings are logged as waiting for a restart. If any setting is invalid,
nothing changes. Open links and requests stay; streams end if their token was replaced.

A settings file may be on a network mount, and users in a name service, and either may hang.
So both are read in a thread, which is abandoned after `READ_S`; its result is dropped. The
next reload waits for its end.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import structlog
import trio

from liveness.config.outlet_settings import OUTLETS
from liveness.config.settings import Config
from liveness.core.access import Access
from liveness.errors import LivenessError
from liveness.service.common import logs
from liveness.service.common.threads import in_thread
from liveness.service.components import SidecarService
from liveness.service.http.bearer import Token, read_token
from liveness.service.links.credentials import access_to

READ_S: Final = 10.0

_log = structlog.get_logger("settings")


class Reloader:
    """Applies changed settings to a running sidecar.

    *group* is the group number of the gateways' socket.
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
        # One at a time; an abandoned thread counts until it ends.
        self._limiter = trio.CapacityLimiter(1)

    async def reload(self) -> None:
        if not self._limiter.available_tokens:
            _log.error(
                "the settings are not reloaded, as an earlier reload still hangs; repair "
                "the mount or the name service that it waits for, or restart",
            )
            return
        try:
            with trio.fail_after(READ_S):
                config, access, token = await in_thread(
                    self._read_all, abandon_on_cancel=True, limiter=self._limiter
                )
        except trio.TooSlowError:
            _log.error(
                "the settings could not be read in time, and nothing was changed; make "
                "sure that their files and the users in [access] can be looked up, and "
                "reload again",
                limit_s=READ_S,
            )
        except LivenessError as error:
            _log.error(
                "the settings are wrong, and nothing was changed; correct them, and reload "
                "again",
                error=str(error),
            )
        else:
            self._apply(config, access, token)

    def _read_all(self) -> tuple[Config, Access, Token | None]:
        config = self._read()
        access = access_to(config.access, group=self._group)
        return config, access, read_token(self._config.http.token_file)

    def _apply(self, config: Config, access: Access, token: Token | None) -> None:
        previous, sidecar = self._config, self._sidecar
        sidecar.parts.registry.access = access
        is_new_token = bool(
            sidecar.http.token and token and sidecar.http.token.replace_with(token)
        )
        if is_new_token:
            sidecar.streams.end_disallowed()
        level = config.logging.level
        # Log the change at the lower of both levels, or the new one may hide it.
        logs.set_level(min(level, previous.logging.level, key=logs.urgency))
        self._config = replace(
            previous,
            access=config.access,
            logging=replace(previous.logging, level=level),
        )
        _log.info(
            "settings read anew",
            changed=_different(previous, self._config),
            new_token=is_new_token,
            after_a_restart=_different(self._config, config),
        )
        logs.set_level(level)


def _different(config: Config, other: Config) -> list[str]:
    """The names of the settings that differ; for outlets, of their sections."""
    before, after = (
        {setting.name: setting.value_in(of) for setting in of.settings()}
        for of in (config, other)
    )
    names = [n for n in before | after if before.get(n) != after.get(n)]
    is_outlet = tuple(f"{section}." for section in OUTLETS)
    return [
        *dict.fromkeys(
            name.rpartition(".")[0] if name.startswith(is_outlet) else name
            for name in names
        )
    ]
