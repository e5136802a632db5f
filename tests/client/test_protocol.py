"""A gateway's end of its links: hellos, pings, and the handling of records."""

from collections.abc import Iterable
from typing import Any, Final

import pytest

from liveness.client.dialer import LinkLost, check_frame
from liveness.client.inbox import Arrival, End
from liveness.client.protocol import PING_S, Client, welcome_of
from liveness.client.tasks import MAX_AT_ONCE, Timer
from liveness.core.records import HostTime, Uid
from liveness.core.sessions.clearance import LEAST_LATE_S
from liveness.core.wire.frames import parse_hello
from liveness.core.wire.framing import Frame, Reader, decode
from liveness.errors import Code, Refused, Replaced, ReportError, WireError
from tests.helpers import peer
from tests.helpers.peer import timer

NAME: Final = "gw-1"
WELCOME: Final[dict[str, Any]] = {
    **peer.WELCOME,
    "features": ("ack", "after"),
    "next": 1_000,
    "flush": 1.0,
}


def client_of(**options: Any) -> Client:
    known: dict[str, Any] = {
        "name": NAME,
        "timeout": None,
        "fresh": None,
        "first_conn": 1_000,
    }
    return Client(**(known | options))


def linked(*logins: tuple[Any, int | None], **options: Any) -> Client:
    """A client with these connections open and reported."""
    client = client_of(**options)
    client.hello()
    welcome(client)
    for uid, conn in logins:
        login(client, uid, conn)
    settle(client)
    return client


def take(client: Client, frame: Frame) -> str | None:
    """Have a frame arrive on the client's link."""
    check_frame(frame, client.name)
    if frame[:1] == ("welcome",):
        return client.welcomed(welcome_of(frame))
    return client.receive(frame)


def welcome(client: Client, **options: Any) -> None:
    assert take(client, ("welcome", WELCOME | options)) is None


def relink(client: Client, **options: Any) -> dict[str, Any]:
    """End the link and begin another; return the options of its hello."""
    client.link_lost()
    options_of_hello = hello(client)
    welcome(client, **options)
    return options_of_hello


def hello(client: Client) -> dict[str, Any]:
    frame = decode(client.hello())
    parse_hello(frame)
    options: dict[str, Any] = frame[1]
    return options


@pytest.mark.parametrize(
    ("options", "began"),
    [
        ({"began": True}, {"began": (5_000.0,)}),
        ({"began": False}, {}),  # it is in another time namespace
        ({"began": None}, {}),
        ({}, {}),  # it is older
    ],
)
def test_logins_name_their_beginning_to_a_sidecar_that_has_the_same_clock(
    options: dict[str, Any], began: dict[str, Any]
) -> None:
    client = client_of()
    hello_options = decode(client.hello(HostTime(5_000.5, 1.8e9), 4_900.0))[1]
    assert hello_options["clock"] == (5_000.5, 1.8e9)
    welcome(client, **options)
    login(client, "ada", 1, at=100.0)
    frame = decode(next(client.frames(100.5, is_due=True)))
    assert frame == ("login", ("ada",), {"age": 0.4, "conn": (1,)} | began)


def login(client: Client, uid: Any, conn: Any, at: float = 0.0) -> None:
    client.login(uid, conn, at=at, timeout=None)


def written(client: Client, *, is_due: bool = True) -> list[Frame]:
    return [decode(frame) for frame in client.frames(0.0, is_due=is_due)]


def names(frames: Iterable[Frame]) -> list[str]:
    return [frame[0] for frame in frames]


def settle(client: Client) -> None:
    """Write all there is, and answer the ping behind it."""
    written(client)
    take(client, ("pong", client.pings))
    assert client.reports.unconfirmed == 0


def offline(seq: int, uid: Any, conn: Any, **options: Any) -> dict[str, Any]:
    record = {"seq": seq, "kind": "offline", "uid": uid, "gateway": NAME}
    record |= {"conn": conn, "reason": "silence", "session": 1, "at": 0}
    return record | options


def moved(seq: int, uid: Any, lost: Any, **options: Any) -> dict[str, Any]:
    record = {"seq": seq, "kind": "moved", "uid": uid, "gateway": "gw-2"}
    record |= {"conn": 5, "reason": "login", "session": 3, "at": 0}
    record |= {"from": NAME, "from_session": 1, "from_conn": lost}
    return record | options


def gap(first: int, until: int) -> dict[str, Any]:
    return {"seq": until - 1, "kind": "gap", "first": first, "until": until, "at": 0}


def notify(client: Client, *records: dict[str, Any]) -> None:
    assert take(client, ("notices", records)) is None


class Loop:
    """A loop over the ends of a client."""

    def __init__(self, client: Client) -> None:
        self._inbox = client.inbox
        self._current: Arrival | None = None

    def next(self) -> Arrival | None:
        if self._current is not None:
            self._inbox.finish(self._current)
        self._current = self._inbox.take(self)
        return self._current


def ends(view: Loop) -> list[tuple[Any, int | None, str]]:
    """Hand over all ends that are there."""
    found = []
    while (arrival := view.next()) is not None:
        found.append((arrival.end.uid, arrival.end.conn, arrival.end.reason))
    return found


# --- hello -----------------------------------------------------------------------------


def test_the_first_hello_names_the_gateway_and_says_that_it_is_fresh() -> None:
    assert hello(client_of(timeout=20.0)) == {
        "protocol": 1,
        "name": NAME,
        "ping": PING_S,
        "kinds": ("offline", "moved"),
        "timeout": 20.0,
        "fresh": True,
    }


@pytest.mark.parametrize(
    ("timeout", "ping"),
    [
        (None, 3.0), (86_400.0, 3.0), (12.0, 3.0), (6.0, 1.5), (4.0, 1.0), (2.0, 0.5),
        (1.4, 0.35), (1.0, 0.25),
    ],
)  # fmt: skip
def test_the_promised_ping_is_short_enough_to_be_missed_before_users_time_out(
    timeout: float | None, ping: float
) -> None:
    promised = hello(client_of(timeout=timeout))["ping"]
    assert promised == ping
    if timeout is not None and timeout > 4 / 3:
        assert promised + max(promised, LEAST_LATE_S) < timeout


@pytest.mark.parametrize("fresh", [None, True, False])
def test_hellos_say_fresh_until_the_first_welcome_and_never_again(
    fresh: bool | None,
) -> None:
    client = client_of(fresh=fresh)
    expected = fresh is not False
    assert [hello(client)["fresh"] for _ in range(2)] == [expected, expected]
    client.link_lost()  # before any welcome
    login(client, "ada", 1)
    assert hello(client)["fresh"] is expected
    welcome(client)
    client.link_lost()
    assert "fresh" not in hello(client)
    assert "fresh" not in relink(client, log="two")


def test_a_later_hello_names_the_log_and_the_last_finished_record() -> None:
    client = linked(("ada", 1), ("bob", 2))
    view = Loop(client)
    assert {"after", "log"}.isdisjoint(relink(client))
    notify(client, offline(5, "ada", 1), offline(6, "bob", 2))
    view.next()
    options = relink(client)
    assert (options["after"], options["log"]) == (4, "one")
    view.next()
    assert relink(client)["after"] == 5


BAD_OPTIONS: Final[tuple[dict[str, object], ...]] = (
    {"name": ""}, {"name": "a" * 65}, {"name": "a\n"}, {"name": 7}, {"name": None},
    {"timeout": 0}, {"timeout": 86_401}, {"timeout": float("nan")}, {"timeout": True},
    {"name": "\ud800"}, {"fresh": 1},
)  # fmt: skip


@pytest.mark.parametrize("options", BAD_OPTIONS, ids="{!a:.30}".format)
def test_bad_options_are_refused_at_once(options: Any) -> None:
    with pytest.raises(ReportError, match=next(iter(options))):
        client_of(**options)


# --- pings and pongs -------------------------------------------------------------------


@pytest.mark.parametrize("wrote", [1, 2, 3])
def test_a_pong_does_not_cover_reports_made_while_its_frames_were_written(
    wrote: int,
) -> None:
    client = linked(("ada", 1))
    view = Loop(client)
    notify(client, offline(1, "bob", 9))
    login(client, "eve", 2)
    client.reports.activity(client.reports.keepalives, "ada", 1)
    writing = client.frames(0.0, is_due=True)
    begun = [decode(next(writing)) for _ in range(wrote)]
    assert names(begun) == ["login", "keepalive", "ack"][:wrote]
    login(client, "bob", 3)
    number = client.request_ping()
    rest = [decode(frame) for frame in writing]
    take(client, ("pong", client.pings))
    while client.pongs < number:
        rest += written(client, is_due=False)
        take(client, ("pong", client.pings))
    assert ("login", ("bob",), {"conn": (3,)}) in rest
    assert view.next() is None


# --- ends ------------------------------------------------------------------------------


def test_an_offline_record_ends_the_open_connection_and_comes_with_the_end() -> None:
    client = linked(("ada", 1))
    view = Loop(client)
    record = offline(1, "ada", 1)
    notify(client, record)
    arrival = view.next()
    assert arrival is not None
    assert arrival.end == End("ada", 1, "silence", record)
    assert client.reports.uids == {}


@pytest.mark.parametrize(("login", "record"), [(7, "7"), ("7", 7)])
def test_a_record_ends_a_connection_by_either_name_of_its_user(
    login: Uid, record: Uid
) -> None:
    client = linked((login, 1))
    view = Loop(client)
    notify(client, offline(1, record, 1))
    assert repr(ends(view)) == repr([(login, 1, "silence")])
    client.logout(record, 1)  # as its gateway may call the user
    assert client.reports.uids == {}


NOT_OURS: Final = {
    "another conn": offline(1, "ada", 2),
    "no conn": offline(1, "ada", None),
    "another user": offline(1, "bob", 1),
    "the integer of other digits": offline(1, 7, 3),
    "text that is no decimal": offline(1, "07", 3),
    "another gateway": offline(1, "ada", 1, gateway="gw-2"),
    "moved from another gateway": moved(1, "ada", 1, **{"from": "gw-2"}),
    "moved from another conn": moved(1, "ada", 2),
    "moved to us": moved(1, "ada", 9, **{"from": "gw-2", "gateway": NAME, "conn": 1}),
    "online": offline(1, "ada", 1, kind="online"),
    "a kind of a later version": offline(1, "ada", 1, kind="away"),
}


@pytest.mark.parametrize("record", NOT_OURS.values(), ids=NOT_OURS.keys())
def test_only_that_very_connection_of_that_very_user_is_ended(record: Any) -> None:
    client = linked(("ada", 1), ("77", 3))
    view = Loop(client)
    notify(client, record)
    assert ends(view) == []
    assert client.reports.uids == {1: "ada", 3: "77"}


def test_a_user_who_is_back_without_conn_is_not_closed_by_the_earlier_end() -> None:
    client = linked(("ada", None))
    view = Loop(client)
    notify(client, offline(1, "ada", 1_000))
    login(client, "ada", None)
    assert ends(view) == []
    assert client.reports.uids == {1_001: "ada"}
    notify(client, offline(2, "ada", 1_001))
    assert ends(view) == [("ada", None, "silence")]


def test_a_login_behind_the_end_of_its_connection_is_ignored() -> None:
    client = linked(("ada", 1))
    notify(client, offline(1, "ada", 1))
    settle(client)
    login(client, "ada", 1)  # its loop has not handled the end yet
    assert client.reports.uids == {}


# --- acks ------------------------------------------------------------------------------


# --- new logs and gaps -----------------------------------------------------------------


def test_an_ack_is_sent_again_on_the_next_link() -> None:
    client = linked()
    notify(client, offline(3, "ada", 1))
    written(client)
    relink(client)
    assert written(client) == [("ack", 3)]


def test_a_log_that_ends_before_a_record_already_sent_counts_as_new() -> None:
    client = linked(("ada", 1))
    notify(client, offline(9, "zoe", 7))
    relink(client, next=10)
    assert names(written(client)) == ["ack"]
    assert relink(client, next=9)["after"] == 9
    assert names(written(client)) == ["login", "ping"]
    assert "after" not in relink(client, next=10)


def test_a_forgotten_name_has_every_open_connection_declared() -> None:
    client = linked(("ada", 1))
    relink(client, known=True)
    assert "login" not in names(written(client))
    relink(client, known=False)
    assert names(written(client)) == ["login", "ping"]


def test_after_it_was_shut_out_a_gateway_declares_its_connections_and_keeps_them() -> (
    None
):
    client = linked(("ada", 1), ("eve", 2), ("bob", 3))
    view = Loop(client)
    client.shut_out()
    relink(client, next=20)
    assert names(written(client)) == ["login", "ping"]
    # Decisions from the time without reports close none of them, on a new link either.
    notify(client, offline(5, "ada", 1, reason="gateway_lost"))
    relink(client, next=20)
    notify(client, offline(19, "ada", 1), moved(6 + 14, "eve", 2))
    notify(client, offline(21, "bob", 3))
    assert ends(view) == [("eve", 2, "moved"), ("bob", 3, "silence")]
    assert set(client.reports.uids) == {1}
    client.shut_out()
    relink(client, log="two", next=4)
    assert set(client.reports.uids) == {1}
    relink(client, log="three", next=9)
    notify(client, offline(1, "ada", 1))
    assert ends(view) == [("ada", 1, "silence")], "a new log has seqs of its own"


def test_a_gap_has_every_open_connection_declared_once() -> None:
    client = linked(("ada", 1))
    notify(client, gap(1, 50))
    assert names(written(client)) == ["login", "ack", "ping"]
    notify(client, gap(1, 50))
    take(client, ("pong", client.pings))
    assert written(client) == []


# --- refusals --------------------------------------------------------------------------


def error(code: str, **options: Any) -> Frame:
    return "error", {"code": code, "message": "why", "fatal": True, "n": 1} | options


@pytest.mark.parametrize("code", Code)
def test_a_fatal_error_ends_the_link_with_its_code(code: Code) -> None:
    with pytest.raises(Refused, match=rf"\({code}\)") as raised:
        take(linked(), error(code))
    assert raised.value.code == code
    assert (type(raised.value) is Replaced) == (code == Code.REPLACED)


def test_an_unknown_error_code_ends_the_link_only_if_it_is_fatal() -> None:
    client = linked()
    said = take(client, error("new-code", fatal=False))
    assert said is not None
    assert "new-code" in said
    assert (client.refused, client.is_linked) == (1, True)
    with pytest.raises(Refused, match="new-code"):
        take(client, error("new-code"))


def test_a_bye_ends_the_link() -> None:
    with pytest.raises(LinkLost, match="it says bye: restart"):
        take(linked(), ("bye", {"reason": "restart", "later": 1}, "more"))


# --- what no sidecar says --------------------------------------------------------------

LATER: Final[tuple[Frame, ...]] = (
    ("news",), ("news", {"a": 1}), ("pong", 1, "more"),
    ("list", (), 7), ("where", ()), ("notices", ()), ("notices", (), {"x": 1}),
)  # fmt: skip


@pytest.mark.parametrize("frame", LATER, ids=repr)
def test_frames_of_a_later_version_are_ignored(frame: Frame) -> None:
    take(linked(), frame)


MALFORMED: Final[tuple[Frame, ...]] = (
    ("notices",),
    ("notices", 5),
    ("notices", (5,)),
    ("notices", ({"seq": float("inf")},)),
    ("notices", ({"seq": 1, "kind": "offline", "gateway": NAME, "conn": 1},)),
    ("notices", (timer(1, "a") | {"due": None},)),
    ("pong",),
    ("welcome",),
    ("welcome", {}),
    ("welcome", WELCOME | {"next": float("inf")}),
    ("welcome", WELCOME | {"max_batch": 0}),
    ("welcome", WELCOME | {"flush": float("nan")}),
    ("welcome", WELCOME | {"flush": "x"}),
    ("welcome", WELCOME | {"max_frame": "x"}),
    ("welcome", WELCOME | {"run_timeout": -1}),
    ("error",),
    ("error", {}),
    ("bye",),
)


@pytest.mark.parametrize("frame", MALFORMED, ids=lambda frame: f"{frame!r:.50}")
def test_a_malformed_frame_is_a_wire_error(frame: Frame) -> None:
    client = linked(("ada", 1))
    with pytest.raises(WireError):
        take(client, frame)


def test_frames_are_well_formed_and_within_the_limits_of_the_welcome() -> None:
    client = client_of()
    client.hello()
    welcome(client, max_batch=10, max_frame=500)
    for n in range(100):
        login(client, "é" * 100 + str(n), None)
    reader = Reader(max_frame_bytes=500, max_batch=10)
    data = b"".join(client.frames(0.0, is_due=True))
    assert sum(len(it[1]) for it in reader.feed(data) if it[0] == "login") == 100


# --- timers ----------------------------------------------------------------------------

WITH_TIMERS: Final[dict[str, Any]] = {"features": ("ack", "timers")}


def with_timers(**options: Any) -> Client:
    client = client_of()
    client.hello()
    welcome(client, **(WITH_TIMERS | options))
    return client


def after(client: Client, key: str, seconds: float = 60.0, **options: Any) -> None:
    known: dict[str, Any] = {"payload": None, "ext": None, "now": 0.0}
    client.after(key, seconds, **(known | options))


def fired(client: Client, *records: dict[str, Any]) -> list[Timer]:
    """Have these records arrive, and take them as a task would."""
    if not client.tasks.queues:
        client.tasks.add_task("", MAX_AT_ONCE)
    (queue,) = client.tasks.queues
    notify(client, *records)
    taken = list(iter(queue.take, None))
    for attempt in taken:
        queue.ended(attempt)
    return taken


def test_timers_that_no_pong_has_covered_are_sent_on_the_next_link() -> None:
    client = with_timers()
    login(client, "ada", 1)
    after(client, "a")
    client.cancel(None, "e")
    written(client)
    relink(client, **WITH_TIMERS)
    assert names(written(client)) == ["login", "after", "cancel", "ping"]
    settle(client)
    relink(client, **WITH_TIMERS)
    assert names(written(client)) == []


def test_a_timer_that_waits_is_not_started_once_it_is_cancelled_or_replaced() -> None:
    client = with_timers()
    records = [timer(n, key, ext="e") for n, key in enumerate("abcd", 1)]
    take(client, ("notices", (*records, timer(5, "f"))))
    client.cancel("a", None)
    after(client, "b")
    assert client.tasks.waiting == 3
    client.cancel(None, "e")
    assert [run.key for run in client.tasks.unclaimed] == ["f"]


def test_an_answer_names_its_record_and_is_dropped_after_a_new_log() -> None:
    client = with_timers()
    (one, other) = fired(client, timer(1, "a"), timer(2, "b"))
    client.done(one, "well")
    client.fail(other, "badly", final=True)
    answers = [frame for frame in written(client) if frame[0] in ("done", "fail")]
    assert answers == [
        ("done", "a", "well", {"seq": 1}),
        ("fail", "b", "badly", {"seq": 2, "final": True}),
    ]
    client.link_lost()
    hello(client)
    take(client, ("welcome", WELCOME | WITH_TIMERS | {"log": "two"}))
    client.done(one, None)
    client.fail(other, "badly", final=False)
    assert names(written(client)) == []
