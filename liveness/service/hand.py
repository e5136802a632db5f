"""The hand: turns the engine when there is something to do, and not more often."""

from typing import NoReturn

import trio

from liveness.service.engine import GATHER_S, Engine


async def turn_for_ever(engine: Engine) -> NoReturn:
    """Turn at once when something came, but `GATHER_S` apart, and when one is due."""
    while True:
        began = trio.current_time()
        engine.wanted.clear()
        due_at = engine.turn()
        # Gather first: whoever rings meanwhile wakes nobody. But not past what is due;
        # and in any case others get their turn.
        await trio.sleep_until(min(began + GATHER_S, due_at))
        if trio.current_time() < due_at:
            with trio.move_on_at(due_at):
                await engine.wanted.wait()
