"""Do the paths of what is open still lead to it?

A socket whose file was removed is listened on, and nobody can connect; a database whose
file was removed takes commits that are gone with the process. Neither gives an error. So
the files at these paths are compared with those that were opened, once a second.

A look costs no disk: what is open keeps its name in the kernel's memory. It is not done in
a thread, which would cost more than the looks.

A socket is made anew. A database cannot be: what has to be kept is in files that only this
process has open, so it goes on writing to them, says what to do, and is not ready. Should
the files be put back, it is again.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog
import trio

from liveness.errors import ConfigError, StartError
from liveness.metrics import Counts
from liveness.service.common.logs import SAY_AGAIN_S, Every
from liveness.service.links.sockets import UnixListener
from liveness.service.storage.private_folders import Identity, identity

# Gateways that find no socket try again within a second.
LOOK_EVERY_S: Final = 1.0

_STATE: Final = "state"

_log = structlog.get_logger("files")


class FileWatch:
    """Looks whether sockets and the state are where they were opened.

    Args:
        files: Which files of the state were opened, by their paths.
        counts: Where losses are counted.
    """

    def __init__(self, files: Mapping[Path, Identity], *, counts: Counts) -> None:
        self._files = files
        self._listeners: Mapping[str, UnixListener] = {}
        self._counts = counts
        self._every = Every(SAY_AGAIN_S, clock=trio.current_time)
        self._lost: dict[str, str] = {}  # why, by what it is

    @property
    def failures(self) -> list[str]:
        """What is lost, and what to do about it."""
        return [*self._lost.values()]

    async def run(self, listeners: Mapping[str, UnixListener]) -> None:
        """Look for ever.

        Args:
            listeners: The Unix sockets, by their names in the metrics.
        """
        self._listeners = listeners
        while True:
            self.look()
            await trio.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        """Look once; make sockets anew that are lost."""
        lost = [path for path, was in self._files.items() if identity(path) != was]
        if lost:
            names = ", ".join(path.name for path in lost)
            self._lose(
                _STATE,
                f"state directory {lost[0].parent}: {names} removed or replaced while in "
                "use; put back what was there, or copy out what is open before this "
                "process ends: see The state is gone, in docs/runbook.md",
            )
        else:
            self._find(_STATE)
        for name, listener in self._listeners.items():
            if listener.is_reachable():
                self._find(name)
            else:
                self._make_anew(name, listener)

    def _make_anew(self, name: str, listener: UnixListener) -> None:
        try:
            listener.make_anew()
        except (StartError, ConfigError) as error:
            self._lose(name, str(error))
            return
        if name not in self._lost:
            self._counts.files_lost[name] += 1
        self._lost.pop(name, None)
        self._every(
            _log.error,
            "the file of a socket was removed or replaced, and nobody could connect; it "
            "was made anew: find out who does that",
            key=f"{name} anew",
            socket=name,
            path=str(listener.path),
        )

    def _lose(self, what: str, why: str) -> None:
        if what not in self._lost:
            self._counts.files_lost[what] += 1
        self._lost[what] = why
        self._every(_log.error, "what is in use is not where it was", key=what, why=why)

    def _find(self, what: str) -> None:
        if self._lost.pop(what, None) is not None:
            _log.warning("what was lost is back", what=what)
