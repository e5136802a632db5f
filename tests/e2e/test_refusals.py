"""Every error code over a real socket: what is refused, what is not, and who goes on.

Each offence stands between frames that are right, sent in one piece with them, so that
it shows how far they are applied. Meanwhile another gateway has a link that must not
notice anything.
"""

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgpack
import pytest

from liveness.errors import Code
from tests.e2e.client import Client, packed
from tests.e2e.conftest import Start
from tests.e2e.sidecar import Sidecar

# The sidecar has no fault that we know how to bring about; and who may not be a gateway
# is another user's matter: see `test_access`.
NOT_CAUSED_HERE: Final = {"not-allowed", "internal"}

MAX_FRAME_BYTES: Final = 1 << 20
MAX_BATCH: Final = 4_000
HELLO_S: Final = 0.3
FEW_REFUSED: Final = 3
FEW_REPLIES: Final = 100
FEW_LINKS: Final = 2
FEW_TIMERS: Final = 2
FEW_USERS: Final = 2

Test = Callable[..., None]
shown: set[str] = set()


def shows(code: str) -> Callable[[Test], Test]:
    """Marks a test as one that shows this code."""
    shown.add(code)
    return lambda test: test


@dataclass(frozen=True, slots=True)
class Offence:
    """The bytes of one frame that is refused, and what must be said of it."""

    code: str
    what: str
    data: bytes
    frame: str | None = None
    index: int | None = None
    applied: tuple[str, ...] = ()  # who is online by it all the same

    def __str__(self) -> str:
        return f"{self.code}, {self.what}"


def frame(
    code: str,
    what: str,
    name: str,
    *rest: Any,
    index: int | None = None,
    applied: tuple[str, ...] = (),
) -> Offence:
    """An offence by a frame that is well-formed."""
    return Offence(code, what, packed([name, *rest]), name, index, applied)


def nested(levels: int) -> Any:
    """A value of so many levels, one array in another."""
    return [nested(levels - 1)] if levels else None


BAD_STREAMS: Final = [
    Offence("bad-msgpack", "the byte that is never used", b"\xc1"),
    Offence("bad-msgpack", "an extension type", b"\x92\xa4ping\xd4\x01\x00"),
    Offence("bad-msgpack", "a string that is not UTF-8", b"\x92\xa4ping\xa1\xff"),
    Offence("bad-msgpack", "a map key that is no string", b"\x92\xa4ping\x81\x01\x02"),
    Offence("too-large", "a frame too long", packed(["ping", "x" * MAX_FRAME_BYTES])),
    Offence(
        "too-large",
        "a billion claimed",
        b"\x92\xa5login\xdd\x3f\xff\xff\xff" + bytes(MAX_FRAME_BYTES),
    ),
    Offence("too-large", "too many values", packed(["ping", [[1]] * 2 * MAX_BATCH])),
    Offence("too-deep", "a level too many", packed(["ping", nested(4)])),
    Offence("too-deep", "a thousand levels", b"\x92\xa4ping" + b"\x91" * 1_000),
    Offence("bad-frame", "an integer for a frame", msgpack.packb(7)),
    Offence("bad-frame", "a map for a frame", msgpack.packb({"login": "out"})),
]

BAD_FRAMES: Final = [
    Offence("bad-frame", "an empty array", packed([])),
    Offence("bad-frame", "a name that is no string", packed([1, "out"])),
    frame("bad-frame", "no uids", "login"),
    frame("bad-frame", "a map for uids", "keepalive", {"out": 1}),
    frame("bad-frame", "options that are no map", "logout", "held", [7]),
    frame("bad-frame", "too many uids", "keepalive", ["out"] * (MAX_BATCH + 1)),
    frame("bad-frame", "a ping without a value", "ping"),
    frame("bad-frame", "a second hello", "hello", {"protocol": 1, "name": "other"}),
    frame("unknown-frame", "a name not known", "subscribe", "held"),
    frame("bad-option", "a timeout below 1", "login", "out", {"timeout": 0.999}),
    frame("bad-option", "a timeout above a day", "login", "out", {"timeout": 86_401}),
    frame("bad-option", "a timeout that is true", "login", "out", {"timeout": True}),
    frame("bad-option", "a negative age", "login", "out", {"age": -1}),
    frame("bad-option", "a conn that is text", "login", "out", {"conn": "1"}),
    frame("bad-option", "a conn of 2^63", "keepalive", "out", {"conn": 2**63}),
    frame("bad-option", "one conn for two", "login", ["out", "x"], {"conn": 1}),
    frame("bad-option", "a conn too few", "logout", ["held", "x"], {"conn": [1]}),
    frame("bad-option", "an ack of what is not there", "ack", 2**40),
    frame("bad-option", "an ack of no seq", "ack", -1),
    frame("bad-uid", "one in a login", "login", ["out", "", "x"], index=1),
    frame("bad-uid", "one in a logout", "logout", ["held", True], index=1),
    frame("bad-uid", "a logout of one", "logout", "a\nb", index=0),
    frame("bad-uid", "one in a where", "where", ["held", 2**63], index=1),
    frame(
        "bad-uid", "two in a keepalive", "keepalive", ["in-1", None, "in-2", -1],
        index=1, applied=("in-1", "in-2"),
    ),
    frame(
        "bad-uid", "one in a message", "message", ["in-1", "in-2", "é" * 128],
        index=2, applied=("in-1", "in-2"),
    ),
    frame("bad-uid", "a keepalive of one", "keepalive", 1.5, index=0),
]  # fmt: skip

BAD_HELLOS: Final = [
    frame("not-hello", "a login first", "login", "out"),
    frame("not-hello", "a ping first", "ping", 1),
    Offence("not-hello", "an empty array first", packed([])),
    frame("bad-hello", "no options", "hello"),
    frame("bad-hello", "no name", "hello", {"protocol": 1}),
    frame("bad-hello", "no protocol", "hello", {"name": "h"}),
    *(
        frame("bad-hello", what, "hello", {"protocol": 1, "name": "h", **options})
        for what, options in (
            ("a name of 65 bytes", {"name": "n" * 65}),
            ("a control character", {"name": "a\tb"}),
            ("a role not known", {"role": "admin"}),
            ("a timeout below 1", {"timeout": 0.5}),
            ("a ping above 60", {"ping": 60.1}),
            ("after without log", {"after": 5}),
            ("a kind not known", {"kinds": ["onlin"]}),
            ("a watcher that is fresh", {"role": "watcher", "fresh": True}),
        )
    ),
    frame("unsupported-protocol", "protocol 0", "hello", {"protocol": 0}),
    frame(
        "unsupported-protocol", "protocol 2", "hello", {"protocol": 2, "name": "h"}
    ),
]  # fmt: skip

NAMED: Final = ["before", "held", "behind", "out", "x", "in-1", "in-2"]
BEFORE: Final = packed(["login", ["before", "held"]], ["keepalive", "before"])
BEHIND: Final = packed(["login", "behind"], ["ping", "go on"])
N: Final = 4  # hello is frame 1, and two come before the offence


@pytest.fixture(scope="module")
def watchful(sidecar: Sidecar) -> Iterator[Client]:
    """A gateway whose link and user do not notice what others do."""
    link = sidecar.gateway("watchful")
    link.send("login", "unharmed")
    link.settle()
    yield link
    assert online(link, ["unharmed"]) == {"unharmed"}
    assert not link.records


@pytest.fixture
def offender(sidecar: Sidecar) -> Iterator[Client]:
    """A gateway of which nothing is left behind."""
    yield sidecar.gateway("offender")
    with sidecar.gateway("offender") as again:
        again.send("logout", NAMED)
        again.settle()


def online(link: Client, uids: list[str]) -> set[str | int]:
    return {uid for uid, *_ in link.where(*uids)}


def test_every_code_is_shown_by_a_test_of_this_file() -> None:
    by_table = {it.code for it in (*BAD_STREAMS, *BAD_FRAMES, *BAD_HELLOS)}
    assert set(Code) == by_table | shown | NOT_CAUSED_HERE
    assert not NOT_CAUSED_HERE & (by_table | shown)


@pytest.mark.parametrize("offence", BAD_STREAMS, ids=str)
def test_after_a_bad_stream_nothing_is_applied_and_the_link_ends(
    offence: Offence, offender: Client, watchful: Client
) -> None:
    offender.send_bytes(BEFORE + offence.data + BEHIND)
    refusal = offender.refusal()
    assert refusal["message"]
    assert refusal.items() >= {"code": offence.code, "fatal": True, "n": N}.items()
    assert offender.receive() is None
    assert online(watchful, NAMED) == {"before", "held"}


@pytest.mark.parametrize("offence", BAD_FRAMES, ids=str)
def test_a_bad_frame_is_refused_alone_and_the_link_goes_on(
    offence: Offence, offender: Client, watchful: Client
) -> None:
    offender.send_bytes(BEFORE + offence.data + BEHIND)
    expected = {"code": offence.code, "fatal": False, "n": N}
    if offence.frame is not None:
        expected["frame"] = offence.frame
    if offence.index is not None:
        expected["index"] = offence.index
    refusal = offender.refusal()
    assert refusal.pop("message")
    assert refusal == expected
    assert offender.expect("pong") == ["go on"]
    assert online(watchful, NAMED) == {"before", "held", "behind", *offence.applied}


@pytest.mark.parametrize("offence", BAD_HELLOS, ids=str)
def test_without_a_good_hello_nothing_is_applied_and_the_link_ends(
    offence: Offence, sidecar: Sidecar, watchful: Client
) -> None:
    link = sidecar.connect()
    link.send_bytes(offence.data + BEHIND)
    refusal = link.refusal()
    assert refusal["message"]
    assert refusal.items() >= {"code": offence.code, "fatal": True, "n": 1}.items()
    assert link.receive() is None
    assert online(watchful, NAMED) == set()


@shows("bad-frame")
def test_a_watcher_that_sends_events_is_refused_them_and_goes_on(
    sidecar: Sidecar, watchful: Client
) -> None:
    watcher = sidecar.watcher("nosy")
    for n, event in enumerate(("login", "keepalive", "message", "logout"), start=2):
        watcher.send(event, "unharmed" if event == "logout" else "out")
        refusal = watcher.refusal()
        assert (refusal["code"], refusal["n"]) == ("bad-frame", n)
    assert online(watcher, ["unharmed", "out"]) == {"unharmed"}


@shows("bad-option")
def test_an_ack_is_taken_below_next_and_refused_at_it(sidecar: Sidecar) -> None:
    link = sidecar.gateway("acking")
    link.send("ack", link.next - 1)
    link.settle()
    link.send("ack", link.next)
    refusal = link.refusal()
    assert (refusal["code"], refusal["n"]) == ("bad-option", 4)
    link.send("login", "acked")
    link.settle()
    link.send("ack", link.next)
    link.settle()


@shows("bad-uid")
def test_each_bad_frame_of_a_run_is_refused_by_its_own_number(
    offender: Client, watchful: Client
) -> None:
    offender.send_bytes(
        packed(
            ["keepalive", "in-1"],
            ["keepalive", ["in-1", "in-1", False]],
            ["message", "in-2"],
            ["message", []],
            ["keepalive", -1],
            ["keepalive", "x"],
        )
    )
    refusals = [offender.refusal() for _ in range(2)]
    said = [(it["n"], it["frame"], it["index"]) for it in refusals]
    assert said == [(3, "keepalive", 2), (6, "keepalive", 0)]
    offender.settle()
    assert online(watchful, NAMED) == {"in-1", "in-2", "x"}


@shows("replaced")
def test_a_newer_link_of_the_same_name_replaces_the_older_after_what_that_had_sent(
    sidecar: Sidecar, offender: Client, watchful: Client
) -> None:
    watcher = sidecar.watcher("offender")  # of the same name, in another role
    offender.send("login", "before")
    newer = sidecar.gateway("offender")
    refusal = offender.refusal()
    assert (refusal["code"], refusal["fatal"]) == ("replaced", True)
    assert offender.receive() is None
    newer.send("login", "behind")
    newer.settle()
    watcher.settle()
    assert online(watchful, NAMED) == {"before", "behind"}


@shows("replaced")
def test_what_an_older_link_had_sent_is_applied_even_if_the_newer_is_read_first(
    sidecar: Sidecar,
) -> None:
    # Both have something to read when the sidecar wakes; which comes first is chance.
    for n in range(8):
        older, newer = sidecar.gateway("twofold"), sidecar.connect()
        older.settle()
        sidecar.signal(signal.SIGSTOP)
        newer.say_hello("twofold")
        older.send("login", f"twofold-{n}")
        sidecar.signal(signal.SIGCONT)
        assert older.refusal()["code"] == "replaced"
        newer.expect("welcome")
        assert online(newer, [f"twofold-{n}"]) == {f"twofold-{n}"}
        for link in (older, newer):
            link.close()


@shows("too-slow")
def test_a_link_without_a_hello_is_sent_away_and_frees_its_place(start: Start) -> None:
    sidecar = start(limits_hello_s=HELLO_S, limits_max_links=FEW_LINKS)
    quick, mute = sidecar.gateway("quick"), sidecar.connect()
    slow = sidecar.connect()
    assert slow.refusal()["code"] == "overloaded"
    mute.send_bytes(packed(["hello", {"protocol": 1, "name": "mute"}])[:-1])
    refusal = mute.refusal()
    assert (refusal["code"], refusal["fatal"]) == ("too-slow", True)
    assert mute.receive() is None
    mute.close()
    sidecar.metric_until(
        lambda count: count == 1, "liveness_frames_refused_total", code="too-slow"
    )
    quick.settle()


@shows("overloaded")
def test_a_link_beyond_the_limit_is_refused_until_another_one_ends(
    start: Start,
) -> None:
    sidecar = start(limits_max_links=FEW_LINKS)
    first, second = sidecar.gateway("first"), sidecar.gateway("second")
    third = sidecar.connect()
    refusal = third.refusal()
    assert (refusal["code"], refusal["fatal"]) == ("overloaded", True)
    assert third.receive() is None
    for link in (third, second):
        link.close()
    sidecar.line("link down", name="second")
    first.settle()
    sidecar.gateway("third").settle()


@shows("too-many-timers")
def test_a_timer_too_many_is_not_taken_until_another_has_ended(start: Start) -> None:
    sidecar = start(timers_max_live=FEW_TIMERS, limits_max_refused=FEW_REFUSED)
    link, other = sidecar.gateway("g"), sidecar.gateway("h")
    for number in range(FEW_TIMERS):
        link.send("after", f"k{number}", 600)
    link.settle()
    for gateway in (link, other):
        for _ in range(FEW_REFUSED + 1):  # it is no fault, so it ends no link
            gateway.send("after", "one more", 600)
            refusal = gateway.refusal()
            assert refusal["code"] == "too-many-timers"
            assert (refusal["fatal"], refusal["frame"]) == (False, "after")
            assert refusal["key"] == "one more"
            assert "timers.max_live" in refusal["message"]
    link.send("cancel", {"key": "k0"})
    link.settle()
    other.send("after", "one more", 600)
    other.settle()
    rows = sidecar.timer_rows("select gateway, key from timers where next is not null")
    assert sorted(rows) == [("g", "k1"), ("h", "one more")]


@shows("too-many-users")
def test_users_too_many_are_left_out_and_the_others_of_their_login_are_not(
    start: Start,
) -> None:
    sidecar = start(limits_max_gateway_users=FEW_USERS, limits_max_refused=FEW_REFUSED)
    link = sidecar.gateway("g")
    for _ in range(FEW_REFUSED + 1):
        link.send("login", ["a", "b", "c", "d"])
        refusal = link.refusal()
        assert (refusal["code"], refusal["fatal"]) == ("too-many-users", False)
        assert (refusal["frame"], refusal["index"]) == ("login", FEW_USERS)
    assert online(link, ["a", "b", "c", "d"]) == {"a", "b"}


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """A sidecar with little patience."""
    with Sidecar(
        tmp_path_factory.mktemp("s"),
        limits_max_refused=FEW_REFUSED,
        limits_max_replies=FEW_REPLIES,
    ) as running:
        yield running.start()


@shows("overloaded")
def test_too_many_refused_frames_end_the_link_and_what_follows_is_not_applied(
    tight: Sidecar,
) -> None:
    link, other = tight.gateway("careless"), tight.gateway("careful")
    bad, too_many = packed(["nonsense"]), FEW_REFUSED + 1
    link.send_bytes(BEFORE + bad * too_many + BEHIND)
    codes = [link.refusal()["code"] for _ in range(too_many)]
    assert codes == ["unknown-frame"] * FEW_REFUSED + ["overloaded"]
    assert link.receive() is None
    assert online(other, NAMED) == {"before", "held"}


@shows("overloaded")
def test_bad_uids_count_as_refused_frames(tight: Sidecar) -> None:
    link = tight.gateway("careless too")
    link.send_bytes(packed(["keepalive", ""]) * (FEW_REFUSED + 1))
    codes = [link.refusal()["code"] for _ in range(FEW_REFUSED + 1)]
    assert codes == ["bad-uid"] * FEW_REFUSED + ["overloaded"]
    assert link.receive() is None


@shows("overloaded")
def test_a_link_that_leaves_its_replies_unread_is_refused_and_really_closed(
    tight: Sidecar,
) -> None:
    other = tight.gateway("reading")
    before = tight.metric("liveness_links", role="gateway")
    link = tight.gateway("not reading")
    link.send("login", "served")
    # As many may be on their way out as may wait behind them; the rest is too many.
    for _ in range(3 * FEW_REPLIES):
        link.send("ping", "x" * 50_000)
    link.wait_closed()
    down = tight.line("link down", name="not reading")
    assert down["why"] == "overloaded"
    tight.line("link refused", name="not reading", code="overloaded")
    assert tight.metric("liveness_links", role="gateway") == before
    assert online(other, ["served"]) == {"served"}
    tight.gateway("not reading").settle()


def test_a_gateway_that_reads_all_its_pongs_is_never_refused(sidecar: Sidecar) -> None:
    pings = [["ping", n] for n in range(1_500)]
    link = sidecar.gateway("eager")
    link.send_bytes(packed(*pings))
    assert [link.expect("pong") for _ in pings] == [[n] for n in range(1_500)]


def test_refusals_are_counted_by_code(sidecar: Sidecar, offender: Client) -> None:
    before = sidecar.metric("liveness_frames_refused_total", code="unknown-frame")
    offender.send("nonsense")
    offender.refusal()
    after = sidecar.metric("liveness_frames_refused_total", code="unknown-frame")
    assert after == before + 1
