"""Reads timers that come due, and those of the coming hour, from the table.

The engine decides; the reading takes a thread, since it may wait for the disk. One
reading at a time: what is settled meanwhile is told apart by that (`core.timetable`).
"""

import sqlite3
from contextlib import ExitStack
from functools import partial
from typing import Final

import structlog
import trio

from liveness.core.timer_scheduler import TimerScheduler
from liveness.service.common.logs import SAY_AGAIN_S, Every
from liveness.service.common.threads import in_thread
from liveness.service.engine.engine import Engine
from liveness.service.storage import timer_reader
from liveness.service.storage.database import reading
from liveness.service.storage.timer_store import TimerStore

# Timers judged at once: some milliseconds of reading, and a page of the log.
JUDGED_AT_ONCE: Final = 1_000
RETRY_S: Final = 1.0

_log = structlog.get_logger("timers")


async def keep_time(engine: Engine, table: TimerStore) -> None:
    """Have timers read whenever the engine wants it, for ever.

    Args:
        engine: Judges them.
        table: Where they are read.
    """
    every = Every(SAY_AGAIN_S, clock=trio.current_time)
    while True:
        try:
            with ExitStack() as stack:
                db = stack.enter_context(reading(table.path))
                while True:
                    await engine.timers_wanted.wait()
                    while await _read_due(engine, db) | await _fill(engine, db):
                        engine.timers_unread = None
        except sqlite3.Error as error:
            engine.timetable.leave()
            engine.timers_unread = f"the timers' table cannot be read: {error}"
            say = "timers cannot be read; it is tried again"
            every(_log.warning, say, key=say, error=str(error))
            await trio.sleep(RETRY_S)
            engine.timers_wanted.notify()


async def _read_due(engine: Engine, db: sqlite3.Connection) -> bool:
    """Have some that are due judged; return whether there were any."""
    numbers = engine.take_timers(JUDGED_AT_ONCE)
    if not numbers:
        return False
    rows, unreadable = await in_thread(partial(timer_reader.due, db, numbers))
    for timer in unreadable:
        _log.error(
            "a timer is damaged on disk: it does not fire, and stays there until it is "
            "ended (`liveness timers cancel --damaged`)",
            timer=timer.id,
            gateway=timer.gateway,
            key=timer.key,
        )
    engine.judge_timers(rows)
    return True


async def _fill(engine: Engine, db: sqlite3.Connection) -> bool:
    """Have the ring reach further; return whether there was more to load."""
    timetable: TimerScheduler = engine.timetable
    window = timetable.window()
    if window is None:
        return False
    timetable.fill(window, await in_thread(partial(timer_reader.coming, db, window)))
    engine.loaded_timers()
    return True
