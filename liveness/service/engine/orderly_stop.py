"""The stop of a sidecar, in order: what was read is written, answered and kept."""

from collections.abc import Callable
from functools import partial
from typing import Final

import structlog
import trio
import trio.lowlevel

from liveness.core.sessions.presence import Presence
from liveness.service.common.threads import in_thread
from liveness.service.engine.engine import Engine
from liveness.service.storage import clocks_file
from liveness.service.timers.state_writer import StateWriter

# Time limits of a stop: to read what links have sent, to write it to the disk (and then
# the clocks file), and to close links.
STOP_READING_S: Final = 0.5
STOP_WRITING_S: Final = 1.5
STOP_LINKS_S: Final = 1.5

_log = structlog.get_logger("sidecar")


class OrderlyStop:
    """Takes the steps of a stop, each within a time limit."""

    def __init__(
        self,
        engine: Engine,
        presence: Presence,
        log_writer: StateWriter,
        stop_streams: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._presence = presence
        self._log_writer = log_writer
        self._stop_streams = stop_streams

    async def stop_links(self) -> None:
        """Read what links have sent, wait for the disk, answer, and send `bye`."""
        with trio.move_on_after(STOP_READING_S):
            while not self._engine.drain():
                await trio.lowlevel.checkpoint()
        with trio.move_on_after(STOP_WRITING_S) as writing:
            await self._log_writer.flushed()
        if writing.cancelled_caught:
            is_log = bool(self._log_writer.records_pending)
            what = "the log" if is_log else "the timer commands"
            _log.error(
                f"stopped before {what} could be written; gateways send again what no "
                "pong covered",
                pending=self._log_writer.pending,
                error=self._log_writer.failure,
            )
        await self.close_links()

    async def close_links(self) -> None:
        self._engine.close_links("the sidecar stops")
        self._stop_streams()
        with trio.move_on_after(STOP_LINKS_S):
            await self._engine.all_closed.wait()

    async def write_clocks(self) -> None:
        """Write the remaining time of all users, and the state's clock, for the next start."""
        await self._write_clocks_file()
        with trio.move_on_after(STOP_WRITING_S):
            await self._log_writer.store_clock()

    async def _write_clocks_file(self) -> None:
        if self._log_writer.log_failure is not None:
            return  # the file would name a seq that is not in the log
        with trio.move_on_after(STOP_WRITING_S) as writing:
            await self._log_writer.flushed_for(None)
        if writing.cancelled_caught:
            return
        at, store = self._engine.instant(), self._log_writer.store
        write = partial(
            clocks_file.write,
            store.folder,
            log=store.log,
            seq=self._log_writer.durable_seq,
            at_ms=at.state_ms,
            clocks=self._presence.wheel.clocks(at.now, at.mono),
        )
        try:
            if not store.is_in_place:
                raise OSError(f"{store.path} is not the log that is open")
            with trio.fail_after(STOP_WRITING_S):
                await in_thread(write)
        except (OSError, trio.TooSlowError) as error:
            _log.error(
                "the clocks file could not be written; at the next start every user "
                "gets a fresh timeout",
                error=str(error) or self._log_writer.failure,
            )
