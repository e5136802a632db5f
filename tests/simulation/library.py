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
from liveness.promises.run_history import Conn, Uid
from tests.simulation.library_process import Process
from tests.simulation.parties import Gateway
from tests.simulation.plan import MOST_REST_S, NOBODYS_KEY, GatewayPlan, LibraryPlan
from tests.simulation.situations import reached

if TYPE_CHECKING:
    from tests.simulation.world import World

FLUSHES: Final = 0.2  # of the logins so many are waited for
CLOSING_S: Final = 5.0  # a second for tasks, one for the last reports, and some


class Library(Gateway):
    """A gateway that uses the library; what it breaks is in `breaches`."""

    def __init__(self, world: "World", plan: GatewayPlan, library: LibraryPlan) -> None:
        super().__init__(world, plan)
        self.library = library
        self.random = world.random_of(f"library {plan.name}")
        self.unreachable_until = -inf
        self.wrote_at = -inf  # also a part of a frame is a sign of life
        self.twin: Process | None = None  # of its name, as after a wrong deploy
        self._process = Process(self, fresh=None)
        self._may_write = trio.Event()
        self._may_write.set()

    def breach(self, what: str) -> None:
        """Note a promise to the application that was broken."""
        self.breaches.append(f"client: {self.name} at {self.world.now:.3f}: {what}")

    @property
    def is_ailing(self) -> bool:
        return self._is_ill or not self.has_link()

    @property
    def _is_ill(self) -> bool:
        return super().is_ailing or self.is_blocked or self.twin is not None

    @property
    def is_blocked(self) -> bool:
        return not self._may_write.is_set()

    @property
    def _is_held(self) -> bool:
        return self.is_hung or self.world.is_paused or self._process.sidecar is None

    def has_link(self) -> bool:
        return self._process.has_link

    async def may_go_on(self) -> None:
        """Return once it runs, and its writes are taken."""
        while not self._may_write.is_set():
            await self._may_write.wait()

    def verify(self) -> None:
        """Check at the end of all that nothing is left, if all is over."""
        if self.world.plan.rest_s >= MOST_REST_S:
            return
        newest = {str(it.uid): it for it in self.world.history.conns.values()}
        older = [it for it in self.open.values() if newest[str(it.uid)] is not it]
        if older:
            # It may be that no record says so: see `docs/gateway.md`.
            reached(
                "client: an older connection stays open, as nobody is told", rarely=True
            )
        if len(older) < len(self.open):
            self.breach(f"one of {self.open} is silent, and its end was never told")
        api, owed = self._process.sidecar, self._process.unconfirmed
        assert api is not None
        it = api.stats()
        if it.open != len(older) or it.pending or it.unconfirmed or it.refused or owed:
            self.breach(f"at the end of all it has {it}, and is to say {owed}")

    # --- what its users do ------------------------------------------------------

    def connect(self) -> None:
        """Start the process; the library makes the links."""
        self.world.nursery.start_soon(self._process.run)

    def _new_conn(self) -> int:
        assert self._process.sidecar is not None
        if self.library.conns == "its own":
            return self.world.new_conn()
        # Without one, the next login gets what would be the next.
        return self._process.sidecar.new_conn() + (self.library.conns == "none")

    def all_fall_silent(self) -> None:
        """Have nobody say anything any more; the library has to tell of each end."""
        self.is_silent = True

    def report(self, what: list[Any]) -> None:
        """Call the library, once it is there and runs."""
        if not self.is_alive:
            return
        if self._is_held:
            self.world.after(0.1, partial(self.report, what))
            return
        api = self._process.sidecar
        assert api is not None
        try:
            match what:
                case ["after", str(key), seconds, texts]:
                    api.after(key, seconds, **texts)
                    self._process.expect("after", key)
                case ["cancel", {"key": str(key)}]:
                    api.cancel(key)
                    self._process.expect("cancel", key)
                case [str(kind), int(number)]:
                    self._report_user(api, kind, self.world.history.conns[number])
                case _:
                    raise AssertionError(what)
        except liveness.ReportError as error:
            self.breach(f"{what}: {error}")

    def _report_user(self, api: liveness.Sidecar, kind: str, conn: Conn) -> None:
        number = None if self.library.conns == "none" else conn.conn
        uid = self._named(kind, conn)
        if kind != "login":
            if kind == "logout":
                self.notice(kind, conn)
            getattr(api, kind)(uid, conn=number)
            return
        for older in [*self.open.values()] if number is None else ():
            if str(older.uid) == str(uid) and older is not conn:
                reached("client: a login without a conn replaces an open one")
                self.forget(older.conn)
                self.notice("logout", older)
        self.notice(kind, conn)
        age = self.world.now - conn.opened_at
        api.login(uid, conn=number, timeout=conn.timeout, age=age)
        if self.random.random() < FLUSHES:
            self._process.flush_soon()

    def waiting(self, uid: Uid) -> list[tuple[str, Conn]]:
        """What is reported of a user and not written yet."""
        conns = self.world.history.conns
        unwritten = self._process.unwritten()
        waiting = [(kind, conns[it]) for it, kind in unwritten if isinstance(it, int)]
        return [(kind, conn) for kind, conn in waiting if str(conn.uid) == str(uid)]

    def notice(self, kind: str, conn: Conn) -> None:
        """Count what a report meets, and expect it on the wire."""
        super().notice(kind, conn)
        self._process.expect(kind, conn.conn)
        if self._process.is_sending and self.waiting(conn.uid):
            reached("client: a user reconnects while a batch is under way")

    # --- what happens to it -----------------------------------------------------

    def suffer(self, does: str, seconds: float) -> None:
        """Have something happen to it."""
        process, world = self._process, self.world
        # A crash, as of the whole host, does not wait for anything.
        if not self.is_alive or (self._is_ill and not does.startswith("crashes")):
            return
        match does:
            case "crashes" | "crashes, back fresh" | "dies unread":
                self.is_alive = False
                self.open.clear()
                process.die()
                fresh = None if does.endswith("fresh") else False
                world.after(seconds, partial(self._start_anew, fresh))
            case "closes":
                self._close(seconds)
            case "hangs" | "blocks" | "floods":
                self._block(seconds, is_hung=does == "hangs")
            case "loses its link":
                self._lose_link(seconds / 4)
            case "connects anew":
                self.twin = Process(self, fresh=None, is_twin=True)
                world.nursery.start_soon(self.twin.run)
                world.after(max(seconds, CLOSING_S), self._take_name_back)
            case "orders without end":
                # However often it asks, the library asks once for what waits.
                self.report(["cancel", {"key": NOBODYS_KEY}])
            case "repeats itself":
                kind = "login" if self.library.conns != "none" else "message"
                for conn in self.open:
                    reached(
                        "client: a login of an open connection is repeated", rarely=True
                    )
                    self.report([kind, conn])
            case _:
                raise AssertionError(does)

    def _lose_link(self, seconds: float) -> None:
        self.unreachable_until = self.world.now + seconds
        self._process.lose_link()

    def _block(self, seconds: float, *, is_hung: bool) -> None:
        """Have the sidecar's socket take nothing more, or the host not run it."""
        self._may_write, self.is_hung = trio.Event(), is_hung
        self.world.after(seconds, partial(self._unblock, self.world.now))
        if is_hung:
            self.stop_reading()
        elif self.random.random() < 0.5:
            lost_after_s = seconds * self.random.random()
            self.world.after(lost_after_s, partial(self._lose_link, 0.5))

    def _unblock(self, since: float) -> None:
        since, now = max(since, self.wrote_at), self.world.now
        self.world.history.hangs.append((self.name, since, now))
        self.is_hung = False
        self._may_write.set()
        self.read_again()

    def _close(self, seconds: float) -> None:
        """Leave `connect`; the next process has nobody, or takes the connections over."""
        if self._is_held:
            return
        if self.library.conns == "none" or self.random.random() < 0.6:
            for conn in [*self.open.values()]:
                self._leave(conn)
        if not self.has_link():
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

    def _start_anew(self, fresh: bool | None) -> None:
        self.life += 1
        self.is_alive = True
        self._process = Process(self, fresh=fresh)
        self.connect()

    def _take_name_back(self) -> None:
        """End the second process, and have the first one resume."""
        twin, process = self.twin, self._process
        assert twin is not None
        twin.die()
        self.twin = None
        if process.sidecar is not None:
            self.life += 2
            process.life = self.life
            self.world.nursery.start_soon(process.resume)
