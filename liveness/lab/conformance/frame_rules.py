"""The rules that every frame of the gateway has to keep, in all situations."""

from dataclasses import dataclass
from typing import Any, Final

from liveness.lab.conformance.rules import Findings
from liveness.lab.conformance.tape import (
    ACTIVITY,
    BROKEN,
    EVENTS,
    OPENED,
    Reported,
    Seen,
    records,
    reports,
)

# By the code of an error that the sidecar sends: the broken rule, and what it expects.
REFUSALS: Final = {
    "too-large": (4, "within the limits"),
    "bad-msgpack": (2, "plain msgpack"),
    "too-deep": (2, "plain msgpack"),
    "bad-uid": (2, "text in UTF-8, or an integer"),
}
BY_SCRIPT: Final = "made by the script"  # an error sent by a situation
HELLO_S: Final = 5.0
EXACT: Final = 2**53  # doubles hold all integers below
MOST_CONN: Final = 2**63 - 1
SAME_S: Final = 0.05  # between two statements of when a connection began
# From the oldest to the newest connection in a login with an `age`: "a tenth of a second".
SAME_AGE_S: Final = 0.5


@dataclass(slots=True)
class ConnSeen:
    user: str | None
    process: int
    began: float | None = None
    logged_out_on: int | None = None  # link
    ended_by: int | None = None  # seq of the record
    is_over: bool = False  # logged out, or its end was acknowledged


class FrameRules:
    """Looks at each frame as it passes."""

    def __init__(self, findings: Findings, name: str) -> None:
        self.process = 0  # the number of starts of the gateway
        self.conns: dict[object, ConnSeen] = {}
        self.welcomed: dict[int, dict[str, Any]] = {}  # the options, by link
        self.newest_sent = 0  # seq, in this log
        self._findings = findings
        self._name = name
        self._has_said_hello = False  # this process
        self._opened: dict[int, float] = {}
        self._greeted: set[int] = set()
        self._log: object = None
        self._recent: list[Seen] = []

    def new_process(self) -> None:
        self.process += 1
        self._has_said_hello = False

    def look(self, seen: Seen) -> None:
        self._recent = [*self._recent[-11:], seen]
        if seen.name == OPENED:
            self._opened[seen.link] = seen.at
        elif seen.is_sent:
            self._look_at_sent(seen)
        elif seen.name == BROKEN:
            self._fail(2, f"bytes that are no msgpack: {seen.frame[1]}", "frames")
        elif isinstance(seen.name, str) and seen.link in self._opened:
            self._look_at_received(seen)

    def _fail(self, rule: int, seen: str, expected: str) -> None:
        self._findings.fail(rule, seen, expected, self._recent)

    # --- frames of the sidecar --------------------------------------------------------

    def _look_at_sent(self, seen: Seen) -> None:
        match seen.frame:
            case ("welcome", dict(options)):
                self.welcomed[seen.link] = options
                following = int(options["next"])
                if options["log"] != self._log or following <= self.newest_sent:
                    self.newest_sent = following - 1
                self._log = options["log"]
            case ("error", {"code": code, "message": why}) if (
                code in REFUSALS and why != BY_SCRIPT
            ):
                rule, expected = REFUSALS[code]
                self._fail(rule, f"a frame was refused: {why}", expected)
            case _:
                pass
        for record in records(seen):
            seq = record["seq"]
            following = self.welcomed.get(seen.link, {}).get("next", 0)
            is_new = seq > self.newest_sent and seq >= following
            self.newest_sent = max(self.newest_sent, seq)
            ended = self.conns.get(self.conn_ended_by(record))
            if is_new and ended is not None:
                ended.ended_by = seq

    def conn_ended_by(self, record: dict[str, Any]) -> object:
        if record.get("kind") == "offline" and record.get("gateway") == self._name:
            return record.get("conn")
        if record.get("kind") == "moved" and record.get("from") == self._name:
            return record.get("from_conn")
        return None

    # --- frames of the gateway --------------------------------------------------------

    def _look_at_received(self, seen: Seen) -> None:
        if seen.name == "hello":
            self._look_at_hello(seen)
            return
        if seen.link not in self._greeted:
            self._greeted.add(seen.link)
            self._fail(1, f"the first frame is {seen.name!r:.40}", "hello")
        if seen.name in EVENTS:
            if seen.link not in self.welcomed:
                self._fail(3, f"{seen.name} before welcome", "events after welcome")
            else:
                self._findings.passed.add(3)
            if seen.name == "login":
                self._look_at_beginnings(seen)
            for report in reports(seen):
                self._look_at_report(report)
        elif seen.name == "ack" and len(seen.frame) > 1:
            self._look_at_ack(seen.content)

    def _look_at_hello(self, seen: Seen) -> None:
        took_s = seen.at - self._opened[seen.link]
        if seen.link in self._greeted:
            self._fail(1, "a second hello on one link", "one, as the first frame")
            return
        self._greeted.add(seen.link)
        if took_s > HELLO_S:
            self._fail(1, f"hello {took_s:.1f} s after connecting", "within 5 s")
        else:
            self._findings.passed.add(1)
        is_fresh = seen.options.get("fresh") is True
        if self._has_said_hello:
            if is_fresh:
                self._fail(26, "fresh: true at a reconnect", "no fresh at a reconnect")
        elif not is_fresh:
            self._fail(26, "no fresh: true after a start", "fresh: true")
        else:
            self._findings.passed.add(26)
        self._has_said_hello = True
        after, newest = seen.options.get("after"), self.newest_sent
        is_of_log = seen.options.get("log", 0) == self._log
        if is_of_log and isinstance(after, int) and after > newest:
            self._fail(19, f"hello with after {after}", f"at most {newest}")

    def _look_at_beginnings(self, seen: Seen) -> None:
        began = seen.options.get("began")
        if isinstance(began, tuple) and seen.options.get("age"):
            moments = [at for at in began if isinstance(at, float | int)]
            if moments and max(moments) - min(moments) > SAME_AGE_S:
                self._fail(30, "one age for connections of different age", "batches")
        if began is None and self.welcomed.get(seen.link, {}).get("began") is True:
            self._fail(30, "a login without began", "welcome.began is true")

    def _look_at_report(self, report: Reported) -> None:
        event, uid, conn, seen = report
        own_rule = 9 if event == "login" else 11
        if report.user is None:
            return  # the sidecar refuses it, which breaks another rule
        if conn is None:
            self._fail(own_rule, f"{event} of {uid!r} without conn", "its conn")
            return
        if type(conn) is not int or not 0 <= conn <= MOST_CONN:
            self._fail(2, f"conn {conn!r:.40} is a {type(conn).__name__}", "an integer")
            return
        self._findings.passed |= {2, own_rule}
        if conn >= EXACT:
            self._fail(10, f"conn {conn}", "below 2^53")
        known = self.conns.get(conn)
        if event == "login":
            self._look_at_login(report, conn, known)
        elif known is not None and event == "logout":
            known.is_over, known.logged_out_on = True, seen.link
        elif known is not None and event in ACTIVITY and known.is_over:
            self._fail(
                15, f"{event} of conn {conn} after its end", "nothing more of it"
            )

    def _look_at_login(
        self, report: Reported, conn: int, known: ConnSeen | None
    ) -> None:
        user, process, why = report.user, self.process, ""
        if known is not None and (known.user, known.process) != (user, process):
            earlier = "" if known.process == process else " of an earlier process"
            why = f"conn {conn} of {user!r} was that of {known.user!r}{earlier}"
        elif known is not None and known.logged_out_on == report.seen.link:
            why = f"conn {conn} logs in again after its logout"
        elif known is not None and known.logged_out_on is not None:
            self._fail(28, f"login of conn {conn}, which had ended", "only its logout")
        if why:
            self._fail(10, why, "a new one")
        if why or known is None:
            known = self.conns[conn] = ConnSeen(user, process)
        began = _began(report)
        if began is not None:
            if known.began is not None and abs(began - known.began) > SAME_S:
                self._fail(30, f"another began for conn {conn}", "always the same one")
            known.began = began

    def _look_at_ack(self, seq: object) -> None:
        if type(seq) is not int:
            self._fail(2, f"ack of {seq!r:.40}", "an integer")
        elif seq > self.newest_sent:
            self._fail(
                19, f"ack {seq}", f"the newest record sent was {self.newest_sent}"
            )
        else:
            for conn in self.conns.values():
                if conn.ended_by is not None and conn.ended_by <= seq:
                    conn.is_over = True


def _began(report: Reported) -> float | None:
    options = report.seen.options
    began, conns = options.get("began"), options["conn"]
    if isinstance(began, tuple) and isinstance(conns, tuple):
        place = conns.index(report.conn)
        began = began[place] if place < len(began) else None
    return began if type(began) in (float, int) else None
