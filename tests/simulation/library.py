"""Gateways that use the project's own Python library, on the simulation's time.

The visits and faults of such a gateway are those of any; `library_process` has what runs
for it. While the sidecar is paused, all of trio is: what a user does meanwhile is reported
later.
"""

from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final

import trio

import liveness
from tests.promises.run_history import Conn
from tests.simulation.library_process import Process
from tests.simulation.parties import HELD_S, Gateway
from tests.simulation.plan import MOST_REST_S, NOBODYS_KEY, GatewayPlan, LibraryPlan
from tests.simulation.situations import reached

if TYPE_CHECKING:
    from tests.simulation.world import World

FLUSHES: Final = 0.2  # the share of logins that are waited for
CLOSING_S: Final = 5.0  # a second for tasks, one for the last reports, and some


class Library(Gateway):
    """A gateway that uses the library; what that breaks is among the run's faults."""

    def __init__(self, world: "World", plan: GatewayPlan, library: LibraryPlan) -> None:
        super().__init__(world, plan)
        self.library = library
        self.random = world.random_of(f"library {plan.name}")
        self.unreachable_until = -inf
        self.wrote_at = -inf  # also a part of a frame is a sign of life
        self.twin: Process | None = None  # of its name, as after a wrong deploy
        self._process = Process(self)
        self._may_write = trio.Event()
        self._may_write.set()

    def breach(self, what: str) -> None:
        """Note a promise to the application that was broken."""
        line = f"client: {self.name} at {self.world.now:.3f}: {what}"
        self.world.history.faults.append(line)

    @property
    def is_faulty(self) -> bool:
        return self._is_disturbed or not self._process.has_link

    @property
    def _is_disturbed(self) -> bool:
        return super().is_faulty or self.is_blocked or self.twin is not None

    @property
    def is_blocked(self) -> bool:
        return not self._may_write.is_set()

    @property
    def _is_held(self) -> bool:
        return self.is_hung or self.world.is_paused or not self._process.is_running

    async def may_go_on(self) -> None:
        """Return once it runs, and its writes are taken."""
        while self.is_blocked:
            await self._may_write.wait()

    def verify(self) -> None:
        """Check at the end of all that nothing is left, if all is over."""
        if self.world.plan.consequences_s > MOST_REST_S:
            return
        # It may be that no record ends an older connection: see `docs/gateway.md`.
        conns = self.world.history.conns.values()
        newest = {str(it.uid): it for it in conns}
        oldest = {str(it.uid): it for it in reversed(conns)}
        older = [
            it
            for it in self.open.values()
            if newest[uid := str(it.uid)] is not it
            or self.world.history.may_lose_time(oldest[uid].opened_at, it.opened_at)
        ]
        if len(older) < len(self.open):
            self.breach(f"one of {self.open} is silent, and its end never came")
        api, left = self._process.sidecar, self._process.unconfirmed
        it = api.stats()
        if it.open != len(older) or it.pending or it.unconfirmed or it.refused or left:
            self.breach(f"at the end of all it has {it}, and is to say {left}")

    # --- what its users do ------------------------------------------------------

    def connect(self) -> None:
        self._process = Process(self, fresh=self._fresh)
        self.world.nursery.start_soon(self._process.run)

    def _new_conn(self) -> int:
        if self.library.conns == "its own":
            return self.world.new_conn()
        # Without one, the next login gets what would be the next.
        return self._process.sidecar.new_conn() + (self.library.conns == "none")

    def report(self, what: list[Any]) -> None:
        """Call the library, once it is there and runs."""
        if not self.is_alive:
            return
        if self._is_held:
            self.world.after(HELD_S, partial(self.report, what))
            return
        api = self._process.sidecar
        match what:
            case ["after", of, seconds, texts]:
                api.after(of, seconds, **texts)
            case ["cancel", {"key": of}]:
                api.cancel(of)
            case [kind, number]:
                self._report_user(api, kind, self.world.history.conns[number])
                return
            case _:
                raise AssertionError(what)
        self._process.expect(what[0], of)

    def _report_user(self, api: liveness.Sidecar, kind: str, conn: Conn) -> None:
        number = None if self.library.conns == "none" else conn.conn
        uid = self._named(kind, conn)
        if kind in ("keepalive", "message"):
            getattr(api, kind)(uid, conn=number)
        elif kind == "logout":
            self._expect(kind, conn)
            api.logout(uid, conn=number)
        else:
            for older in [*self.open.values()] if number is None else ():
                if str(older.uid) == str(uid) and older is not conn:
                    reached("client: a login without a conn replaces an open one")
                    del self.open[older.conn]
                    self._expect("logout", older)
            self._expect(kind, conn)
            age = self.world.now - conn.opened_at
            api.login(uid, conn=number, timeout=conn.timeout, age=age)
            if self.random.random() < FLUSHES:
                self.world.nursery.start_soon(self._process.flush)

    def _expect(self, kind: str, conn: Conn) -> None:
        """Expect a report on the wire, and count what it meets that is not written yet."""
        waiting = self._process.unwritten(conn.uid)
        logins = [
            it.conn
            for it in waiting
            if it.kind == "login" and it.conn and it.conn is not conn
        ]
        if kind == "login":
            if len(logins) > 1:
                reached("client: a user reconnects twice before a login is written")
            if len(waiting) > len(logins):
                reached("client: a login follows a logout of its user that waits")
            if any(repr(it.uid) != repr(conn.uid) for it in logins):
                reached("client, rarely: logins of 7 and of '7' wait together")
        elif logins and logins[-1].opened_at >= conn.opened_at:
            reached("client: an older connection logs out as a newer one's login waits")
        self._process.expect(kind, conn.conn)

    # --- what happens to it -----------------------------------------------------

    def inject(self, does: str, seconds: float) -> None:
        # A crash, as of the whole host, does not wait for anything.
        if not self.is_alive or (self._is_disturbed and not does.startswith("crashes")):
            return
        match does:
            case "crashes" | "crashes, back fresh" | "dies unread":
                self._process.die()
                self._die(seconds, fresh=None if does.endswith("fresh") else False)
            case "closes":
                if not self._is_held:
                    self._close(seconds)
            case "hangs" | "blocks" | "floods":
                self._block(seconds, is_hung=does == "hangs")
            case "loses its link":
                self._lose_link(seconds / 4)
            case "connects anew":
                self.twin = Process(self, is_twin=True)
                self.world.nursery.start_soon(self.twin.run)
                take_back = partial(self._take_name_back, self.twin)
                self.world.after(max(seconds, CLOSING_S), take_back)
            case "orders without end":
                # However often it asks, the library asks once for what waits.
                self.report(["cancel", {"key": NOBODYS_KEY}])
            case "repeats itself":
                kind = "login" if self.library.conns != "none" else "message"
                for conn in self.open:
                    self.report([kind, conn])
            case _:
                raise AssertionError(does)

    def _lose_link(self, seconds: float) -> None:
        # Asked for just before, it waits for the next link.
        self.report(["cancel", {"key": NOBODYS_KEY}])
        self.unreachable_until = self.world.now + seconds
        self._process.lose_link()

    def _block(self, seconds: float, *, is_hung: bool) -> None:
        """Have the sidecar's socket take nothing more, or the host not run it."""
        self._may_write = trio.Event()
        self.world.after(seconds, partial(self._go_on, self.world.now))
        if is_hung:
            self.stop_reading()
        elif self.random.random() < 0.5:
            lost_after_s = seconds * self.random.random()
            self.world.after(lost_after_s, partial(self._lose_link, 0.5))

    def _go_on(self, since: float) -> None:
        super()._go_on(max(since, self.wrote_at))
        self._may_write.set()

    def _close(self, seconds: float) -> None:
        """Leave `connect`; the next process has nobody, or takes the connections over."""
        if self.library.conns == "none" or self.random.random() < 0.6:
            for conn in [*self.open]:
                self.leave(conn)
        if not self._process.has_link:
            reached("client: connect is left while there is no link")
        elif self._process.unwritten():
            reached("client: connect is left with reports that are not written")
        self.is_alive = False
        self._process.must_close.set()
        if self.random.random() < 0.3:
            # While tasks end, or while the last reports are gathered.
            lost_after_s = self.random.choice([0.01, 0.5])
            self.world.after(lost_after_s, partial(self._lose_link, 0.5))
        self.world.after(max(CLOSING_S, seconds), partial(self._start_anew, None))

    def _take_name_back(self, twin: Process) -> None:
        """End the second process, and have the first one resume."""
        self.world.note(1, "gateway connects anew", whose=self.name)
        twin.die()
        self.twin, process = None, self._process
        if process.is_running:
            self.life += 2
            process.life = self.life
            self.world.nursery.start_soon(process.resume)
