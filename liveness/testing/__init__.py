"""A sidecar for the tests of gateways: the real rules, with a scripted clock and disk.

Example::

    async with scripted_sidecar() as script:
        async with liveness.connect(script.path, name="gw-1") as sidecar:
            sidecar.login("ada", conn=1)
            await script.online("ada")
            await script.pass_time(30)
            async for end in sidecar.ended():
                ...  # ada, for silence

The sidecar's own code decides who is online, which timers fire, and what is refused and
recorded. The gateway connects to it on a Unix socket. Only time, disk and faults are
scripted. It runs under asyncio and trio, also with trio's `MockClock`. Tests without an
event loop can run one in a thread::

    with anyio.from_thread.start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(scripted_sidecar()) as script:
            portal.call(script.pass_time, 30)

Only `pass_time` moves the scripted time, all at once. Timers fire at their moment while
the sidecar runs. A timer without an answer fires again, even within one `pass_time`: if
your gateway is to answer an attempt, let time pass only until that attempt is due. While
time passes, connected gateways count as keeping their promised `ping`, and report
nothing. A gateway's own clock, by which it collects, reconnects and measures ages, is
that of its event loop.

Some situations have no function of their own:

- A `moved`: another gateway, `connect(script.path, name="gw-2")`, logs the user in.
- A late record of an older connection: within `script.disk_full()`, let its timeout pass
  and log the user in again; the record comes afterwards.
- A timer that comes again: answer `fail`, or let `run_timeout` pass; then the wait of the
  retry policy.
- A timer that fires although it was cancelled: within `script.disk_full()`, let its time
  pass and cancel it.
- A pong that never comes: within `script.disk_full()`, report something; then `drop` or
  `crash`.
- A watch with `settle_s`: it counts on the wall clock of the host, by which scripted records
  are long past. An offline comes after 0.25 s in which nothing arrived.
- A record that comes twice: `drop` before it is acknowledged. A gap: `trim` as well.
"""

# Imports: config, core, core.links, core.timers, core.wheel, core.wire, errors,
#   host_clock.
# Never: trio, sqlite3, starlette, structlog.

from liveness.testing.scripted import (
    MAX_REPLIES,
    Event,
    ScriptedSidecar,
    Session,
    Timer,
    scripted_sidecar,
)
from liveness.testing.scripted_host import START_WALL_MS

__all__ = [
    "MAX_REPLIES",
    "START_WALL_MS",
    "Event",
    "ScriptedSidecar",
    "Session",
    "Timer",
    "scripted_sidecar",
]
