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


async def stop_links(
    engine: Engine, log_writer: StateWriter, stop_streams: Callable[[], None]
) -> None:
    """Read what links have sent, wait for the disk, answer, and send `bye`."""
    with trio.move_on_after(STOP_READING_S):
        while not engine.drain():
            await trio.lowlevel.checkpoint()
    with trio.move_on_after(STOP_WRITING_S) as writing:
        await log_writer.flushed()
    if writing.cancelled_caught:
        is_log = bool(log_writer.records_pending)
        what = "the log" if is_log else "the timer commands"
        _log.error(
            f"stopped before {what} could be written; gateways send again what no "
            "pong covered",
            pending=log_writer.pending,
            error=log_writer.failure,
        )
    await close_links(engine, stop_streams)


async def close_links(engine: Engine, stop_streams: Callable[[], None]) -> None:
    engine.close_links("the sidecar stops")
    stop_streams()
    with trio.move_on_after(STOP_LINKS_S):
        await engine.all_closed.wait()


async def write_clocks(
    engine: Engine, presence: Presence, log_writer: StateWriter
) -> None:
    """Write the remaining time of all users, and the state's clock, for the next start."""
    await _write_clocks_file(engine, presence, log_writer)
    with trio.move_on_after(STOP_WRITING_S):
        await log_writer.store_clock()


async def _write_clocks_file(
    engine: Engine, presence: Presence, log_writer: StateWriter
) -> None:
    if log_writer.writer.failure is not None:
        return  # the file would name a seq that is not in the log
    with trio.move_on_after(STOP_WRITING_S) as writing:
        await log_writer.flushed_for(None)
    if writing.cancelled_caught:
        return
    at, store = engine.instant(), log_writer.store
    write = partial(
        clocks_file.write,
        store.folder,
        log=store.log,
        seq=log_writer.durable_seq,
        at_ms=at.state_ms,
        clocks=presence.wheel.clocks(at.now, at.mono),
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
            error=str(error) or log_writer.failure,
        )
