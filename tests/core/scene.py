"""A presence driven by hand: its three clocks, its links, its disk, its restarts.

A scene does what the service does around the core: it moves the clocks, reads links empty,
judges the users that are due, writes what was decided, and starts again after a stop. It
checks every record for what holds of all records.
"""

from collections.abc import Sequence
from typing import Any, Final

from liveness.core.changes import Changes, Decisions
from liveness.core.limits import Limits
from liveness.core.links.conversation import Conversation
from liveness.core.records import Instant, OnlineRow, Record, Uid
from liveness.core.sessions.clearance import GatewayState
from liveness.core.sessions.firing import Firing
from liveness.core.sessions.gateway_table import GatewayTable
from liveness.core.sessions.presence import Presence
from liveness.core.sessions.restore import restore_sessions
from liveness.core.sessions.storm_guard import NO_GUARD, GuardRules
from liveness.core.wheel.restart import Clocks, no_clocks
from liveness.core.wheel.wheel import Wheel
from liveness.core.wire.framing import encode
from liveness.core.wire.link_requests import ActivityBatch, Login, Logout
from tests.core.conftest import BATCHES, RESTARTS, twin_of

ALL: Final = 10**9
# The two clocks differ, so that using the wrong one shows.
WALL_MS: Final = 1_795_168_800_000
STATE_S: Final = WALL_MS / 1000 - 300

Shown = dict[str, Any]  # a record as it is sent
Sign = tuple[str, Uid, int | None]  # event, uid, conn


def run_of(*frames: object) -> ActivityBatch:
    """These signs of life as a link gives them; the first of them is frame 2."""
    link = Conversation(Limits())
    hello = ["hello", {"protocol": 1, "name": "g"}]
    data = b"".join(encode(frame) for frame in (hello, *frames))
    _, run = link.receive(data, 0.0)
    assert isinstance(run, ActivityBatch)
    return run


class Scene:
    """Gateways and their users over time."""

    def __init__(
        self,
        wheel_class: type[Wheel],
        *,
        timeout: float = 30.0,
        hold: float = 60.0,
        reconnect_grace: float = 0.0,
        guard: GuardRules = NO_GUARD,
        separator: str = "",
    ) -> None:
        self.now, self.mono = 0.0, 1_000.0
        self.wall_ms, self.state_s = WALL_MS, STATE_S
        self.wheel_class, self.timeout = wheel_class, timeout
        self.hold, self.reconnect_grace, self.guard = hold, reconnect_grace, guard
        self.separator = separator
        self.disk: dict[int, OnlineRow] = {}  # by session
        self.timeouts: dict[str, float | None] = {}
        self.in_force: dict[str, float] = {}
        self.log: list[Shown] = []
        self.start()

    def start(self) -> None:
        """Start a sidecar, with the gateways' timeouts that are on disk."""
        wheel = self.wheel_class(
            timeout=self.timeout, slots=30, now=self.now, separator=self.separator
        )
        self.gateways = GatewayTable(
            wheel, timeout=self.timeout, reconnect_grace=self.reconnect_grace
        )
        decided = Decisions(
            len(self.log) + 1, new_batch=twin_of(BATCHES, self.wheel_class).RecordBatch
        )
        self.presence = Presence(
            wheel, self.gateways, decided, device_separator=self.separator
        )
        self.firing = Firing(
            wheel, self.gateways, decided, gateway_hold=self.hold, guard=self.guard
        )
        for name, timeout in self.timeouts.items():
            self.gateways.set_timeout(
                self.gateway(name), timeout, self.now, in_force=self.in_force[name]
            )

    @property
    def at(self) -> Instant:
        """This moment."""
        return Instant(self.now, self.mono, self.wall_ms, self.state_s)

    @property
    def state_ms(self) -> int:
        """This moment as it is stored."""
        return self.at.state_ms

    def gateway(self, name: str) -> GatewayState:
        return self.gateways.add(name)

    # --- links ------------------------------------------------------------------

    def link(
        self,
        name: str,
        *,
        ping: float | None = None,
        timeout: float | None = None,
        clock_offset: float | None = None,
    ) -> None:
        self.timeouts[name] = timeout
        self.gateways.set_timeout(self.gateway(name), timeout, self.now)
        self.in_force[name] = self.gateway(name).in_force
        self.gateway(name).linked(ping=ping, now=self.now, clock_offset=clock_offset)

    def unlink(self, name: str) -> None:
        self.gateway(name).unlinked(self.now)

    # --- events -----------------------------------------------------------------

    def login(
        self,
        name: str,
        uids: Sequence[Uid],
        conns: Sequence[int | None] | None = None,
        *,
        timeout: float | None = None,
        age: float = 0.0,
        began: Sequence[float | None] | None = None,
    ) -> list[Shown]:
        login = Login(uids, conns or [None] * len(uids), timeout, age, began)
        self.presence.login(self.gateway(name), login, self.at)
        return self.written()

    def logout(
        self, name: str, uids: Sequence[Uid], conns: Sequence[int | None] | None = None
    ) -> list[Shown]:
        logout = Logout(uids, conns or [None] * len(uids))
        self.presence.logout(self.gateway(name), logout, self.at)
        return self.written()

    def hear(self, name: str, *signs: Sign) -> list[Shown]:
        if signs:
            run = run_of(*([event, uid, {"conn": conn}] for event, uid, conn in signs))
            assert self.presence.heard(self.gateway(name), run, self.at) == []
        return self.written()

    # --- time -------------------------------------------------------------------

    def pass_time(self, seconds: float, *, absent: float = 0.0) -> None:
        """Let time pass; the sidecar does not run for another *absent* seconds."""
        self.now += seconds
        self.mono += seconds + absent
        self.wall_ms += round((seconds + absent) * 1_000)
        self.state_s += seconds + absent

    def read(self, *names: str) -> None:
        """Hear something from these gateways, and read their links empty."""
        for name in names:
            self.gateway(name).heard(self.now)
            self.gateway(name).empty_at = self.now

    def look_at(self, name: str) -> None:
        """Find nothing in the socket of a gateway."""
        self.gateway(name).empty_at = self.now

    def fire(self, *, limit: int = ALL) -> list[Shown]:
        """Judge all users that may be judged."""
        self.presence.wheel.advance(self.now, ALL)
        while judged := self.firing.fire(self.at, limit=limit):
            assert judged <= limit
        return self.written()

    def wait(self, seconds: float, *names: str) -> list[Shown]:
        """Let time pass, read the links of these gateways, and judge."""
        self.pass_time(seconds)
        self.read(*names)
        return self.fire()

    # --- endings and restarts -----------------------------------------------------

    def lose(self, name: str, *, limit: int = 1_000) -> list[Shown]:
        place = 0
        while place >= 0:
            place = self.firing.reset_sessions(
                [self.gateway(name)], place, self.at, limit=limit
            )
        return self.written()

    def crash(self) -> None:
        """Start again from the disk, with a monotonic clock of another boot."""
        self.now, self.mono = 0.0, 50.0
        self.start()
        self.restore(no_clocks())

    def stop_and_start(self, away: float) -> None:
        """Stop in an orderly way and start again *away* seconds later."""
        clocks = self.presence.wheel.clocks(self.now, self.mono)
        self.now, self.mono = 0.0, 50.0
        self.wall_ms += round(away * 1_000)
        self.state_s += away
        self.start()
        assert [*clocks.sessions] == [*self.disk]
        self.restore(clocks._replace(away=away))

    def restore(self, clocks: Clocks) -> None:
        restorer = twin_of(RESTARTS, self.wheel_class).SessionRestorer(
            clocks, at=self.at, next_seq=self.presence.decided.next_seq
        )
        restore_sessions(self.presence, self.disk.values(), self.at, restorer)

    # --- the disk -----------------------------------------------------------------

    @property
    def kept(self) -> dict[Uid, OnlineRow]:
        """Each user's row on disk; there must be one at most."""
        kept = {row.uid: row for row in self.disk.values()}
        assert len(kept) == len(self.disk)
        return kept

    def written(self) -> list[Shown]:
        """Write the decisions; return their records."""
        changes = self.presence.decided.take()
        changes.change_online(self.disk)
        new = [record.as_map() for record in changes.records]
        self._check(changes, new)
        self.log += new
        return new

    def _check(self, changes: Changes, new: list[Shown]) -> None:
        first = len(self.log) + 1
        assert [shown["seq"] for shown in new] == list(range(first, first + len(new)))
        assert self.presence.decided.next_seq == first + len(new)
        assert len(changes.records.due) == len(changes.records)
        assert changes.ends == sum(shown["kind"] == "offline" for shown in new)
        assert not self.presence.decided.take()
        for record, due in zip(changes.records, changes.records.due, strict=True):
            assert record.at == self.wall_ms
            assert due <= self.mono
            assert isinstance(record, Record)
            assert due == 0.0 or record.reason == "silence"
        assert self.firing.early == 0
        assert len(self.presence) == len(self.kept)
