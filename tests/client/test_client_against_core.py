"""The client against the real core, over links on which nothing can be relied.

Two gateways, each a `Client` and a program that uses it, report to one server without I/O.
Links are cut and read late, and the disk writes when the test says so. At last all is left
in peace, and both ends must agree on who is online.
"""

from collections.abc import Iterator
from typing import Any, Final

from hypothesis import example, given, settings
from hypothesis import strategies as st

from liveness.client.protocol import EMPTY_KEEPALIVE, Client, welcome_of
from liveness.core import effects
from liveness.core.links.link import Link
from liveness.core.records import LOGOUT, OFFLINE, HostReading, HostTime, Record
from liveness.core.sessions.presence import WHY_OLDER
from liveness.core.wire.framing import Reader, encode_notices
from tests.core.server_shell import PEER, Shell
from tests.helpers.strategies import BOUNDED, examples

STEP_S: Final = 0.25
FLUSH_S: Final = 0.5
TIMEOUT_S: Final = 8.0
PEACE_S: Final = 30.0
EPOCH_S: Final = 1_795_168_800.0
NAMES: Final = ("gw-1", "gw-2")
UIDS: Final = (7, "7", "é")
ALL: Final = 10**9

Act = tuple[Any, ...]


class Pipe:
    """Bytes in one direction of a link, written and not read yet."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.is_closed = False

    def write(self, data: bytes) -> None:
        if not self.is_closed:
            self.data += data

    def read(self, most: int) -> bytes:
        taken = bytes(self.data[:most])
        del self.data[:most]
        return taken

    def close(self, keep: int = ALL) -> None:
        """Only the first *keep* of the waiting bytes still arrive."""
        del self.data[keep:]
        self.is_closed = True


class Served:
    """The sidecar's end of a link."""

    def __init__(self, link: Link, up: Pipe, down: Pipe) -> None:
        self.link, self.up, self.down = link, up, down
        self.delivers: effects.Deliver | None = None


class Sidecar(Shell):
    """A server whose links are pipes."""

    def __init__(self) -> None:
        super().__init__(max_batch=3, max_frame_bytes=400)
        self.served: dict[int, Served] = {}  # by number of the link

    def accept(self, up: Pipe, down: Pipe) -> None:
        link = self.server.connected(self.links, PEER, self.at)
        self.served[link.number] = Served(link, up, down)
        self.links += 1

    def turn(self, now: float, budgets: dict[str, int]) -> None:
        """Read at most so many bytes of each gateway, fire, and commit."""
        self.mono += STEP_S
        self.server.advance(self.at, cpu=0.0, asked=STEP_S)
        for served in [*self.served.values()]:
            self.read(served, now, budgets.get(served.link.name or "", ALL))
        self.server.caught_up(self.mono, all_accepted=True)
        while self.server.fire(self.at, limit=ALL):
            pass
        self.server.commit()
        self.carry_out(now)

    def read(self, served: Served, now: float, budget: int = ALL) -> None:
        link, up = served.link, served.up
        if data := up.read(budget):
            reading = HostReading(HostTime(now, EPOCH_S + now), now - self.mono)
            self.server.received(link, data, self.at, reading)
            self.carry_out(now)
        link.must_read_bytes = len(up.data)
        if not up.data:
            self.server.read_empty(link, self.attended.now)
        if up.is_closed and not up.data and link.number in self.served:
            del self.served[link.number]
            served.down.close()
            self.server.closed(link)

    def carry_out(self, now: float) -> None:
        for effect in self.effects():
            if isinstance(effect, effects.ReadFirst):
                older = self.served[effect.link]
                self.read(older, now)
                self.server.replace(older.link)
                self.carry_out(now)
            elif isinstance(effect, effects.Deliver):
                self.served[effect.link].delivers = effect
            elif isinstance(effect, effects.Close):
                closed = self.served[effect.link]
                closed.down.write(closed.link.outbox.last_frame)
                closed.up.close(0)
        while self.server.has_resets:
            self.server.reset_sessions(self.at)
            self.carry_out(now)

    def deliver(self) -> None:
        """Write to all links what may be sent by now."""
        for served in self.served.values():
            outbox = served.link.outbox
            frames = outbox.take_frames()
            served.down.write(frames)
            outbox.frames_sent(len(frames))
            if served.delivers is None or outbox.is_ending:
                continue
            position = served.delivers.position
            found, reached = self.disk.read(
                position.seq, position.wanted, outbox.room, 0
            )
            outbox.records_begin([seq for seq, _ in found], position.seq)
            position.seq = reached
            if found:
                encoded = b"".join(record for _, record in found)
                served.down.write(encode_notices(len(found), encoded))
            outbox.records_sent(self.at.state_ms)


class Loop:
    """A loop over ends."""


class Process:
    """One process of a gateway: the client, its link, and a program that uses it."""

    def __init__(self, name: str, number: int, now: float) -> None:
        self.client = Client(
            name=name, timeout=TIMEOUT_S, fresh=None, first_conn=number << 20
        )
        self.link: tuple[Pipe, Pipe] | None = None
        self.link_at = self.due_at = now
        self.writing: Iterator[bytes] = iter(())
        self.is_stuck = False  # after a frame, until the next turn
        self.loop = Loop()
        self.written: set[int] = set()  # conns whose login may have been written

    @property
    def open(self) -> dict[int, Any]:
        """The uid of each open connection."""
        return self.client.reports.uids

    def login(self, uid: Any, now: float) -> None:
        conn = self.client.reports.new_conn()
        self.client.login(uid, conn, at=now, timeout=None)

    def nth(self, n: int) -> tuple[Any, int] | None:
        found = [(uid, conn) for conn, uid in self.open.items()]
        return found[n % len(found)] if found else None

    def again(self, n: int, now: float) -> None:
        if (found := self.nth(n)) is not None:
            self.client.login(*found, at=now, timeout=None)

    def speak(self, n: int) -> None:
        if (found := self.nth(n)) is not None:
            reports = self.client.reports
            reports.activity(reports.keepalives, *found)

    def logout(self, n: int) -> None:
        if (found := self.nth(n)) is not None:
            self.client.logout(*found)

    def handle_ends(self, most: int) -> None:
        for _ in range(most):
            arrival = self.client.inbox.take(self.loop)
            if arrival is None:
                return
            self.client.inbox.finish(arrival)

    # --- its link ------------------------------------------------------------------

    def turn(self, now: float, sidecar: Sidecar, budget: int) -> None:
        self.read(budget)
        if self.link is not None and self.link[1].is_closed and not self.link[1].data:
            self.lose_link(now)
        if self.link is None and now >= self.link_at:
            up, down = self.link = Pipe(), Pipe()
            self.reader = Reader(max_frame_bytes=2**20, max_batch=4_000)
            up.write(self.client.hello(HostTime(now, EPOCH_S + now), 0.0))
            sidecar.accept(up, down)
        if self.client.is_linked:
            self.write(now)

    def lose_link(self, now: float) -> None:
        assert self.link is not None
        up, down = self.link
        up.close()
        down.close(0)
        self.client.link_lost()
        self.writing = iter(())
        self.link, self.link_at = None, now + 2 * STEP_S

    def read(self, budget: int) -> None:
        if self.link is None:
            return
        for frame in self.reader.feed(self.link[1].read(budget)):
            if frame[0] == "welcome":
                self.client.welcomed(welcome_of(frame))
            elif frame[0] not in ("error", "bye"):
                self.client.receive(frame)

    def write(self, now: float) -> None:
        assert self.link is not None
        up, _ = self.link
        if self.write_frames(up):
            is_due = now >= self.due_at
            if is_due:
                self.due_at = now + FLUSH_S
                up.write(EMPTY_KEEPALIVE)
            self.written |= self.open.keys()
            self.writing = self.client.frames(now, is_due=is_due)
            self.write_frames(up)

    def write_frames(self, up: Pipe) -> bool:
        """Return whether that was all."""
        for frame in self.writing:
            up.write(frame)
            if self.is_stuck:
                self.is_stuck = False
                return False
        return True


class World:
    """Two gateways, a sidecar, and time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sidecar = Sidecar()
        self.ignored = 0
        self.processes = 0
        self.gateways = {name: self.process(name) for name in NAMES}
        self.no_commit_until = self.no_turn_until = 0.0
        self.heard = dict.fromkeys(NAMES, ALL)  # bytes that a turn of the sidecar reads

    def process(self, name: str) -> Process:
        self.processes += 1
        return Process(name, self.processes, self.now)

    def step(self) -> None:
        self.now += STEP_S
        for gateway in self.gateways.values():
            gateway.turn(self.now, self.sidecar, ALL)
        if self.now >= self.no_turn_until:
            self.sidecar.turn(self.now, self.heard)
        if self.now >= self.no_commit_until:
            self.sidecar.write()
        self.sidecar.deliver()

    @property
    def online(self) -> dict[str, tuple[str, int | None]]:
        """The gateway and connection of each user, as the disk has them."""
        rows = self.sidecar.disk.online.values()
        return {str(row.uid): (row.gateway, row.conn) for row in rows}

    def act(self, act: Act) -> None:
        match act:
            case ("pass", steps):
                for _ in range(steps):
                    self.step()
            case ("disk", steps):
                self.no_commit_until = self.now + steps * STEP_S
            case ("stall", steps):
                self.no_turn_until = self.now + steps * STEP_S
            case ("lose state",):
                for served in self.sidecar.served.values():
                    served.down.close()
                    served.up.close(0)
                self.ignored += self.sidecar.parts.presence.ignored[WHY_OLDER]
                self.sidecar = Sidecar()
            case _:
                what, name, *details = act
                self.act_at(what, self.gateways[name], *details)

    def act_at(self, what: str, gateway: Process, *details: Any) -> None:
        match what, *details:
            case "login", uid:
                gateway.login(uid, self.now)
            case "again", n:
                gateway.again(n, self.now)
            case "speak", n:
                gateway.speak(n)
            case "logout", n:
                gateway.logout(n)
            case "ends", most:
                gateway.handle_ends(most)
            case ("stick",):
                gateway.is_stuck = True
            case "cut", up_keep, down_keep:
                if gateway.link is not None:
                    up, down = gateway.link
                    up.close(up_keep)
                    down.close(down_keep)
            case "hear", most:
                self.heard[gateway.client.name] = most
            case ("reborn",):
                if gateway.link is not None:
                    gateway.lose_link(self.now)
                self.gateways[gateway.client.name] = self.process(gateway.client.name)
            case _:
                raise AssertionError(what)

    def calm(self) -> None:
        """Let everything be delivered, and everyone speak, for as long as it takes."""
        self.no_commit_until = self.no_turn_until = 0.0
        self.heard = dict.fromkeys(NAMES, ALL)
        until = self.now + PEACE_S
        while self.now < until:
            for gateway in self.gateways.values():
                for n in range(len(gateway.open)):
                    gateway.speak(n)
                gateway.handle_ends(ALL)
            for _ in range(4):
                self.step()

    def check_agreement(self) -> None:
        open_at: dict[str, list[tuple[str, int]]] = {}
        for gateway in self.gateways.values():
            assert gateway.client.refused == 0
            assert gateway.client.reports.unconfirmed == 0
            for conn, uid in gateway.open.items():
                open_at.setdefault(str(uid), []).append((gateway.client.name, conn))
        assert self.online.keys() == open_at.keys()
        for user, connection in self.online.items():
            assert connection in open_at[user]
            # Of a login that came to nothing, as a newer connection was known, the gateway
            # hears nothing.
            if not self.ignored + self.sidecar.parts.presence.ignored[WHY_OLDER]:
                assert len(open_at[user]) == 1, "a loser was not told"


names = st.sampled_from(NAMES)
small = st.integers(0, 3)
some_bytes = st.sampled_from([0, 1, 5, 30, 90, ALL])


def act(what: str, *details: st.SearchStrategy[Any]) -> st.SearchStrategy[Act]:
    return st.tuples(st.just(what), *details)


passing = act("pass", st.sampled_from([1, 1, 2, 3, 8, 30, 60]))
reporting = st.one_of(
    act("login", names, st.sampled_from(UIDS)),
    act("speak", names, small),
    act("logout", names, small),
    act("again", names, small),
)
trouble = st.one_of(
    act("ends", names, small),
    act("cut", names, some_bytes, some_bytes),
    act("stick", names),
    act("hear", names, some_bytes),
    act("disk", st.sampled_from([0, 1, 3])),
    act("stall", st.sampled_from([0, 2, 9, 40])),
    act("lose state"),
    act("reborn", names),
)
# Long lives: what goes wrong takes several things that go wrong.
lives = st.lists(
    st.one_of(passing, reporting, reporting, trouble), min_size=20, max_size=80
)


@settings(BOUNDED, max_examples=examples(200))
@given(acts=lives)
@example(acts=[("login", "gw-1", 7), ("pass", 40), ("again", "gw-1", 0)])
def test_both_ends_agree_in_the_end_whatever_happens_between_them(
    acts: list[Act],
) -> None:
    world = World()
    for act in acts:
        world.act(act)
    world.calm()
    world.check_agreement()


# The dropped login of the second connection once took along what kept the logout of the
# first from ending the user's presence.
TWO_RECONNECTS_IN_ONE_WRITE: Final = [
    ("login", "gw-1", 7),
    ("pass", 3),
    ("login", "gw-1", 7),
    ("logout", "gw-1", 0),
    ("login", "gw-1", 7),
    ("logout", "gw-1", 0),
    ("pass", 1),
]
its_gateway = st.just("gw-1")
burst = st.tuples(
    st.lists(
        st.one_of(
            act("login", its_gateway, st.just(7)),
            act("logout", its_gateway, small),
            act("speak", its_gateway, small),
        ),
        min_size=2,
        max_size=8,
    ),
    st.lists(
        st.one_of(
            act("pass", st.sampled_from([1, 2, 3])),
            act("ends", its_gateway, small),
            act("stick", its_gateway),
            act("cut", its_gateway, some_bytes, some_bytes),
        ),
        max_size=2,
    ),
    st.just([("pass", 1)]),
)
bursts = st.lists(burst, max_size=6).map(
    lambda bursts: [act for burst in bursts for part in burst for act in part]
)


@settings(BOUNDED, max_examples=examples(300))
@given(acts=bursts)
@example(acts=TWO_RECONNECTS_IN_ONE_WRITE)
def test_no_user_is_offline_while_a_newer_connection_is_open_and_written(
    acts: list[Act],
) -> None:
    world = World()
    gateway = world.gateways["gw-1"]
    checked = 0
    # The newest connection when none was open: its logout is true, however late.
    gone = 0
    for act in [("pass", 3), *acts]:  # they begin with a link
        world.act(act)
        newest = max(gateway.written & gateway.open.keys(), default=0)
        records = world.sidecar.disk.records
        for record in records[checked:]:
            if isinstance(record, Record) and record.kind == OFFLINE:
                conn = record.conn or 0
                is_last = conn <= gone or conn >= newest
                assert is_last or record.reason != LOGOUT, "a newer one is open"
        checked = len(records)
        if not gateway.open:
            gone = max(gateway.written, default=0)
    world.act(("pass", 20))  # enough for another link, and to write everything
    if not gateway.open:
        assert not world.online, "its last connection was not logged out"
    world.calm()
    world.check_agreement()
