"""A gateway and its users on one link to the sidecar, and who watches them all."""

from collections.abc import Iterator
from functools import partial
from typing import Final

import trio

from liveness.demo.gateway import HOST, Gateway
from liveness.demo.referee import Referee
from liveness.demo.screen import Feed, say, status, summary
from liveness.demo.sidecar import Record, Sidecar
from liveness.demo.users import last_silence_s, live, planned

NAME: Final = "demo"
MOST_GUESTS: Final = 100
TICK_S: Final = 2.0  # between two lines of status
LOOK_S: Final = 0.1


class Stage:
    """All of the demo but the sidecar itself.

    Args:
        sidecar: The link to it.
        users: How many are simulated.
        seconds: How long they are.
        timeout_s: The one that was said in hello.
    """

    def __init__(
        self, sidecar: Sidecar, *, users: int, seconds: float, timeout_s: float
    ) -> None:
        timing = {"timeout_s": timeout_s, "flush_s": sidecar.flush_s}
        self._users = list(planned(users, seconds=seconds, **timing))
        self._seconds = seconds
        self._timeout_s = timeout_s
        self._sidecar = sidecar
        self._gateway = Gateway(sidecar, name=NAME, most=users + MOST_GUESTS)
        self._feed = Feed()
        plans = {user.uid: user.behaviour for user in self._users}
        self.referee = Referee(plans, **timing)
        self.account: list[str] = []  # written at the end

    async def play(self, *hints: str) -> None:
        """Lets it all happen, until the time is over; says the *hints* first."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sidecar.run, self._told)
            port: int = await nursery.start(self._gateway.serve)
            join = f'nc {HOST} {port}, then type {{"login": "ada"}}'
            await say(f"    join the room:     {join}", *hints, *self._note())
            lives = partial(live, timeout_s=self._timeout_s, left=self._left)
            for user in self._users:
                nursery.start_soon(lives, user, port)
            nursery.start_soon(self._look)
            nursery.start_soon(self._show)
            await trio.sleep(self._seconds)
            self._look_now()
            self.account += summary(self.referee, guests=self._guests())
            nursery.cancel_scope.cancel()

    def _note(self) -> Iterator[str]:
        last_s = last_silence_s(self._seconds, self._timeout_s, self._sidecar.flush_s)
        if last_s < self._seconds / 2:
            yield (
                f"    what cannot be shown: silence that begins after {last_s:.1f} s, as "
                "it would outlast the demo"
            )

    # --- what happens -------------------------------------------------------------

    def _told(self, record: Record) -> None:
        connection = self._gateway.room.get(record.get("conn", -1))
        heard = connection.heard if connection else None
        self.referee.told(record, heard=heard, at=trio.current_time())
        self._feed.add(record)
        self._gateway.told(record)

    def _left(self, uid: str) -> None:
        self.referee.left(uid, trio.current_time())

    # --- who watches --------------------------------------------------------------

    async def _look(self) -> None:
        while True:
            self._look_now()
            await trio.sleep(LOOK_S)

    def _look_now(self) -> None:
        heard = ((one.uid, one.heard) for one in self._gateway.room.values())
        self.referee.look(heard, trio.current_time())

    async def _show(self) -> None:
        began = trio.current_time()
        while True:
            await trio.sleep(TICK_S)
            seconds = trio.current_time() - began
            online, said = len(self._gateway.room), self._gateway.lines_said
            line = status(seconds, online=online, said=said, referee=self.referee)
            await say(*self._feed.lines(), line)

    def _guests(self) -> int:
        """How many are online whom nobody simulates."""
        uids = (one.uid for one in self._gateway.room.values())
        return sum(uid not in self.referee.online for uid in uids)
