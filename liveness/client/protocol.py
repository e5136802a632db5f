"""A gateway's end of its links, as pure as the sidecar's own (`core.conversation`).

One `Client` outlives many links. It makes each hello, takes what the sidecar says, and
gives what is to be written: what was reported, acks, and pings whose pongs tell what
need not be told again.
"""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple

from liveness.client.inbox import Arrival, End, Inbox, RecordMap
from liveness.client.reports import Reports
from liveness.client.tasks import Run, Tasks
from liveness.core.frames import PROTOCOL, BadFrame, parse_hello
from liveness.core.framing import Frame, encode
from liveness.core.records import MOVED, TIMER, HostTime, Uid
from liveness.errors import Code, Refused, Replaced, ReportError, WireError

# Promised in hello. A gateway that is not heard for twice as long is taken for frozen, and
# none of its users for silent: long enough for a busy event loop. With a short timeout a
# quarter of it, so that this is known before users come due whose last sign is some time
# older than the gateway's. The sidecar waits for a second more than the promise in any
# case, so less than LEAST_PING_S would not help. Something is written about three times
# as often.
PING_S: Final = 3.0
LEAST_PING_S: Final = 0.25

# Who connects again after one of these is refused again; `Refused` is for a person.
FINAL: Final = frozenset(
    {Code.REPLACED, Code.BAD_HELLO, Code.UNSUPPORTED_PROTOCOL, Code.NOT_ALLOWED}
)

TIMERS: Final = "timers"  # among the features of a sidecar that has them
RUN_TIMEOUT_S: Final = 60.0  # where a sidecar does not say

NOTHING: Final = encode(["keepalive", []])  # keeps the promise, and asks for no answer


class Welcome(NamedTuple):
    """What the sidecar said of itself (`proto/README.md`, "Frames from the sidecar")."""

    log: str
    next: int
    timeout: float
    flush: float
    max_batch: int
    max_frame: int
    server: str
    features: Sequence[str]
    run_timeout: float  # of a timer: seconds from its firing to the answer
    began: bool  # whether it has our clock, so that logins tell when they began on it
    known: bool  # whether it knew the name, and where in the log it was


class Client:
    """What a gateway reports, what it is told, and how far both have got.

    Args:
        name: The gateway's.
        timeout: The silence timeout of its users, in seconds; None for the sidecar's.
        kinds: Which records it wants.
        fresh: Whether it starts without connections; None: unless it `adopts` one
            before the first link begins.
        first_conn: See `Reports`.
    Raises:
        ReportError: Something of it no sidecar would take.
    """

    def __init__(
        self,
        *,
        name: str,
        timeout: float | None,
        kinds: Sequence[str],
        fresh: bool | None,
        first_conn: int,
    ) -> None:
        self.name = name
        self.reports = Reports(first_conn)
        self.inbox = Inbox()
        self.tasks = Tasks()
        self.welcome: Welcome | None = None  # the latest
        self.is_linked = False  # between a welcome and the end of its link
        self.links = 0
        self.refused = 0  # frames; each is a fault of ours
        self.pings = 0  # the number of the latest, and of the latest answered
        self.pongs = 0
        self._is_pinging = False  # one at a time
        self._is_writing = False
        self._link_began: float | None = None  # when it was first written to
        self._host_offset = 0.0  # from the owner's clock to CLOCK_MONOTONIC
        # Ends that a reader has still to be handed, by whose and which connection: it may
        # close by itself before that, or a user without conns be back.
        self._ends: dict[tuple[Uid, int | None], Arrival] = {}
        self.reports.ended = self._ends
        self._fresh = fresh
        self._has_adopted = False
        self._acked = 0
        self._wanted_pong = 0
        self._options: dict[str, Any] = {"protocol": PROTOCOL, "name": name}
        self._options |= {"kinds": tuple(kinds)}
        if timeout is not None:
            self._options["timeout"] = timeout
        self._check_hello(fresh)
        self.ping_s = PING_S
        if timeout is not None:
            self.ping_s = min(PING_S, max(timeout / 4, LEAST_PING_S))
        self._options["ping"] = self.ping_s

    # --- what the gateway reports --------------------------------------------------

    def login(
        self, uid: Uid, conn: int | None, *, at: float, timeout: float | None
    ) -> None:
        """Open a connection; see `Reports.login`. One that has ended stays closed."""
        self.reports.login(uid, conn, at=at, timeout=timeout)
        if conn is None:
            self._take_back_end(uid, None)

    def adopts(self) -> None:
        """Note that a connection is reported which an earlier process had begun."""
        self._has_adopted = True

    def logout(self, uid: Uid, conn: int | None) -> None:
        """Close a connection; see `Reports.logout`."""
        if not self.reports.logout(uid, conn):
            self._take_back_end(uid, conn)

    def after(
        self, key: str, seconds: float, payload: str | None, ext: str | None, now: float
    ) -> None:
        """Ask for a timer; see `Schedule.after`. What it replaces is not started."""
        self.reports.schedule.after(key, seconds, payload, ext, now)
        self.tasks.forget(key)

    def cancel(self, key: str | None, ext: str | None) -> None:
        """Cancel timers; see `Schedule.cancel`. None of them is started any more."""
        self.reports.schedule.cancel(key, ext)
        if key is not None:
            self.tasks.forget(key)
        elif ext is not None:
            self.tasks.forget_ext(ext)

    def done(self, run: Run, message: str | None) -> None:
        """Answer a run; see `Schedule.done`. One of an old log concerns nobody."""
        if self._is_known(run):
            self.reports.schedule.done(run.key, run.seq, message)

    def fail(self, run: Run, message: str, *, final: bool) -> None:
        """Answer a run; see `Schedule.fail`. One of an old log concerns nobody."""
        if self._is_known(run):
            self.reports.schedule.fail(run.key, run.seq, message, final=final)

    def _is_known(self, run: Run) -> bool:
        return self.welcome is not None and self.welcome.log == run.log

    def _take_back_end(self, uid: Uid, conn: int | None) -> None:
        if arrival := self._ends.pop((uid, conn), None):
            arrival.end = None

    # --- a link begins and ends ------------------------------------------------

    def hello(self, clock: HostTime | None = None, offset: float = 0.0) -> bytes:
        """Give the first frame of a link.

        Args:
            clock: Now by the host's clocks; None if they cannot be told.
            offset: How far its CLOCK_MONOTONIC is ahead of the clock of logins.
        """
        options = dict(self._options)
        if clock is not None:
            options["clock"] = clock
            self._host_offset = offset
        if self.welcome is None:
            # Logins that wait already do no harm: they are told behind this.
            is_new = not self._has_adopted
            options["fresh"] = is_new if self._fresh is None else self._fresh
        elif finished := self.inbox.finished:
            options |= {"after": finished, "log": self.welcome.log}
        return encode(["hello", options])

    def lost(self) -> None:
        """Note that the link has ended; the next one tells what it may have lost."""
        if self.is_linked:
            self.is_linked = self._is_pinging = self._is_writing = False
            self._link_began = None
            self._acked = 0
            self.reports.lost()

    # --- what is written -----------------------------------------------------------

    @property
    def is_urgent(self) -> bool:
        """Whether something should not wait until the collected signs are due."""
        has_ack = self.inbox.finished > self._acked
        return self.reports.has_changes or has_ack or self._wants_ping

    def frames(self, now: float, *, is_due: bool) -> Iterator[bytes]:
        """Give what is to be written now, encoded; only while linked.

        Args:
            now: In seconds of the clock that logins are told by.
            is_due: Whether the signs of life collected so far are due.
        """
        assert self.welcome is not None
        is_wanted = self._wants_ping
        self._is_writing = True
        if self._link_began is None:
            self._link_began = now
        yield from self.reports.frames(
            now,
            since=self._link_began,
            began=self._host_offset if self.welcome.began else None,
            signs=is_due or is_wanted,
            max_batch=self.welcome.max_batch,
            max_frame_bytes=self.welcome.max_frame,
        )
        if (finished := self.inbox.finished) > self._acked:
            self._acked = finished
            self._forget_ends(finished)
            yield encode(["ack", finished])
        is_useful = is_due and self.reports.unconfirmed and not self._is_pinging
        if (is_wanted or is_useful) and not self.reports.is_behind:
            self.pings += 1
            self._is_pinging = True
            self.reports.pinged()
            yield encode(["ping", self.pings])
        self._is_writing = False

    def _forget_ends(self, finished: int) -> None:
        """Those that every reader has been handed; the oldest are in front."""
        handed = takewhile(lambda item: item[1].seq <= finished, self._ends.items())
        for key, _ in list(handed):
            del self._ends[key]

    @property
    def _wants_ping(self) -> bool:
        return self._wanted_pong > self.pongs and not self._is_pinging

    def want_pong(self) -> int:
        """Ask for a ping behind all that was reported; return its number.

        `pongs` is that number or a higher one once all of it is on the sidecar's disk.
        """
        # The ping of what is just being written would not be behind all of it.
        number = self.pings + 1 + self._is_writing
        self._wanted_pong = max(self._wanted_pong, number)
        return number

    def has_pong(self, number: int) -> bool:
        """Whether the ping of that number was answered, or a later one.

        Raises:
            ReportError: The sidecar cannot be told all of it.
        """
        schedule = self.reports.schedule
        if self.is_linked and schedule.pending and not schedule.is_understood:
            raise ReportError(self._no_timers())
        if self.pongs < number:
            return False
        if schedule.refused:
            raise ReportError(
                f"the sidecar has no room for {schedule.refused} timers, which are asked "
                "for again; cancel what is not needed, or raise timers.max_live"
            )
        return True

    # --- what is read ------------------------------------------------------------

    def take(self, frame: Frame) -> str | None:
        """Act on a frame of the sidecar's; return what should be logged of it.

        Raises:
            Refused: The link is over. Unless the code is in `FINAL`, another may go on.
            WireError: This is no sidecar that we understand.
        """
        try:
            match frame:
                case ("notices", tuple(records), *_):
                    remarks = [self._take_record(record) for record in records]
                    return next(filter(None, remarks), None)
                case ("pong", int(number), *_):
                    self._take_pong(number)
                case ("welcome", dict(options), *_):
                    return self._take_welcome(options)
                case ("error", {"code": str(code), "message": str(message)}, *_):
                    return self._take_error(code, message, frame[1])
                case ("bye", {"reason": str(reason)}, *_):
                    return f"the sidecar says bye: {reason}"
                case ("notices" | "pong" | "welcome" | "error" | "bye", *_):
                    raise TypeError("a frame of another form")
                case _:
                    pass  # what a later version says unasked may be ignored
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise WireError(
                Code.BAD_FRAME,
                f"the sidecar sent a frame that is not of protocol {PROTOCOL}: "
                f"{frame!r:.200}",
            ) from error
        return None

    def _take_welcome(self, options: dict[str, Any]) -> str | None:
        before = self.welcome
        welcome = Welcome(
            log=str(options["log"]),
            next=int(options["next"]),
            timeout=float(options["timeout"]),
            flush=float(options["flush"]),
            max_batch=int(options["max_batch"]),
            max_frame=int(options["max_frame"]),
            server=str(options.get("server", "")),
            features=options.get("features", ()),
            run_timeout=float(options.get("run_timeout", RUN_TIMEOUT_S)),
            began=options.get("began") is True,
            known=options.get("known") is not False,
        )
        times = welcome.flush, welcome.run_timeout
        if welcome.max_batch < 1 or not all(0 <= time < float("inf") for time in times):
            raise ValueError("limits that nobody can keep")
        self.welcome = welcome
        self.is_linked = True
        self.links += 1
        # One that ends before what it has sent has lost its end.
        is_new_log = before is not None and (
            before.log != welcome.log or welcome.next <= self.inbox.seen
        )
        if is_new_log:
            self.inbox.new_log()
            for key in [key for key, one in self._ends.items() if one.seq]:
                del self._ends[key]
            self.reports.declare()
            self.reports.schedule.forget_answers()
        elif before is not None and not welcome.known:
            self.reports.declare()  # what was lost meanwhile may have ended a connection
        return self._remark_on_timers(is_new_log=is_new_log)

    def _remark_on_timers(self, *, is_new_log: bool) -> str | None:
        """What a welcome means to a program that has timers."""
        assert self.welcome is not None
        schedule = self.reports.schedule
        schedule.is_understood = TIMERS in self.welcome.features
        if not (schedule.has_spoken or self.tasks.are_used):
            return None
        if not schedule.is_understood:
            return self._no_timers()
        if is_new_log and schedule.has_spoken:
            return (
                "the sidecar has begun a new log: timers that were asked for before may "
                "be gone with the old one; ask again for those that matter"
            )
        return None

    def _no_timers(self) -> str:
        assert self.welcome is not None
        return (
            f"the sidecar ({self.welcome.server}) has no timers: none fires, and "
            f"{self.reports.schedule.pending} words about them wait for one that has; "
            "update it"
        )

    def _take_pong(self, number: int) -> None:
        if self._is_pinging and number == self.pings:
            self.pongs = number
            self._is_pinging = False
            self.reports.confirmed()

    def _take_error(self, code: str, message: str, told: dict[str, Any]) -> str:
        if code == Code.REPLACED:
            raise Replaced(
                code,
                f"another process said hello as {self.name!r}, and has the link now; "
                "give each gateway a name of its own",
            )
        if told.get("fatal", True):
            raise Refused(code, message)
        if code == Code.TOO_MANY_TIMERS and isinstance(key := told.get("key"), str):
            self.reports.schedule.no_room(key)
            return f"timers wait until the sidecar has room for them: {message}"
        self.refused += 1
        return f"the sidecar refused a frame: {message} ({code})"

    def _take_record(self, record: RecordMap) -> str | None:
        seq = int(record["seq"])
        if not self.inbox.is_new(seq):
            return None
        end, remark = None, None
        match record:
            case {"kind": "offline", "gateway": self.name, "conn": int(conn)}:
                end = self._ended(conn, str(record["reason"]), record)
            case {"kind": "moved", "from": self.name, "from_conn": int(conn)}:
                end = self._ended(conn, MOVED, record)
            case {"kind": "gap"}:  # some of what is lost may have ended a connection
                self.reports.declare()
            case {"kind": "timer", "gateway": self.name}:
                remark = self.tasks.add(self._run(record))
            case _:
                pass
        arrival = Arrival(seq, record, end, waits=record.get("kind") != TIMER)
        if end is not None:
            self._ends[end.uid, end.conn] = arrival
        self.inbox.add(arrival)
        return remark

    def _run(self, record: RecordMap) -> Run:
        assert self.welcome is not None
        return Run(
            log=self.welcome.log,
            seq=int(record["seq"]),
            key=str(record["key"]),
            payload=record.get("payload"),
            ext=record.get("ext"),
            due=int(record["due"]),
            attempt=int(record["attempt"]),
        )

    def _ended(self, conn: int, reason: str, record: RecordMap) -> End | None:
        """The end of an open connection of that very conn and user; else None.

        Its logout is told too: a sign of life may just have crossed the record, and have
        begun a session that nobody else would end.
        """
        uid = self.reports.uids.get(conn)
        if uid is None or uid != record["uid"]:
            return None
        return End(uid, self.reports.close(conn), reason, record)

    def _check_hello(self, fresh: bool | None) -> None:
        try:
            parse_hello(("hello", self._options | {"fresh": fresh}))
        except BadFrame as bad:
            raise ReportError(str(bad)) from None
