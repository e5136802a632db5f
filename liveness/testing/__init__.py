"""A sidecar for the tests of gateways: the real core, with a script for clock and disk.

Example::

    async with scripted_sidecar() as script:
        async with liveness.connect(script.path, name="gw-1") as sidecar:
            sidecar.login("ada", conn=1)
            await script.online("ada")
            await script.pass_time(30)
            async for end in sidecar.ended():
                ...  # ada, for silence

Who is online, which timers fire, what is refused and what is recorded is decided by the
very code that the sidecar runs, and the gateway meets it on a Unix socket. Only time,
disk and faults are the script's. It runs under asyncio and trio, also with trio's
`MockClock`. Tests without an event loop have one in a thread::

    with anyio.from_thread.start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(scripted_sidecar()) as script:
            portal.call(script.pass_time, 30)

Time is the script's alone: it moves by `pass_time`, all at once. Timers fire at their
moment, as long as the sidecar runs, and each fires anew if it is not answered: whoever
is to answer needs a step of time that ends there. While it passes, gateways
that are connected keep what they promised by `ping`, and say nothing. A gateway's own
clock, by which it collects, connects again and tells ages, is that of its event loop.

What has no verb here is brought about as it comes about in earnest:

- A `moved`: another gateway, `connect(script.path, name="gw-2")`, logs the user in.
- A late record of an older connection: `with script.disk_full()`, let its time pass and
  log the user in again; the record comes afterwards.
- A timer that comes again: answer `fail`, or let `run_timeout` pass; then its wait.
- A timer that fires though it was cancelled: `with script.disk_full()`, let its time pass
  and cancel it.
- A pong that never comes: `with script.disk_full()`, report something; `drop` or `crash`.
- A record that comes twice: `drop` before it is acknowledged; a gap, by `trim` as well.
"""

# Imports: compiled, core, errors, host_clock.
# Never: trio, sqlite3, starlette, structlog.

from liveness.testing.scripted import (
    MAX_REPLIES,
    START_WALL_MS,
    Event,
    ScriptedSidecar,
    Session,
    Timer,
    scripted_sidecar,
)

__all__ = [
    "MAX_REPLIES",
    "START_WALL_MS",
    "Event",
    "ScriptedSidecar",
    "Session",
    "Timer",
    "scripted_sidecar",
]
