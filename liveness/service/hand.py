"""The hand: turns the engine when there is something to do, and not more often."""

from typing import Final, NoReturn

import trio

from liveness.service.engine import Engine

# Reads are gathered for so long: 3,000 one-uid frames a second cost 8 % of a core
# with a wake-up each, and under 2 % gathered.
GATHER_S: Final = 0.010


async def turn_for_ever(engine: Engine) -> NoReturn:
    """Turn at once when something came, but at most every 10 ms, and when one is due."""
    while True:
        began = trio.current_time()
        due_at = engine.turn()
        with trio.move_on_at(due_at):
            await engine.wanted.wait()
        # Gather, but not past what is due. In any case others get their turn.
        await trio.sleep_until(min(began + GATHER_S, due_at))
