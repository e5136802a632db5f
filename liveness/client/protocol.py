"""A gateway's end of the protocol, without I/O; the sidecar's is `core.links.conversation`.

One `Client` outlives many links. It makes the hello of each link, takes the sidecar's
frames, and makes the frames to write: reports, acks and pings. The pong to a ping
confirms everything sent before the ping; what is not confirmed when a link ends is sent
again on the next.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from liveness.client.inbox import End, Inbox, RecordMap
from liveness.client.reports import Reports
from liveness.client.tasks import TaskQueues, Timer
from liveness.core.records import MOVED, OFFLINE, HostTime, Uid, identity
from liveness.core.wire.frames import PROTOCOL, parse_hello
from liveness.core.wire.framing import Frame, encode
from liveness.errors import Code, ReportError, WireError

# Promised in the hello. A gateway that is silent for twice as long counts as frozen, and
# its users do not count as silent. That is long enough for a busy event loop. With a
# short timeout it is a quarter of that, so that a freeze is noticed before users come due
# whose last activity is somewhat older than the gateway's last frame. The sidecar waits
# at least a second longer than promised, so less than LEAST_PING_S would not help. Frames
# are written about three times as often as promised.
PING_S: Final = 3.0
LEAST_PING_S: Final = 0.25

EMPTY_KEEPALIVE: Final = encode(["keepalive", []])  # keeps the promise; is not answered

RUN_TIMEOUT_S: Final = 60.0  # if the welcome does not name it


class Welcome(NamedTuple):
    """The sidecar's welcome (`proto/README.md`, "Frames from the sidecar")."""

    log: str
    next: int
    flush: float
    max_batch: int
    max_frame: int
    features: Sequence[str]
    run_timeout: float  # seconds from the firing of a timer to its answer
    began: bool  # it has our clock, so logins carry `began`
    known: bool  # it knew the gateway's name, and its position in the log
    device_separator: str = ""  # "": devices are not counted


class Client:
    """The state of a gateway's protocol: reports, records and timers.

    Raises:
        ReportError: An argument that every sidecar would refuse.
    """

    def __init__(
        self,
        *,
        name: str,
        timeout: float | None,
        fresh: bool | None,
        first_conn: int,
    ) -> None:
        self.name = name
        self.reports = Reports(first_conn)
        self.inbox = Inbox()
        self.tasks = TaskQueues()
        self.welcome: Welcome | None = None  # the latest
        self.is_linked = False  # between a welcome and the end of its link
        self.links = 0
        self.refused = 0  # frames; each one is a bug of this library
        self.pings = 0  # the number of the latest ping, and of the latest answered
        self.pongs = 0
        self._is_pinging = False  # one ping at a time
        self._is_writing = False
        self._link_began: float | None = None  # the first write after the welcome
        self._host_offset = 0.0  # from the clock of logins to CLOCK_MONOTONIC
        self.reports.unfinished_ends = self.inbox.unfinished
        # None: it is fresh unless `adopt_older` is called before the first link.
        self._fresh = fresh
        self._has_older = False  # connections, of an earlier process
        # The sidecar refused this gateway, or gave its name to another process, since the
        # latest welcome.
        self._was_shut_out = False
        # Offlines below this seq were decided meanwhile, and end no connection.
        self._believed_from = 0
        self._acked = 0
        self._requested_ping = 0
        self._options: dict[str, Any] = {"protocol": PROTOCOL, "name": name}
        self._options |= {"kinds": (OFFLINE, MOVED)}
        if timeout is not None:
            self._options["timeout"] = timeout
        check_hello(self._options | {"fresh": fresh})
        self.ping_s = PING_S
        if timeout is not None:
            self.ping_s = min(PING_S, max(timeout / 4, LEAST_PING_S))
        self._options["ping"] = self.ping_s

    # --- what the gateway reports --------------------------------------------------

    def login(
        self, uid: Uid, conn: int | None, *, at: float, timeout: float | None
    ) -> None:
        self.reports.login(uid, conn, at=at, timeout=timeout)
        if conn is None:
            self.inbox.withdraw(uid, None)

    def adopt_older(self) -> None:
        """Note that the gateway has connections that an earlier process had accepted."""
        self._has_older = True

    def logout(self, uid: Uid, conn: int | None) -> None:
        if not self.reports.logout(uid, conn):
            self.inbox.withdraw(uid, conn)

    def after(
        self, key: str, seconds: float, payload: str | None, ext: str | None, now: float
    ) -> None:
        self.reports.timer_requests.after(key, seconds, payload, ext, now)
        self.tasks.forget(key)

    def cancel(self, key: str | None, ext: str | None) -> None:
        self.reports.timer_requests.cancel(key, ext)
        if key is not None:
            self.tasks.forget(key)
        elif ext is not None:
            self.tasks.forget_ext(ext)

    def done(self, timer: Timer, message: str | None) -> None:
        """Answer an attempt; ignored if it is of an old log."""
        if self._is_of_this_log(timer):
            self.reports.timer_requests.done(timer.key, timer.seq, message)

    def fail(self, timer: Timer, message: str, *, final: bool) -> None:
        if self._is_of_this_log(timer):
            requests = self.reports.timer_requests
            requests.fail(timer.key, timer.seq, message, final=final)

    def _is_of_this_log(self, timer: Timer) -> bool:
        return self.welcome is not None and self.welcome.log == timer.log

    # --- how a link begins and ends ----------------------------------------------

    def hello(self, clock: HostTime | None = None, offset: float = 0.0) -> bytes:
        """Return the first frame of a link.

        Args:
            clock: The time now by the host's clocks; None if it cannot be read.
            offset: How far its CLOCK_MONOTONIC is ahead of the clock of logins.
        """
        options = dict(self._options)
        if clock is not None:
            options["clock"] = clock
            self._host_offset = offset
        if self.welcome is None:
            # Logins that wait already are not lost: they are sent after this hello.
            is_new = not self._has_older
            options["fresh"] = is_new if self._fresh is None else self._fresh
        elif finished := self.inbox.finished:
            options |= {"after": finished, "log": self.welcome.log}
        return encode(["hello", options])

    def link_lost(self) -> None:
        if self.is_linked:
            self.is_linked = self._is_pinging = self._is_writing = False
            self._link_began = None
            self._acked = 0
            self.reports.link_lost()

    def shut_out(self) -> None:
        """Note that the sidecar has refused this gateway, or given its name away.

        The open connections live on meanwhile, and nobody reports for them. So at the next
        welcome they are declared again, and the offlines decided before it, of users who
        seemed silent or lost, close none of them. A `moved` still does: such a user has a
        newer connection.
        """
        self._was_shut_out = True

    # --- what is written -----------------------------------------------------------

    @property
    def is_urgent(self) -> bool:
        """Whether something should be written before the collected activity is due."""
        has_ack = self.inbox.finished > self._acked
        return self.reports.has_changes or has_ack or self._must_ping

    def frames(self, now: float, *, is_due: bool) -> Iterator[bytes]:
        """Yield the frames to write now; only while linked.

        Args:
            now: In seconds of the clock of logins.
            is_due: Whether the activity collected so far is due.
        """
        assert self.welcome is not None
        must_ping = self._must_ping
        self._is_writing = True
        if self._link_began is None:
            self._link_began = now
        yield from self.reports.frames(
            now,
            since=self._link_began,
            began=self._host_offset if self.welcome.began else None,
            with_activity=is_due or must_ping,
            max_batch=self.welcome.max_batch,
            max_frame_bytes=self.welcome.max_frame,
        )
        if (finished := self.inbox.finished) > self._acked:
            self._acked = finished
            yield encode(["ack", finished])
        is_useful = is_due and self.reports.unconfirmed and not self._is_pinging
        if (must_ping or is_useful) and not self.reports.has_backlog:
            self.pings += 1
            self._is_pinging = True
            self.reports.ping_sent()
            yield encode(["ping", self.pings])
        self._is_writing = False

    @property
    def _must_ping(self) -> bool:
        return self._requested_ping > self.pongs and not self._is_pinging

    def request_ping(self) -> int:
        """Have a ping written after everything reported so far; return its number."""
        # Frames that are being written now may end in a ping that comes too early.
        number = self.pings + 1 + self._is_writing
        self._requested_ping = max(self._requested_ping, number)
        return number

    def has_pong(self, number: int) -> bool:
        """Whether the ping of that number was answered, or a later one.

        Raises:
            ReportError: The sidecar has no room for the timers asked for.
        """
        if self.pongs < number:
            return False
        if postponed := self.reports.timer_requests.postponed:
            raise ReportError(
                f"the sidecar has no room for {postponed} timers, which are sent "
                "again later; cancel what is not needed, or raise timers.max_live"
            )
        return True

    # --- what is read ------------------------------------------------------------

    def receive(self, frame: Frame) -> str | None:
        """Act on a frame after the welcome; return what to log, if anything."""
        try:
            match frame:
                case ("notices", tuple(records), *_):
                    lines = [self._receive_record(record) for record in records]
                    return next(filter(None, lines), None)
                case ("pong", int(number), *_):
                    self._receive_pong(number)
                case ("pong", *_):
                    raise TypeError("a pong without a number")
                case ("error", {"code": str(code), "message": str(message)}, *_):
                    return self._receive_error(code, message, frame[1])
                case _:
                    pass  # of a later version, which promises that it may be ignored
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise wrong_form(frame) from error
        return None

    def welcomed(self, welcome: Welcome) -> str | None:
        """Begin with a link; return what to log, if anything."""
        before, self.welcome = self.welcome, welcome
        self.is_linked = True
        self.links += 1
        # A log that ends before a record that it has sent is another log.
        is_new_log = before is not None and (
            before.log != welcome.log or welcome.next <= self.inbox.newest
        )
        if is_new_log:
            self.inbox.begin_log()
            self.reports.declare()
            self.reports.timer_requests.forget_answers()
            self._believed_from = 0
        elif before is not None and (self._was_shut_out or not welcome.known):
            self.reports.declare()  # a lost record may have ended a connection
        if self._was_shut_out:
            self._was_shut_out = False
            self._believed_from = welcome.next
        if is_new_log and self.reports.timer_requests.was_used:
            return (
                "the sidecar has begun a new log: timers that were asked for before may "
                "be gone with the old one; ask again for those that matter"
            )
        return None

    def _receive_pong(self, number: int) -> None:
        if self._is_pinging and number == self.pings:
            self.pongs = number
            self._is_pinging = False
            self.reports.pong_received()

    def _receive_error(self, code: str, message: str, options: dict[str, Any]) -> str:
        if code == Code.TOO_MANY_TIMERS and isinstance(key := options.get("key"), str):
            self.reports.timer_requests.postpone(key)
            return f"timers wait until the sidecar has room for them: {message}"
        self.refused += 1
        return f"the sidecar refused a frame: {message} ({code})"

    def _receive_record(self, record: RecordMap) -> str | None:
        seq = int(record["seq"])
        if not self.inbox.is_new(seq):
            return None
        end, line = None, None
        match record:
            case {"kind": "offline", "gateway": self.name, "conn": int(conn)} if (
                seq >= self._believed_from
            ):
                end = self._end_of(conn, str(record["reason"]), record)
            case {"kind": "moved", "from": self.name, "from_conn": int(conn)}:
                end = self._end_of(conn, MOVED, record)
            case {"kind": "gap"}:  # a lost record may have ended a connection
                self.reports.declare()
            case {"kind": "timer", "gateway": self.name}:
                line = self.tasks.add(self._timer_of(record))
            case _:
                pass
        self.inbox.add(seq, end)
        return line

    def _timer_of(self, record: RecordMap) -> Timer:
        assert self.welcome is not None
        return Timer(
            key=str(record["key"]),
            payload=record.get("payload"),
            ext=record.get("ext"),
            due=int(record["due"]),
            attempt=int(record["attempt"]),
            seq=int(record["seq"]),
            log=self.welcome.log,
        )

    def _end_of(self, conn: int, reason: str, record: RecordMap) -> End | None:
        """Close the connection that a record ends; None if it is not open, or another's.

        Its logout is sent too: an activity may have crossed the record and opened a
        session again, which nothing else would end.
        """
        uid = self.reports.uids.get(conn)
        if uid is None or identity(uid) != identity(record["uid"]):
            return None
        return End(uid, self.reports.close(conn), reason, record)


def welcome_of(frame: Frame) -> Welcome:
    """Read a welcome.

    Raises:
        WireError: It is not of this protocol.
    """
    try:
        options = frame[1]
        welcome = Welcome(
            log=str(options["log"]),
            next=int(options["next"]),
            flush=float(options["flush"]),
            max_batch=int(options["max_batch"]),
            max_frame=int(options["max_frame"]),
            features=options.get("features", ()),
            run_timeout=float(options.get("run_timeout", RUN_TIMEOUT_S)),
            began=options.get("began") is True,
            known=options.get("known") is not False,
            device_separator=str(options.get("device_separator", "")),
        )
        times = welcome.flush, welcome.run_timeout
        if welcome.max_batch < 1 or not all(0 <= time < float("inf") for time in times):
            raise ValueError("impossible limits")
    except (
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        OverflowError,
    ) as error:
        raise wrong_form(frame) from error
    return welcome


def wrong_form(frame: object) -> WireError:
    """The error for a frame of another form than the protocol gives it."""
    return WireError(
        Code.BAD_FRAME,
        f"the sidecar sent a frame that is not of protocol {PROTOCOL}: {frame!r:.200}",
    )


def check_hello(options: dict[str, Any]) -> None:
    """Raise a ReportError for what every sidecar would refuse."""
    try:
        parse_hello(("hello", options))
    except WireError as bad:
        raise ReportError(str(bad)) from None
