"""A gateway that any release of the client library can run: what it learns, a line each.

It is run as a file, with the package of a release in PYTHONPATH.
"""

import json
import sys

import anyio

import liveness

EVERY_S = 0.25


async def main(path: str) -> None:
    """Reports users until the silent one is offline and a timer has fired."""
    show(version=liveness.__version__)
    fired = anyio.Event()

    async def talk() -> None:
        while True:
            sidecar.keepalive("talks", conn=1)
            await anyio.sleep(EVERY_S)

    async with (
        liveness.connect(path, name="gw") as sidecar,
        anyio.create_task_group() as tasks,
    ):

        @sidecar.task("remind:")
        async def remind(timer: liveness.Timer) -> None:
            show(timer=[timer.key, timer.payload, timer.attempt])
            fired.set()

        sidecar.after("remind:talks", 0.2, "tea")
        sidecar.after("remind:cancelled", 0.2)
        sidecar.cancel("remind:cancelled")
        for conn, uid in enumerate(["talks", "silent", "leaves"], 1):
            sidecar.login(uid, conn=conn)
        await sidecar.flush()
        sidecar.logout("leaves", conn=3)
        tasks.start_soon(talk)
        async for end in sidecar.ended():
            show(end=[end.uid, end.conn, end.reason])
            break
        await fired.wait()
        await sidecar.flush()
        stats = sidecar.stats()
        show(stats=[stats.open, stats.links, stats.refused, stats.duplicates])
        tasks.cancel_scope.cancel()


def show(**learned: object) -> None:
    sys.stdout.write(json.dumps(learned) + "\n")


anyio.run(main, sys.argv[1], backend="trio")
