"""The rules of "Sessions" as a plain model, for the fuzzer, and a presence beside it.

The model is written from the protocol alone. Its times lie on a grid of a quarter second,
far wider than a bucket, so that it knows exactly who is due.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from liveness.core.records import EVENTS, OnlineRow, Uid
from liveness.core.wheel.wheel import Wheel
from liveness.core.wire.link_requests import ActivityBatch
from liveness.core.wire.uids import is_uid
from liveness.lab.common.promises import SessionLog
from tests.core.scene import Scene, Shown

User: TypeAlias = tuple[Uid, int | None]  # uid, conn


@dataclass
class Session:
    """The model of one session."""

    uid: Uid  # as the event had it that opened the session
    gateway: str
    conn: int | None
    session: int
    start_ms: int  # of the state's clock
    timeout: float | None
    due: float = 0.0  # attended seconds
    seen_ms: int = 0
    last: str | None = None  # None: restored, and not heard since


class Sessions:
    """A presence, and what the rules say that it has to do."""

    def __init__(self, wheel_class: type[Wheel], *, timeout: float) -> None:
        self.scene = Scene(wheel_class, timeout=timeout)
        self.online: dict[str, Session] = {}  # by the text of the uid
        self.named = dict[Uid, None]()
        self.linked: dict[str, None] = {}
        self.timeouts: dict[str, float | None] = {}
        self.in_force: dict[str, float] = {}
        self.ignored: Counter[str] = Counter()
        self.seq = 0
        self.log = SessionLog()  # by the records alone
        self.taken = 0

    def sign(self, session: Session, event: str) -> None:
        session.seen_ms, session.last = self.scene.wall_ms, event
        session.due = self.scene.now + self.timeout_of(session)

    def timeout_of(self, session: Session) -> float:
        asked = session.timeout or self.timeouts[session.gateway]
        return asked or self.scene.timeout

    def opened(
        self, kind: str, event: str, uid: Uid, name: str, conn: int | None, *rest: Any
    ) -> Shown:
        before = self.online.get(str(uid))
        self.seq += 1
        session = Session(uid, name, conn, self.seq, *rest)
        self.online[str(uid)] = session
        self.sign(session, event)
        shown = self.shown(kind, uid, event)
        if before is not None:
            shown |= {"from": before.gateway, "from_session": before.session}
            shown |= {} if before.conn is None else {"from_conn": before.conn}
        return shown

    def shown(self, kind: str, uid: Uid, reason: str) -> Shown:
        session = self.online[str(uid)]
        conn = {} if session.conn is None else {"conn": session.conn}
        return conn | {
            "seq": self.seq, "kind": kind, "uid": session.uid, "reason": reason,
            "gateway": session.gateway, "session": session.session,
            "at": self.scene.wall_ms,
        }  # fmt: skip

    def ended(self, uid: Uid, reason: str) -> Shown:
        self.seq += 1
        shown = self.shown("offline", uid, reason)
        session = self.online.pop(str(uid))
        shown["silence"] = (self.scene.wall_ms - session.seen_ms) / 1_000
        if session.last is None:
            return shown | {"restored": True}
        return shown | {"seen": session.seen_ms, "last": session.last}

    def login(
        self, name: str, who: Sequence[User], *, timeout: float | None, age: float
    ) -> None:
        self.named |= dict.fromkeys(uid for uid, _ in who)
        start_ms = self.scene.state_ms - int(age * 1_000)
        expected = []
        for uid, conn in who:
            session = self.online.get(str(uid))
            new = ("login", uid, name, conn, start_ms, timeout)
            if session is None:
                expected.append(self.opened("online", *new))
            elif session.gateway == name and session.conn in (conn, None):
                session.conn, session.timeout = conn, timeout
                self.sign(session, "login")
            elif session.start_ms > start_ms:
                self.ignored["older"] += 1
            else:
                expected.append(self.opened("moved", *new))
        uids, conns = [uid for uid, _ in who], [conn for _, conn in who]
        got = self.scene.login(name, uids, conns, timeout=timeout, age=age)
        assert got == expected
        self.check()

    def signs_of_life(
        self, name: str, signs: ActivityBatch
    ) -> list[tuple[int, int, int]]:
        """Apply them; return the faults that `Presence.heard` reports."""
        expected = []
        bad = dict[int, tuple[int, int, int]]()  # by frame
        for position in range(len(signs.uids)):
            uid, conn, number = signs.at(position)
            if not is_uid(uid):
                n, index = signs.frame_at(position)
                bad.setdefault(n, (n, position, index))
                continue
            self.named[uid] = None
            event = EVENTS[number]
            session = self.online.get(str(uid))
            if session is None:
                now_ms = self.scene.state_ms
                new = (event, uid, name, conn, now_ms, None)
                expected.append(self.opened("online", *new))
            elif session.gateway != name:
                self.ignored["other_gateway"] += 1
            elif None not in (conn, session.conn) and conn != session.conn:
                self.ignored["other_conn"] += 1
            else:
                self.sign(session, event)
        told = self.scene.presence.heard(self.scene.gateway(name), signs, self.scene.at)
        assert told == [*bad.values()]
        assert self.scene.written() == expected
        self.check()
        return told

    def logout(self, name: str, who: Sequence[User]) -> None:
        expected = []
        self.named |= dict.fromkeys(uid for uid, _ in who)
        for uid, conn in who:
            session = self.online.get(str(uid))
            if session is None:
                self.ignored["offline"] += 1
            elif session.gateway != name:
                self.ignored["other_gateway"] += 1
            elif conn is not None and conn != session.conn:
                self.ignored["other_conn"] += 1
            else:
                session.seen_ms, session.last = self.scene.wall_ms, "logout"
                expected.append(self.ended(uid, "logout"))
        uids, conns = [uid for uid, _ in who], [conn for _, conn in who]
        assert self.scene.logout(name, uids, conns) == expected
        self.check()

    def time_passes(self, seconds: float, *, absent: float, limit: int) -> None:
        self.scene.pass_time(seconds, absent=absent)
        self.scene.read(*self.linked)
        got = self.scene.fire(limit=limit)
        due = [s.uid for s in self.online.values() if s.due < self.scene.now]
        # Within a pass the order is the wheel's and the gateways'.
        assert sorted(map(repr, due)) == sorted(repr(shown["uid"]) for shown in got)
        for shown in got:
            session = self.online[str(shown["uid"])]
            is_linked = session.gateway in self.linked
            reason = "silence" if is_linked else "gateway_lost"
            assert shown == self.ended(shown["uid"], reason)
        self.check()

    def hello(self, name: str, *, timeout: float | None, is_fresh: bool) -> None:
        self.timeouts[name] = timeout
        self.link_begins(name)
        if is_fresh:
            got = self.scene.lose(name)
            mine = {s.uid for s in self.online.values() if s.gateway == name}
            assert {shown["uid"] for shown in got} == mine
            for shown in got:
                assert shown == self.ended(shown["uid"], "gateway_lost")
        self.check()

    def link_begins(self, name: str) -> None:
        timeout = self.timeouts[name]
        self.scene.link(name, timeout=timeout)
        self.linked[name] = None
        before = self.in_force.get(name, self.scene.timeout)
        self.in_force[name] = timeout or self.scene.timeout
        if any(session.gateway == name for session in self.online.values()):
            self.in_force[name] = max(before, self.in_force[name])

    def link_ends(self, name: str) -> None:
        self.scene.unlink(name)
        self.linked.pop(name, None)

    def crash(self) -> None:
        self.scene.crash()
        for session in self.online.values():
            session.seen_ms, session.last = self.scene.wall_ms, None
            in_force = session.timeout or self.in_force[session.gateway]
            session.due = self.scene.now + in_force
        self.restarted()

    def planned_stop(self, away: float) -> None:
        before = self.scene.now
        self.scene.stop_and_start(away)
        for session in self.online.values():
            session.due += self.scene.now - before
        self.restarted()

    def restarted(self) -> None:
        self.ignored.clear()
        for name in self.linked:
            self.link_begins(name)
        self.check()

    def check(self) -> None:
        scene, presence = self.scene, self.scene.presence
        for shown in scene.log[self.taken :]:
            assert self.log.take(shown) == []
        self.taken = len(scene.log)
        assert {it["session"] for it in self.log.open.values()} == {*scene.disk}
        assert scene.disk == {
            s.session: OnlineRow(
                s.session, s.uid, s.start_ms, s.conn, s.gateway, s.timeout
            )
            for s in self.online.values()
        }
        assert presence.where([*self.named]) == [
            (s.uid, s.gateway, s.session, s.conn)
            for uid in self.named
            if (s := self.online.get(str(uid))) is not None
        ]
        for name in self.timeouts:
            users = sum(s.gateway == name for s in self.online.values())
            assert scene.gateway(name).users == users
        assert +presence.ignored == +self.ignored
        assert scene.firing.early == 0
