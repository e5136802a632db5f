"""Gateways and watchers, as the sidecar meets them: processes at the other ends of links.

Gateways keep to the protocol, as far as they live: they send again what no pong covered,
declare their connections to a new log, acknowledge, answer timers, and close a connection
on a record only if its conn is equal. What they do they do at a moment of virtual time, in
code that does not wait: so they can go on while the sidecar is paused.
"""

import socket
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Any, Final

import trio

from tests.helpers.wire import Frames, packed
from tests.promises.run_history import (
    Conn,
    Delivered,
    LinkHistory,
    ListedSession,
    Record,
    Sent,
    Uid,
    Unread,
)
from tests.simulation.plan import NOBODYS_KEY, GatewayPlan, Visit

if TYPE_CHECKING:
    from tests.simulation.world import World

# A gateway that is asked nothing pings this often, if something is not covered yet.
PING_S: Final = 0.4
RETRY_S: Final = 0.3  # to connect
FULL_S: Final = 0.05  # a full socket is tried again after this long
HELD_S: Final = 0.1  # and a gateway that can do nothing
PIECE_BYTES: Final = 65_536
# Frames of a flood: several times what a socket's buffer holds.
FLOOD_FRAMES: Final = 20
FLOOD_UIDS: Final = 3_000
# Many more of them than a plan with a low bound lets wait for the disk.
ORDERS_AT_ONCE: Final = 30
ORDERS_EVERY_S: Final = 0.05
# Of one who does not read: together more than a socket's buffers take.
GREEDY_PINGS: Final = 12
LARGE: Final = "x" * 60_000
READING_S: Final = 4.0  # after which it leaves
# More answers than the sidecar lets wait for a link, which are 1,000.
UNREAD_PINGS: Final = 5_000
NOBODYS_CONN: Final = 10**9
SHIFTED_S: Final = 0.8  # a time namespace's clock

# By kind: where a record names the gateway and connection that it ends.
_ENDED: Final = {"offline": ("gateway", "conn"), "moved": ("from", "from_conn")}
_ACTIVITY: Final = ("keepalive", "message")


def ended_by(record: Mapping[str, Any], gateway: str) -> int | None:
    """The connection of a gateway that a record ends."""
    of, conn = _ENDED.get(record["kind"], ("", ""))
    return record.get(conn) if record.get(of) == gateway else None


class Reader:
    """Takes the frames of the sidecar, and notes them in the history of their link."""

    world: "World"
    _listed: list[ListedSession]  # of an answer that is not whole yet

    def read(self, link: LinkHistory, frame: list[Any]) -> None:
        now = self.world.now
        match frame:
            case ["welcome", welcome]:
                link.welcomed_at, link.welcome = now, welcome
                self._listed = []
                self.welcomed(link)
            case ["notices", records]:
                link.delivered += [Delivered(now, record) for record in records]
                for record in records:
                    self.deliver(record)
            case ["pong", number]:
                link.pongs.append((now, number))
                self.covered(number)
            case ["list", sessions, *seq]:
                self._listed += [ListedSession(*it) for it in sessions]
                if seq:
                    link.lists.append((seq[0], self._listed))
                    self._listed = []
            case ["error", error]:
                link.errors.append(error)
            case ["bye", *_]:
                pass
            case _:
                raise AssertionError(f"{frame} was not asked for")

    def welcomed(self, link: LinkHistory) -> None:
        """Go on where the last link ended."""

    def deliver(self, record: Record) -> None:
        pass

    def covered(self, number: int) -> None:
        """Take note that what came before a ping is on disk."""


class Socket:
    """One socket to the sidecar, and the history of its link; OSError if there is none."""

    def __init__(self, world: "World", life: int, hello: dict[str, Any]) -> None:
        self._world = world
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.setblocking(False)
        try:
            self._sock.connect(str(world.machine.socket))
        except OSError:
            self._sock.close()
            raise
        self._received = Frames()
        self.link = LinkHistory(
            number=len(world.history.links),
            role=hello["role"],
            name=hello["name"],
            life=life,
            opened_at=world.now,
            sidecar=len(world.history.processes) - 1,
            hello=hello,
        )
        world.history.links.append(self.link)

    @property
    def is_open(self) -> bool:
        return self.link.ended_at == inf

    def end(self) -> None:
        self.link.ended_at = min(self.link.ended_at, self._world.now)

    def close(self) -> None:
        self.end()
        trio.lowlevel.notify_closing(self._sock)
        self._sock.close()


class Wire(Socket):
    """That of a model: frames go in as far as it takes them."""

    def __init__(self, party: "Party", hello: dict[str, Any]) -> None:
        super().__init__(party.world, party.life, hello)
        self._party = party
        # Frames that wait for room in the socket, and what is left of them.
        self.waiting: deque[tuple[memoryview, list[Any]]] = deque()
        self._is_full = False
        self.send(["hello", hello])

    def send(self, frame: list[Any], *, times: int = 1) -> None:
        """Put a frame into the socket, or behind those that wait for room in it."""
        self.waiting.append((memoryview(packed(frame) * times), frame))
        if not self._is_full:
            self._flush()

    def _flush(self) -> None:
        self._is_full = False
        while self.waiting and self.is_open:
            data, frame = self.waiting[0]
            now = self._world.now
            try:
                left = data[self._sock.send(data) :]
            except BlockingIOError:
                self._is_full = True
                self._world.after(FULL_S, self._flush)
                return
            except (BrokenPipeError, ConnectionResetError):
                self.waiting.clear()  # its end is about to be read
                return
            if left:
                self.waiting[0] = (left, frame)
            else:
                self.waiting.popleft()
                self.link.sent.append(Sent(now, frame))

    async def listen(self) -> None:
        """Read until it ends, whenever the party does read."""
        party = self._party
        while self.is_open:
            try:
                await trio.lowlevel.wait_readable(self._sock)
                await party.is_reading()
                data = self._sock.recv(PIECE_BYTES)
            except (OSError, trio.ClosedResourceError):
                data = b""
            if not data:
                break
            self._received.feed(data)
            for frame in self._received:
                if self.is_open:
                    party.read(self.link, frame)
                    if frame[0] == "notices" and self.link.hello.get("ack", True):
                        self.send(["ack", frame[1][-1]["seq"]])
        if self.is_open:
            self.close()
            party.lose(self)


class Party(Reader):
    """A gateway or watcher: connects, reads records, and comes back."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.life = 0
        self.wire: Wire | None = None
        self.is_alive = True
        self._may_read = trio.Event()
        self._may_read.set()

    def options(self) -> dict[str, Any]:
        return {"role": "watcher", "scope": "all"}

    def connect(self) -> None:
        world = self.world
        if not self.is_alive or (self.wire is not None and self.wire.is_open):
            return
        hello = {"protocol": 1, "name": self.name, **self.options()}
        try:
            self.wire = Wire(self, hello)
        except OSError:
            world.after(RETRY_S, self.connect)
            return
        world.nursery.start_soon(self.wire.listen)

    def drop(self) -> None:
        if self.wire is not None and self.wire.is_open:
            self.wire.close()
        self.wire = None

    def lose(self, wire: Wire) -> None:
        if wire is self.wire:
            self.wire = None
            self.world.after(self.world.random.uniform(0, 1), self.connect)

    @property
    def is_hung(self) -> bool:
        return not self._may_read.is_set()

    async def is_reading(self) -> None:
        while self.is_hung:
            await self._may_read.wait()

    def stop_reading(self) -> None:
        if not self.is_hung:
            self._may_read = trio.Event()

    def read_again(self) -> None:
        self._may_read.set()

    def welcomed(self, link: LinkHistory) -> None:
        assert self.wire is not None
        self._ask(self.wire)

    def _ask(self, wire: Wire) -> None:
        if wire is self.wire and wire.is_open:
            if not self.is_hung:
                wire.send(["list"])
            self.world.after(self.world.random.uniform(2, 20), partial(self._ask, wire))


class Watcher(Party):
    """Watches everything: from where it was, or above a seq; some keep that themselves."""

    def __init__(
        self,
        world: "World",
        name: str,
        after: int | None = None,
        *,
        keeps_position: bool = False,
    ) -> None:
        super().__init__(world, name)
        self._after, self._log = after, ""
        self._keeps_position = keeps_position

    def options(self) -> dict[str, Any]:
        said = super().options()
        if self._keeps_position or self._after is not None:
            said["ack"] = False
        if self._after is not None:
            said |= {"after": self._after, "log": self._log}
        return said

    def welcomed(self, link: LinkHistory) -> None:
        super().welcomed(link)
        if self._keeps_position and self._after is None:
            self._note(link.welcome["next"] - 1)

    def deliver(self, record: Record) -> None:
        if self._keeps_position:
            self._note(record["seq"])

    def _note(self, seq: int) -> None:
        assert self.wire is not None
        self._after, self._log = seq, self.wire.link.welcome["log"]

    def inject(self, does: str, seconds: float) -> None:
        if does == "lost":
            self.drop()
            self.world.after(seconds, self.connect)
        else:
            assert does == "slow", does
            self.stop_reading()
            self.world.after(seconds, self.read_again)


class GreedyWatcher(Party):
    """Asks for a list and for large pongs, and reads them late, if it still can."""

    def __init__(self, world: "World", name: str, unread_for_s: float) -> None:
        super().__init__(world, name)
        self._unread_for_s = unread_for_s

    def options(self) -> dict[str, Any]:
        return super().options() | {"ack": False}

    def welcomed(self, link: LinkHistory) -> None:
        """Ask, and read nothing for a while."""
        now, unread_for_s = self.world.now, self._unread_for_s
        unread = Unread(link, now, now + unread_for_s, GREEDY_PINGS + 1)
        self.world.history.unread.append(unread)
        self.world.note(unread_for_s + READING_S, "watcher greedy", whose=self.name)
        self.stop_reading()
        self.world.after(unread_for_s, self.read_again)
        self.world.after(unread_for_s + READING_S, self.drop)
        assert self.wire is not None
        self.wire.send(["list"])
        for _ in range(GREEDY_PINGS):
            self.wire.send(["ping", LARGE])

    def lose(self, wire: Wire) -> None:
        """Stay away."""


class Gateway(Party):
    """Holds users' connections, and reports what they do."""

    def __init__(self, world: "World", plan: GatewayPlan) -> None:
        super().__init__(world, plan.name)
        self.plan = plan
        self.open: dict[int, Conn] = {}
        self._unsent: list[list[Any]] = []
        # And what no pong has covered, by the number of the ping that follows it.
        self._unconfirmed: dict[int, list[list[Any]]] = {}
        self._pings = 0
        self._fresh: bool | None = None
        self.is_silent = False
        self._hung_since: float | None = None
        self._log = ""
        self._links = 0

    # --- what its users do ----------------------------------------------------

    def go_through(self, steps: Iterator[float]) -> None:
        """Take the next step, once it can: what a user says meanwhile is read then."""
        if self._is_held:
            self.world.after(HELD_S, partial(self.go_through, steps))
        elif (pause_s := next(steps, None)) is not None:
            self.world.after(pause_s, partial(self.go_through, steps))

    @property
    def _is_held(self) -> bool:
        """Whether it can do nothing just now."""
        return self.is_hung

    def visit(self, visit: Visit) -> Iterator[float]:
        """The actions of a user, with pauses."""
        world = self.world
        if not self.is_alive or world.now >= world.plan.lasts_s:
            return
        number, ends_at = self._new_conn(), world.now + visit.talks_for_s
        conn = Conn(number, visit.uid, self.name, self.life, world.now, visit.timeout)
        world.history.conns[number] = self.open[number] = conn
        self.report(["login", number])
        while world.now + visit.every_s < ends_at:
            yield visit.every_s
            if number not in self.open or self.is_silent:
                return
            self.report(["message" if number % 3 == 0 else "keepalive", number])
        if visit.logs_out:
            yield ends_at - world.now
            if number in self.open and not self.is_silent:
                self.leave(number)

    def leave(self, conn: int) -> None:
        del self.open[conn]
        self.report(["logout", conn])

    def _new_conn(self) -> int:
        return self.world.new_conn()

    @property
    def is_faulty(self) -> bool:
        """Whether one of its faults has not ended."""
        return self.is_hung or not self.is_alive

    # --- what it reports ------------------------------------------------------

    def report(self, what: list[Any]) -> None:
        """Send something, and again until a pong covers it."""
        is_activity = what[0] in _ACTIVITY
        if self.is_alive and not (is_activity and what in self._unsent):
            self._unsent.append(what)
            self._flush()

    def _flush(self) -> None:
        """Put what is not sent onto the link, if the socket takes it."""
        wire = self._linked
        if self.is_hung or wire is None or wire.waiting:
            return
        # The activity of a connection that is gone would open a session again.
        kept = [
            it for it in self._unsent if it[0] not in _ACTIVITY or it[1] in self.open
        ]
        self._unsent.clear()
        for what in kept:
            wire.send(self._frame(*what))
        if kept:
            self._pings += 1
            self._unconfirmed[self._pings] = kept
            wire.send(["ping", self._pings])

    def _frame(self, kind: str, what: Any, *rest: Any) -> list[Any]:
        if kind not in (*_ACTIVITY, "login", "logout"):
            return [kind, what, *rest]
        conn = self.world.history.conns[what]
        options: dict[str, Any] = {"conn": what}
        if kind == "login":
            options["age"] = self.world.now - conn.opened_at
            if self._says_began:
                options["began"] = self.host_time(conn.opened_at)[0]
            if conn.timeout is not None:
                options["timeout"] = conn.timeout
        return [kind, self._named(kind, conn), options]

    @staticmethod
    def _named(kind: str, conn: Conn) -> Uid:
        """Its user, in events after the login by text if the connection is an odd one."""
        return str(conn.uid) if kind != "login" and conn.conn % 2 else conn.uid

    def _keep_talking(self, wire: Wire) -> None:
        """Ping now and then: by promise, and for what is still not sent."""
        if wire is not self.wire or not wire.is_open:
            return
        promised = self.plan.ping
        if not self.is_hung and not wire.waiting:
            self._flush()
            if promised is not None:
                wire.send(["ping", self._pings])
        self.world.after(
            PING_S if promised is None else promised * self.plan.pings_every,
            partial(self._keep_talking, wire),
        )

    def options(self) -> dict[str, Any]:
        self._links += 1
        plan, now = self.plan, self.world.now
        said = {
            "role": "gateway",
            "timeout": plan.timeout if self._links % 2 else plan.other_timeout,
            "ping": plan.ping,
            "fresh": self._fresh or None,
            "clock": self.host_time(now) if plan.clock != "not sent" else None,
        }
        return {key: it for key, it in said.items() if it is not None}

    @property
    def _says_began(self) -> bool:
        assert self.wire is not None
        is_wrong = self.plan.clock == "another namespace's"
        return is_wrong or bool(self.wire.link.welcome.get("began"))

    def host_time(self, at: float) -> list[float]:
        """Its CLOCK_MONOTONIC and the wall clock, at a moment."""
        monotonic_s, unix_s = self.world.machine.host_time(at)
        if self.plan.clock == "another namespace's":
            monotonic_s += SHIFTED_S
        return [monotonic_s, unix_s]

    def welcomed(self, link: LinkHistory) -> None:
        super().welcomed(link)
        self._fresh = None
        self._unsent = [*chain(*self._unconfirmed.values()), *self._unsent]
        self._unconfirmed.clear()
        if self._log != link.welcome["log"]:
            self._log = link.welcome["log"]
            self._declare()
        self._flush()
        assert self.wire is not None
        self._keep_talking(self.wire)

    def _declare(self) -> None:
        self._unsent += [["login", conn] for conn in self.open]

    def deliver(self, record: Record) -> None:
        if record["kind"] == "timer":
            key, of = record["key"], {"seq": record["seq"]}
            drawn = self.world.random.random()
            if drawn < 0.7:
                self.report(["done", key, None, of])
            elif drawn < 0.85:
                self.report(["fail", key, "not now", of])
        elif (conn := ended_by(record, self.name)) in self.open:
            del self.open[conn]

    def covered(self, number: int) -> None:
        for ping in [it for it in self._unconfirmed if it <= number]:
            del self._unconfirmed[ping]

    # --- what happens to it ---------------------------------------------------

    def inject(self, does: str, seconds: float) -> None:
        # A crash, as of the whole host, does not wait for the end of a hang.
        if not self.is_alive or (self.is_hung and not does.startswith("crashes")):
            return
        match does:
            case "crashes" | "crashes, back fresh":
                self._die(seconds, fresh=does != "crashes")
                self._end_hang(self._hung_since)
            case "hangs":
                self.stop_reading()
                self._hung_since = self.world.now
                self.world.after(seconds, partial(self._end_hang, self._hung_since))
            case "loses its link":
                self.drop()
                self.world.after(seconds / 4, self.connect)
            case "connects anew":
                # The old link stays open until the sidecar ends it.
                if self._linked is not None:
                    self.wire = None
                    self.connect()
            case "floods":
                self._flood()
            case "dies unread":
                if (wire := self._linked) is not None:
                    wire.send(["ping", -1], times=UNREAD_PINGS)
                self._die(seconds, fresh=False)
            case "orders without end":
                self._order(self.world.now + seconds)
            case "repeats itself":
                self._declare()
                self._flush()
            case _:
                raise AssertionError(does)

    @property
    def _linked(self) -> Wire | None:
        wire = self.wire
        return wire if wire is not None and wire.link.welcomed_at < inf else None

    def _die(self, seconds: float, *, fresh: bool | None) -> None:
        self.drop()
        self.is_alive = False
        self.open.clear()
        self._unsent.clear()
        self._unconfirmed.clear()
        self.world.after(seconds, partial(self._start_anew, fresh))

    def _start_anew(self, fresh: bool | None) -> None:
        self.is_alive, self._fresh, self._log = True, fresh, ""
        self.life += 1
        self.connect()

    def _end_hang(self, since: float | None) -> None:
        if since is not None and since == self._hung_since:
            self._hung_since = None
            self._go_on(since)

    def _go_on(self, since: float) -> None:
        self.world.history.hangs.append((self.name, since, self.world.now))
        self.read_again()
        self._flush()

    def _flood(self) -> None:
        if (wire := self._linked) is not None:
            uids = min(FLOOD_UIDS, wire.link.welcome["max_batch"])
            crowd = [f"flood-{n}" for n in range(uids)]
            for n in range(FLOOD_FRAMES):
                wire.send(["logout", crowd, {"conn": [NOBODYS_CONN + n] * uids}])

    def _order(self, until: float) -> None:
        """Ask again and again, faster than it is written, that timers be cancelled."""
        wire, now = self._linked, self.world.now
        if wire is not None and not wire.waiting:
            for _ in range(ORDERS_AT_ONCE):
                wire.send(["cancel", {"key": NOBODYS_KEY}])
        if now < until:
            self.world.after(ORDERS_EVERY_S, partial(self._order, until))
