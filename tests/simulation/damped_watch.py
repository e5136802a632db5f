"""A program that watches by the project's library, and hears of no short absence."""

import trio

from liveness.client.watcher import Watch
from tests.promises.run_history import Delivered
from tests.simulation.situations import reached
from tests.simulation.world import World


async def watch_damped(world: World, settle_s: float) -> None:
    """Note what the loop is given, until cancelled."""
    history, last_at = world.history, 0.0
    watch = Watch(
        str(world.machine.socket),
        name="damped",
        settle_s=settle_s,
        pause_between=world.random_of("damped").uniform,
        wall_s=lambda: world.machine.host_time(trio.current_time()).unix_s,
    )
    async for record in watch:
        now = trio.current_time()
        if record["kind"] == "offline" and now - last_at > settle_s:
            reached("client: an absence settles while nothing else is decided")
        last_at = now
        history.damped.append(Delivered(now, dict(record)))
