"""Notices that the file of a socket or database was removed or replaced while open.

Nobody can connect to a socket whose file was removed, and commits to a removed database
are lost when the process ends. Neither gives an error. So once a second the files at the
paths are compared with those that are open. That takes a few `stat` calls, which the
kernel answers from memory: a thread would cost more.

A lost socket is created again. A lost database cannot be: only this process has its files
open. The sidecar keeps writing to them, logs what to do, and is not ready until the files
are put back.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog
import trio

from liveness.errors import ConfigError, StartError
from liveness.metrics.counts import Counts
from liveness.service.common.logs import REPEAT_LOG_S, LogThrottle
from liveness.service.links.sockets import UnixListener
from liveness.service.storage.private_folders import Identity, identity

# A gateway that finds no socket tries again within a second.
CHECK_EVERY_S: Final = 1.0

_STATE: Final = "state"

_log = structlog.get_logger("files")


class FileWatch:
    """Checks that sockets and state files are still at their paths."""

    def __init__(self, files: Mapping[Path, Identity], *, counts: Counts) -> None:
        self._files = files
        self._listeners: Mapping[str, UnixListener] = {}
        self._counts = counts
        self._log_throttled = LogThrottle(REPEAT_LOG_S, clock=trio.current_time)
        self._failures: dict[str, str] = {}  # by socket name, or `_STATE`

    @property
    def failures(self) -> list[str]:
        return [*self._failures.values()]

    async def run(self, listeners: Mapping[str, UnixListener]) -> None:
        """Check every `CHECK_EVERY_S`, forever; *listeners* by their names in the metrics."""
        self._listeners = listeners
        while True:
            self.check()
            await trio.sleep(CHECK_EVERY_S)

    def check(self) -> None:
        lost = [
            path for path, opened in self._files.items() if identity(path) != opened
        ]
        if lost:
            names = ", ".join(path.name for path in lost)
            self._report_loss(
                _STATE,
                f"state directory {lost[0].parent}: {names} removed or replaced while in "
                "use; put back what was there, or copy out what is open before this "
                "process ends: see The state is gone, in docs/runbook.md",
            )
        else:
            self._report_return(_STATE)
        for name, listener in self._listeners.items():
            if listener.is_reachable():
                self._report_return(name)
            else:
                self._create_again(name, listener)

    def _create_again(self, name: str, listener: UnixListener) -> None:
        try:
            listener.rebind()
        except (StartError, ConfigError) as error:
            self._report_loss(name, str(error))
            return
        if self._failures.pop(name, None) is None:
            self._counts.files_lost[name] += 1
        self._log_throttled(
            _log.error,
            "the file of a socket was removed or replaced, and nobody could connect; it "
            "was created again: find out what removes it",
            key=f"{name} anew",
            socket=name,
            path=str(listener.path),
        )

    def _report_loss(self, what: str, why: str) -> None:
        if what not in self._failures:
            self._counts.files_lost[what] += 1
        self._failures[what] = why
        self._log_throttled(
            _log.error, "what is in use is not where it was", key=what, why=why
        )

    def _report_return(self, what: str) -> None:
        if self._failures.pop(what, None) is not None:
            _log.warning("a lost file is back", what=what)
