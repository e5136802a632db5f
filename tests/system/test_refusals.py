"""A code of each kind over a real socket: what is refused, what is not, and who goes on.

Each offence stands between frames that are right, sent in one piece with them, so that
it shows how far they are applied. Meanwhile another gateway has a link that must not
notice anything. What else is refused: `proto/vectors/`, and `tests/core/wire/test_vectors.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgpack
import pytest

from liveness.errors import Code
from tests.helpers.wire import packed
from tests.system.client import Client
from tests.system.sidecar import Sidecar

MAX_FRAME_BYTES: Final = 1 << 20
MAX_BATCH: Final = 4_000
MOST_REFUSED: Final = 1_000
FEW_TIMERS: Final = 2

# Codes that no row of a table shows, and where they are shown.
SHOWN: Final = {
    "too-many-timers": "here",
    "replaced": "here",
    "overloaded": "here",
    "too-many-users": "tests/service/engine/test_limits.py",
    "too-slow": "tests/service/engine/test_limits.py, test_hostile.py",
    "not-allowed": "tests/system/test_access.py",
    "internal": "tests/service/links/test_links.py",
}


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
    """A value of this many levels, one array in another."""
    return [nested(levels - 1)] if levels else None


BAD_STREAMS: Final = [
    Offence("bad-msgpack", "the byte that is never used", b"\xc1"),
    Offence("too-large", "a frame too long", packed(["ping", "x" * MAX_FRAME_BYTES])),
    Offence("too-deep", "a level too many", packed(["ping", nested(4)])),
    Offence("bad-frame", "a map for a frame", msgpack.packb({"login": "out"})),
]

BAD_FRAMES: Final = [
    Offence("bad-frame", "an empty array", packed([])),
    frame("bad-frame", "a map for uids", "keepalive", {"out": 1}),
    frame("bad-frame", "a second hello", "hello", {"protocol": 1, "name": "other"}),
    frame("unknown-frame", "a name not known", "subscribe", "held"),
    frame("bad-option", "a timeout below 1", "login", "out", {"timeout": 0.999}),
    frame("bad-option", "a conn too few", "logout", ["held", "x"], {"conn": [1]}),
    frame("bad-option", "an ack of what is not there", "ack", 2**40),
    frame("bad-uid", "one in a login", "login", ["out", "", "x"], index=1),
    frame("bad-uid", "one in a logout", "logout", ["held", True], index=1),
    frame("bad-uid", "one in a where", "where", ["held", 2**63], index=1),
    frame(
        "bad-uid", "two in a keepalive", "keepalive", ["in-1", None, "in-2", -1],
        index=1, applied=("in-1", "in-2"),
    ),
    frame(
        "bad-uid", "one in a message", "message", ["in-1", "in-2", "é" * 128],
        index=2, applied=("in-1", "in-2"),
    ),
]  # fmt: skip

BAD_HELLOS: Final = [
    frame("not-hello", "a login first", "login", "out"),
    frame("bad-hello", "no name", "hello", {"protocol": 1}),
    frame("unsupported-protocol", "protocol 2", "hello", {"protocol": 2, "name": "h"}),
]

NAMED: Final = ["before", "held", "behind", "out", "x", "in-1", "in-2"]
BEFORE: Final = packed(["login", ["before", "held"]], ["keepalive", "before"])
BEHIND: Final = packed(["login", "behind"], ["ping", "go on"])
N: Final = 4  # hello is frame 1, and two come before the offence


@pytest.fixture(scope="module")
def watchful(sidecar: Sidecar) -> Iterator[Client]:
    """A gateway whose link and user do not notice what others do."""
    link = sidecar.gateway("watchful", timeout=600)  # however long this file takes
    link.apply("login", "unharmed")
    yield link
    assert online(link, ["unharmed"]) == {"unharmed"}
    assert not link.records


@pytest.fixture
def offender(sidecar: Sidecar) -> Iterator[Client]:
    """A gateway of which nothing is left behind."""
    yield sidecar.gateway("offender")
    with sidecar.gateway("offender") as again:
        again.apply("logout", NAMED)


def online(link: Client, uids: list[str]) -> set[str | int]:
    return {uid for uid, *_ in link.where(*uids)}


def test_every_code_is_shown() -> None:
    by_table = {row.code for row in (*BAD_STREAMS, *BAD_FRAMES, *BAD_HELLOS)}
    assert set(Code) == by_table | SHOWN.keys()
    assert not by_table & SHOWN.keys()


@pytest.mark.parametrize("offence", BAD_STREAMS, ids=str)
def test_a_bad_stream_ends_its_link(
    offence: Offence, offender: Client, watchful: Client
) -> None:
    offender.send_bytes(BEFORE + offence.data + BEHIND)
    refusal = offender.refusal()
    assert refusal["message"]
    assert refusal.items() >= {"code": offence.code, "fatal": True, "n": N}.items()
    assert offender.receive() is None
    assert online(watchful, NAMED) == {"before", "held"}


@pytest.mark.parametrize("offence", BAD_FRAMES, ids=str)
def test_a_bad_frame_is_refused_and_the_link_goes_on(
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
def test_without_a_good_hello_the_link_ends(
    offence: Offence, sidecar: Sidecar, watchful: Client
) -> None:
    link = sidecar.connect()
    link.send_bytes(offence.data + BEHIND)
    refusal = link.refusal()
    assert refusal["message"]
    assert refusal.items() >= {"code": offence.code, "fatal": True, "n": 1}.items()
    assert link.receive() is None
    assert online(watchful, NAMED) == set()


def test_a_watcher_that_sends_events_is_refused_them_and_goes_on(
    sidecar: Sidecar, watchful: Client
) -> None:
    watcher = sidecar.watcher("nosy")
    for n, event in enumerate(("login", "keepalive", "message", "logout"), start=2):
        watcher.send(event, "unharmed" if event == "logout" else "out")
        refusal = watcher.refusal()
        assert (refusal["code"], refusal["n"]) == ("bad-frame", n)
    assert online(watcher, ["unharmed", "out"]) == {"unharmed"}


def test_an_ack_is_taken_below_next_and_refused_at_it(sidecar: Sidecar) -> None:
    link = sidecar.gateway("acking")
    link.apply("ack", link.next - 1)
    link.send("ack", link.next)
    refusal = link.refusal()
    assert (refusal["code"], refusal["n"]) == ("bad-option", 4)
    link.apply("login", "acked")
    link.apply("ack", link.next)


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
    said = [(each["n"], each["frame"], each["index"]) for each in refusals]
    assert said == [(3, "keepalive", 2), (6, "keepalive", 0)]
    offender.sync()
    assert online(watchful, NAMED) == {"in-1", "in-2", "x"}


def test_a_newer_link_of_the_same_name_replaces_the_older_after_what_that_had_sent(
    sidecar: Sidecar, offender: Client, watchful: Client
) -> None:
    watcher = sidecar.watcher("offender")  # of the same name, in another role
    offender.send("login", "before")
    newer = sidecar.gateway("offender")
    refusal = offender.refusal()
    assert (refusal["code"], refusal["fatal"]) == ("replaced", True)
    assert offender.receive() is None
    newer.apply("login", "behind")
    watcher.sync()
    assert online(watchful, NAMED) == {"before", "behind"}


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """A sidecar with few timers."""
    with Sidecar(
        tmp_path_factory.mktemp("s"),
        timers_max_live=FEW_TIMERS,
    ) as running:
        yield running.start()


def test_a_timer_too_many_is_not_taken_until_another_has_ended(tight: Sidecar) -> None:
    link, other = tight.gateway("g"), tight.gateway("h")
    for number in range(FEW_TIMERS):
        link.send("after", f"k{number}", 600)
    link.sync()
    for gateway in (link, other):
        orders = MOST_REFUSED + 1  # it is no fault, so it ends no link
        gateway.send_bytes(packed(["after", "one more", 600]) * orders)
        for _ in range(orders):
            refusal = gateway.refusal()
            assert refusal["code"] == "too-many-timers"
            assert (refusal["fatal"], refusal["frame"]) == (False, "after")
            assert refusal["key"] == "one more"
            assert "timers.max_live" in refusal["message"]
    link.apply("cancel", {"key": "k0"})
    other.apply("after", "one more", 600)
    rows = tight.timer_rows("select gateway, key from timers where next is not null")
    assert sorted(rows) == [("g", "k1"), ("h", "one more")]


def test_too_many_refused_frames_end_the_link_and_what_follows_is_not_applied(
    tight: Sidecar,
) -> None:
    link, other = tight.gateway("careless"), tight.gateway("careful")
    bad, too_many = packed(["nonsense"]), MOST_REFUSED + 1
    link.send_bytes(BEFORE + bad * too_many + BEHIND)
    codes = [link.refusal()["code"] for _ in range(too_many)]
    assert codes == ["unknown-frame"] * MOST_REFUSED + ["overloaded"]
    assert link.receive() is None
    assert online(other, NAMED) == {"before", "held"}


def test_bad_uids_count_as_refused_frames(tight: Sidecar) -> None:
    link = tight.gateway("careless too")
    link.send_bytes(packed(["keepalive", ""]) * (MOST_REFUSED + 1))
    codes = [link.refusal()["code"] for _ in range(MOST_REFUSED + 1)]
    assert codes == ["bad-uid"] * MOST_REFUSED + ["overloaded"]
    assert link.receive() is None


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
