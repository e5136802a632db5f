"""The demo's gateway with one fault, to see that the conformance run catches it.

    python -m tests.lab.conformance.wrong_gateway FAULT [the demo gateway's options]

Each fault replaces a part of the Python client, in this process only.
"""

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain, zip_longest
from typing import Any, Final

import anyio
import trio

import liveness
from liveness.client import reconnecting_link, reports
from liveness.client.inbox import Inbox
from liveness.client.protocol import Client
from liveness.client.reconnecting_link import ReconnectingLink
from liveness.client.reports import Reports
from liveness.core.framing import Reader, decode, encode
from liveness.errors import Code, Refused, Replaced, WireError
from liveness.lab.demo import gateway

Fault = Callable[[], object]
FAULTS: Final[dict[str, tuple[int, Fault]]] = {}  # by name: the rule it breaks

original_hello = Client.hello
original_record = Client._receive_record
original_welcome = Client._receive_welcome
original_encode = encode


# No fault: a gateway that breaks no rule.
INTEGERS: Final = "integers-of-digits"
CHANGES: Final = ("login", "logout")


def fault(rule: int) -> Callable[[Fault], Fault]:
    """Add a function that makes the gateway break a rule."""

    def add(function: Fault) -> Fault:
        FAULTS[function.__name__.replace("_", "-")] = rule, function
        return function

    return add


def change_hello(change: Callable[[Client, dict[str, Any]], object]) -> None:
    """Have each hello changed."""

    def hello(self: Client, *args: Any) -> bytes:
        (_, options), *_ = Reader(max_frame_bytes=9_999, max_batch=9_999).feed(
            original_hello(self, *args)
        )
        change(self, options)
        return encode(["hello", options])

    set_(Client, "hello", hello)


def change_events(change: Callable[[str, dict[str, Any]], object]) -> None:
    """Have the options of each event changed."""

    def changed(frame: Any) -> bytes:
        name, uids, options = frame
        change(name, options)
        return original_encode([name, uids, options])

    set_(reports, "encode", changed)


def set_(owner: Any, name: str, value: object) -> None:
    """Replace a part."""
    setattr(owner, name, value)


# --- the link -------------------------------------------------------------------------


@fault(1)
def hello_twice() -> None:
    def hello(self: Client, *args: Any) -> bytes:
        return 2 * original_hello(self, *args)

    set_(Client, "hello", hello)


@fault(2)
def conns_as_floats() -> None:
    change_events(
        lambda _, options: options.update(
            conn=[float(conn) for conn in options["conn"]]
        )
    )


@fault(2)
def uids_in_latin_1() -> None:
    set_(
        reports,
        "encode",
        lambda frame: encode(frame).replace("é".encode(), b"\xe9\xe9"),
    )


@fault(3)
def events_before_welcome() -> None:
    def hello(self: Client, *args: Any) -> bytes:
        users = dict([*self.reports.uids.items()][:3])
        events = encode(["keepalive", [*users.values()], {"conn": [*users]}])
        return original_hello(self, *args) + events

    set_(Client, "hello", hello)


def _unlimited(**limits: int) -> None:
    def welcome(self: Client, options: dict[str, Any]) -> str | None:
        return original_welcome(self, options | limits)

    set_(Client, "_receive_welcome", welcome)


@fault(4)
def any_batch() -> None:
    _unlimited(max_batch=1_000_000, max_frame=1_000_000)


@fault(4)
def any_frame() -> None:
    _unlimited(max_frame=1_000_000)


@fault(5)
def stands_while_it_writes() -> None:
    async def write(self: Any, stream: Any, *, is_due: bool) -> bool:
        self._is_write_requested = False
        self._write_event = anyio.Event()
        data = b"".join(self.client.frames(self.clock(), is_due=is_due))
        whole = bool(data)
        while data:
            try:
                data = data[os.write(stream._raw_socket.fileno(), data) :]
            except BlockingIOError:
                time.sleep(0.01)  # noqa: ASYNC251 - this is the fault
            except OSError:
                break
        return whole

    set_(ReconnectingLink, "_write_frames", write)


@fault(6)
def frames_come_whole() -> None:
    def feed(self: Reader, data: bytes) -> Iterator[Any]:
        yield from Reader(max_frame_bytes=2**24, max_batch=25_000)._piece(data)

    set_(Reader, "feed", feed)


@fault(18)
def seqs_outlive_their_log() -> None:
    original, highest = Inbox.is_new, [0]

    def is_new(self: Inbox, seq: int) -> bool:
        is_higher, highest[0] = seq > highest[0], max(seq, highest[0])
        return original(self, seq) and is_higher

    set_(Inbox, "is_new", is_new)


@fault(6)
def half_frames_outlive_their_link() -> None:
    only = Reader(max_frame_bytes=2**24, max_batch=25_000)
    set_(reconnecting_link, "Reader", lambda **_limits: only)


@fault(7)
def knows_all_frames() -> None:
    original = Client.receive

    def receive(self: Client, frame: Any) -> str | None:
        if frame[0] not in ("welcome", "notices", "pong", "error", "bye"):
            raise WireError(Code.UNKNOWN_FRAME, f"what is {frame[0]}?")
        return original(self, frame)

    set_(Client, "receive", receive)


@fault(7)
def acks_known_kinds_only() -> None:
    def record(self: Client, each: Any) -> str | None:
        known = each["kind"] in ("offline", "moved", "gap")
        return original_record(self, each) if known else None

    set_(Client, "_receive_record", record)


@fault(8)
def ends_at_every_error() -> None:
    original = Client._receive_error

    def error(self: Client, code: str, message: str, options: dict[str, Any]) -> str:
        known = code in [*Code]
        return original(
            self, code, message, options | ({"fatal": True} if known else {})
        )

    set_(Client, "_receive_error", error)


# --- connections and activity ---------------------------------------------------------


@fault(9)
def logins_without_conn() -> None:
    change_events(lambda name, options: name == "login" and options.pop("conn"))


@fault(10)
def counts_from_one() -> None:
    def new_conn(self: Any) -> int:
        self.count = getattr(self, "count", 0) + 1
        return int(self.count)

    set_(liveness.Sidecar, "new_conn", new_conn)


@fault(10)
def large_conns() -> None:
    def new_conn(self: Any) -> int:
        return time.time_ns()

    set_(liveness.Sidecar, "new_conn", new_conn)


@fault(11)
def keepalives_without_conn() -> None:
    change_events(lambda name, options: name == "keepalive" and options.pop("conn"))


@fault(12)
def sends_each_line() -> None:
    set_(reconnecting_link, "FLUSH_SHARE", 0.0)
    set_(reconnecting_link, "LEAST_FLUSH_S", 0.001)


@fault(13)
def keepalives_of_the_silent() -> None:
    original = Reports.frames

    def frames(self: Reports, *args: Any, **options: Any) -> Iterator[bytes]:
        self.keepalives |= self.uids
        return original(self, *args, **options)

    set_(Reports, "frames", frames)


@fault(14)
def no_logouts() -> None:
    set_(Client, "logout", lambda *_: None)


@fault(14)
def no_logout_behind_a_record() -> None:
    original = Client._end_of

    def end_of(self: Client, conn: int, reason: str, record: Any) -> Any:
        end = original(self, conn, reason, record)
        self.reports._logouts.pop(conn, None)
        return end

    set_(Client, "_end_of", end_of)


@fault(14)
def logouts_before_logins() -> None:
    original = Reports.frames

    def frames(self: Reports, *args: Any, **options: Any) -> Iterator[bytes]:
        written = original(self, *args, **options)
        yield from sorted(written, key=lambda frame: decode(frame)[0] != "logout")

    set_(Reports, "frames", frames)


@fault(14)
def logouts_behind_each_batch_of_logins() -> None:
    original = Reports.frames

    def frames(self: Reports, *args: Any, **options: Any) -> Iterator[bytes]:
        written = [*original(self, *args, **options)]
        batches = ([f for f in written if decode(f)[0] == event] for event in CHANGES)
        yield from filter(None, chain.from_iterable(zip_longest(*batches)))
        yield from (frame for frame in written if decode(frame)[0] not in CHANGES)

    set_(Reports, "frames", frames)


@fault(14)
def logins_in_any_order() -> None:
    """The first two of a user have ages on both sides of a step, by which it is known who
    is newer: so the order shows with the next two only.
    """
    original, has_age_of_its_own = Reports._next_changes, list[int]()

    def next_changes(self: Reports) -> Any:
        if len(self._logins) > 1 and not has_age_of_its_own:
            has_age_of_its_own.append(oldest := min(self._logins))
            self._opened[oldest] -= reports.AGE_STEP_S
        self._logins = dict(reversed(self._logins.items()))
        return original(self)

    set_(Reports, "_next_changes", next_changes)
    no_clock()


@fault(15)
def activity_behind_the_logout() -> None:
    original = Reports._forget

    def forget(self: Reports, conn: int) -> None:
        kept = {conn: self.keepalives[conn]} if conn in self.keepalives else {}
        original(self, conn)
        self.keepalives |= kept

    set_(Reports, "_forget", forget)


# --- records --------------------------------------------------------------------------


@fault(16)
def closes_by_user() -> None:
    def end_of(self: Client, conn: int, reason: str, record: Any) -> Any:
        for own, uid in self.reports.uids.items():
            if str(uid) == str(record["uid"]):
                return original_end(self, own, reason, record)
        return None

    original_end = Client._end_of
    set_(Client, "_end_of", end_of)


def integers_of_digits() -> None:
    """Send activity as PHP does of the keys of an array: `"7"` is the same user as 7."""

    def changed(frame: Any) -> bytes:
        name, uids, options = frame
        if name in ("keepalive", "message"):
            uids = [int(uid) if uid.isdigit() else uid for uid in uids]
        return original_encode([name, uids, options])

    set_(reports, "encode", changed)


@fault(16)
def closes_for_any_gateway() -> None:
    def record(self: Client, each: Any) -> str | None:
        if each.get("kind") == "offline":
            each = {**each, "gateway": self.name}
        return original_record(self, each)

    set_(Client, "_receive_record", record)


@fault(17)
def keeps_the_older_connection() -> None:
    def record(self: Client, each: Any) -> str | None:
        if each.get("from") == each.get("gateway"):
            each = {**each, "kind": "online"}
        return original_record(self, each)

    set_(Client, "_receive_record", record)


@fault(17)
def knows_silence_and_moved_only() -> None:
    def record(self: Client, each: Any) -> str | None:
        is_other = each.get("reason") == "gateway_lost"
        return original_record(self, {**each, "kind": "other"} if is_other else each)

    set_(Client, "_receive_record", record)


@fault(17)
def needs_from_session() -> None:
    def record(self: Client, each: Any) -> str | None:
        is_other = each["kind"] == "moved" and "from_session" not in each
        return original_record(self, {**each, "kind": "other"} if is_other else each)

    set_(Client, "_receive_record", record)


@fault(17)
def compares_the_type_of_uids() -> None:
    original = Client._end_of

    def end_of(self: Client, conn: int, reason: str, record: Any) -> Any:
        if type(self.reports.uids.get(conn)) is not type(record["uid"]):
            return None
        return original(self, conn, reason, record)

    set_(Client, "_end_of", end_of)


@fault(18)
def believes_repeats() -> None:
    set_(Inbox, "is_new", lambda *_: True)


@fault(19)
def no_acks() -> None:
    original = Client.frames

    def frames(self: Client, now: float, *, is_due: bool) -> Iterator[bytes]:
        self._acked = 10**9
        return original(self, now, is_due=is_due)

    set_(Client, "frames", frames)


@fault(19)
def acks_before_closing() -> None:
    set_(Inbox, "finished", property(lambda self: self.newest))

    async def close_ended(self: Any) -> None:
        async for end in self._sidecar.ended():
            await trio.sleep(0.3)
            if connection := self.room.get(end.conn):
                self._leave(connection)
                connection.end(end.reason)

    set_(gateway.Gateway, "close_ended", close_ended)


@fault(19)
def acks_too_much() -> None:
    def frames(self: Client, now: float, *, is_due: bool) -> Iterator[bytes]:
        for frame in original(self, now, is_due=is_due):
            is_ack = frame == encode(["ack", self._acked])
            yield encode(["ack", self._acked + 1]) if is_ack else frame

    original = Client.frames
    set_(Client, "frames", frames)


@fault(19)
def begins_behind_the_next_record() -> None:
    def change(_: Client, options: dict[str, Any]) -> None:
        if "after" in options:
            options["after"] += 1

    change_hello(change)


# --- when the link ends ---------------------------------------------------------------


@fault(20)
def no_pauses() -> None:
    original = ReconnectingLink._pause

    async def pause(self: Any, reason: Any, pause_s: Any) -> None:
        is_final = isinstance(reason, Refused) and reason.code != "overloaded"
        if not is_final:
            set_(random, "uniform", lambda *_: 0.01)
        await original(self, reason, pause_s)

    set_(ReconnectingLink, "_pause", pause)


@fault(20)
def fixed_pauses() -> None:
    original = ReconnectingLink._pause

    async def pause(self: Any, reason: Any, _pause_s: Any) -> None:
        await original(self, reason, (0.3, 0.3))

    set_(ReconnectingLink, "_pause", pause)


@fault(20)
def long_pauses() -> None:
    original = ReconnectingLink._pause

    async def pause(self: Any, reason: Any, _pause_s: Any) -> None:
        await original(self, reason, (1.6, 3.0))

    set_(ReconnectingLink, "_pause", pause)


@fault(20)
def pauses_begin_anew_at_each_welcome() -> None:
    original = ReconnectingLink._pause

    async def pause(self: Any, reason: Any, pause_s: Any) -> None:
        if self.client.is_linked:
            self._failures = 0
        await original(self, reason, pause_s)

    set_(ReconnectingLink, "_pause", pause)


@fault(21)
def slow_after_bye() -> None:
    original_pause, original = ReconnectingLink._pause, Client.receive
    ends = list[object]()

    def receive(self: Client, frame: Any) -> str | None:
        ends.extend(frame[:1] if frame[0] == "bye" else [])
        return original(self, frame)

    async def pause(self: Any, reason: Any, pause_s: Any) -> None:
        await original_pause(self, reason, (2.5, 2.6) if ends else pause_s)
        ends.clear()

    set_(Client, "receive", receive)
    set_(ReconnectingLink, "_pause", pause)


@fault(22)
def impatient() -> None:
    set_(reconnecting_link, "MAX_REFUSED_BACKOFF_S", 0.1)


@fault(23)
def returns_after_replaced() -> None:
    async def again(self: Any, reason: Replaced) -> None:
        self.client.link_lost()
        await trio.sleep(0.5)

    set_(ReconnectingLink, "_wait_for_resume", again)


@fault(24)
def ends_at_a_refusal() -> None:
    original = ReconnectingLink._pause

    async def pause(self: Any, reason: Any, pause_s: Any) -> None:
        if isinstance(reason, Refused) and reason.code == "bad-hello":
            os._exit(1)
        await original(self, reason, pause_s)

    set_(ReconnectingLink, "_pause", pause)


@fault(24)
def closes_all_without_a_link() -> None:
    original = gateway.Gateway.__init__

    def init(self: Any, sidecar: Any, *, most: int) -> None:
        original(self, sidecar, most=most)

        def on_state(state: Any) -> None:
            if state == "away":
                for connection in [*self.room.values()]:
                    connection.end("no sidecar")

        sidecar._link._on_state = on_state

    set_(gateway.Gateway, "__init__", init)


@fault(25)
def closes_after_it_was_shut_out() -> None:
    set_(Client, "shut_out", lambda _: None)


@fault(26)
def fresh_at_a_reconnect() -> None:
    def change(client: Client, options: dict[str, Any]) -> None:
        options["fresh"] = True

    change_hello(change)


@fault(26)
def never_fresh() -> None:
    change_hello(lambda _, options: options.pop("fresh", None))


@fault(9)
def logins_without_age() -> None:
    change_events(lambda _, options: options.pop("age", None))


# --- nothing is lost ------------------------------------------------------------------


@fault(27)
def no_pings() -> None:
    set_(Reports, "unconfirmed", property(lambda _: 0))


@fault(28)
def pongs_confirm_all_that_was_sent() -> None:
    original = Reports.pong_received

    def pong_received(self: Reports) -> None:
        self._sent = reports.SentReports()
        original(self)

    set_(Reports, "pong_received", pong_received)


@fault(28)
def sends_nothing_again() -> None:
    original = Reports.link_lost

    def link_lost(self: Reports) -> None:
        self._sent = self._awaiting_pong = reports.SentReports()
        original(self)

    set_(Reports, "link_lost", link_lost)


@fault(28)
def logs_in_what_has_ended() -> None:
    original = Reports.link_lost

    def link_lost(self: Reports) -> None:
        original(self)
        self._opened |= dict.fromkeys(self._logouts, 0.0)
        self._logins |= self._logouts
        self._logouts.clear()

    set_(Reports, "link_lost", link_lost)


@fault(29)
def declares_only_when_shut_out() -> None:
    def welcome(self: Client, options: dict[str, Any]) -> str | None:
        known = {} if self._was_shut_out else {"known": True}
        before = self.reports.declare
        if not self._was_shut_out:
            set_(self.reports, "declare", lambda: None)
        line = original_welcome(self, options | known)
        set_(self.reports, "declare", before)
        return line

    set_(Client, "_receive_welcome", welcome)


@fault(29)
def ignores_gaps() -> None:
    def record(self: Client, each: Any) -> str | None:
        return original_record(
            self, {**each, "kind": "online"} if each["kind"] == "gap" else each
        )

    set_(Client, "_receive_record", record)


@fault(30)
def no_clock() -> None:
    change_hello(lambda _, options: options.pop("clock", None))


@fault(31)
def no_promise() -> None:
    change_hello(lambda _, options: options.pop("ping", None))


@fault(31)
def breaks_its_promise() -> None:
    def change(client: Client, options: dict[str, Any]) -> None:
        options["ping"], client.ping_s = 0.5, 60.0

    change_hello(change)


def main() -> None:
    """Run the gateway with what the first argument names: a fault, or nothing wrong."""
    name = sys.argv.pop(1)
    change = integers_of_digits if name == INTEGERS else FAULTS[name][1]
    change()
    gateway.main()


if __name__ == "__main__":
    main()
