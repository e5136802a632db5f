"""Strangers and hostile peers at the gateway socket: bounded memory, and a clear refusal.

Bytes that claim more than they bring, or never end; other protocols that were pointed at
the socket by mistake; a hello that trickles; ten thousand connections that say nothing;
answers that nobody reads. Meanwhile a good gateway has a link and a user, and both have to
be there afterwards; what is refused says which limit it ran into.
"""

import resource
import select
import ssl
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from itertools import repeat
from time import perf_counter
from typing import Final

import pytest

from liveness.core.frames import MAX_NAME_BYTES
from tests.e2e.client import SOON_S, Client, packed
from tests.e2e.conftest import Say, Start
from tests.e2e.sidecar import Sidecar, eventually
from tests.e2e.strangers import Strangers

MAX_FRAME_BYTES: Final = 1 << 20
# Of memory for one hostile peer: a frame of the greatest size, kept and copied, and the
# allocator's slack. Endless ones send many times as much.
GROWTH_BYTES: Final = 16 << 20
ENDLESS_BYTES: Final = 64 << 20
CHUNK_BYTES: Final = 1 << 16

HELLO: Final = packed(["hello", {"protocol": 1, "name": "hostile"}])
CLAIMS: Final = {
    "an array": b"\xdd\xff\xff\xff\xff",
    "a map": b"\xdf\xff\xff\xff\xff",
    "a string": b"\xdb\xff\xff\xff\xff",
    "bytes": b"\xc6\xff\xff\xff\xff",
}


@pytest.fixture(scope="module")
def good(sidecar: Sidecar) -> Iterator[Client]:
    """A gateway whose link and user notice nothing of what others do."""
    link = sidecar.gateway("good")
    link.send("login", "unharmed", {"conn": 1, "timeout": 3_600})
    link.settle()
    yield link
    is_unharmed(link)
    assert not link.records


def is_unharmed(link: Client) -> None:
    link.settle()
    assert [row[0] for row in link.where("unharmed")] == ["unharmed"]


def send_until_answered(link: Client, pieces: Iterable[bytes]) -> int:
    """Send until there is an answer; how many bytes that were."""
    sent = 0
    for piece in pieces:
        if select.select([link], [], [], 0)[0]:
            break
        link.send_bytes(piece)
        sent += len(piece)
    return sent


def refused(link: Client) -> tuple[str, str]:
    """The code and the message that it ends with."""
    refusal = link.refusal()
    assert refusal["fatal"] is True
    assert link.receive() is None
    return refusal["code"], refusal["message"]


# --- bytes that claim more than they bring ---------------------------------------------


@pytest.mark.parametrize("before", [b"", HELLO], ids=["a stranger", "a gateway"])
@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_what_is_only_claimed_takes_no_memory_and_ends_with_the_connection(
    sidecar: Sidecar, good: Client, claim: bytes, before: bytes
) -> None:
    rss = sidecar.rss_bytes
    with sidecar.connect() as link:
        # In arrays of as many: each would have room made for it.
        link.send_bytes(
            before + b"\x92\xa5login" + b"\xdd\xff\xff\xff\xff" * 900 + claim
        )
        if before:
            link.expect("welcome")
        is_unharmed(good)
        assert sidecar.rss_bytes - rss < GROWTH_BYTES
    is_unharmed(good)


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1k"], ids=["arrays", "maps"])
@pytest.mark.parametrize("levels", [5, 1_000, 100_000])
def test_deep_nesting_is_refused_by_its_limit(
    sidecar: Sidecar, good: Client, levels: int, opening: bytes
) -> None:
    with sidecar.connect() as link:
        link.send_bytes(HELLO + b"\x92\xa4ping" + opening * levels + b"\xc0")
        link.expect("welcome")
        code, message = refused(link)
    assert code == "too-deep"
    assert "4 levels" in message
    is_unharmed(good)


ENDLESS: Final = {
    "a string": (b"\x92\xa4ping\xdb\xff\xff\xff\xff", b"a"),
    "bytes": (b"\x92\xa4ping\xc6\xff\xff\xff\xff", b"\0"),
    "an array": (b"\x92\xa5login\xdd\xff\xff\xff\xff", b"\x07"),
    "a map": (b"\x92\xa4ping\xdf\xff\xff\xff\xff", b"\xa1k\x07\xa1l\x07"),
    "a frame": (b"\xdd\xff\xff\xff\xff\xa4ping", b"\x07"),
}


@pytest.mark.parametrize(("head", "more"), ENDLESS.values(), ids=ENDLESS)
def test_a_frame_that_never_ends_is_cut_at_the_limit_that_is_named(
    sidecar: Sidecar, good: Client, head: bytes, more: bytes
) -> None:
    rss = sidecar.rss_bytes
    with sidecar.connect() as link:
        link.send_bytes(HELLO + head)
        link.expect("welcome")
        chunk = more * (CHUNK_BYTES // len(more))
        sent = send_until_answered(link, repeat(chunk, ENDLESS_BYTES // len(chunk)))
        assert MAX_FRAME_BYTES < sent + len(head) < ENDLESS_BYTES
        code, message = refused(link)
        assert sidecar.rss_bytes - rss < GROWTH_BYTES
    assert code == "too-large"
    assert str(MAX_FRAME_BYTES) in message
    assert "welcome.max_frame" in message
    is_unharmed(good)


FRAME: Final = packed(["login", "cut off", {"conn": 5}])


@pytest.mark.parametrize("size", [1, 3, 8, 20, len(FRAME) - 1])
def test_a_frame_that_is_cut_off_is_not_applied_and_is_no_offence(
    sidecar: Sidecar, good: Client, name: str, size: int
) -> None:
    with sidecar.gateway(name) as link:
        link.send_bytes(FRAME[:size])
        link.say_no_more()
        assert link.receive() is None
    assert sidecar.line("link down", name=name)["why"] == "closed by the other side"
    assert good.where("cut off") == []
    is_unharmed(good)


# --- other protocols --------------------------------------------------------------------


def client_hello() -> bytes:
    """What a TLS client says first."""
    said = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(
        ssl.MemoryBIO(), said, server_hostname="gateway"
    )
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return said.read()


OTHERS: Final = {
    "GET": b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n",
    "POST": b"POST /v1 HTTP/1.1\r\nContent-Length: 70000\r\n\r\n" + b"x" * 70_000,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    "TLS": client_hello(),
    "a terminal": b"hello?\r\n",
    "JSON": b'["hello", {"protocol": 1, "name": "json"}]\n',
}


@pytest.mark.parametrize("data", OTHERS.values(), ids=OTHERS)
def test_who_speaks_another_protocol_is_told_which_one_is_spoken(
    sidecar: Sidecar, good: Client, data: bytes
) -> None:
    with sidecar.connect() as link:
        link.send_bytes(data)
        code, message = refused(link)
    assert code == "bad-frame"
    assert "this socket speaks msgpack, not HTTP, TLS or text" in message
    is_unharmed(good)


# --- without a hello ---------------------------------------------------------------------

TRICKLE_S: Final = 0.05
HELLO_S: Final = 0.5


def test_a_hello_that_trickles_is_cut_at_its_time(start: Start) -> None:
    sidecar = start(limits_hello_s=HELLO_S)
    good = sidecar.gateway("good")
    good.send("login", "unharmed")
    slow = [sidecar.connect() for _ in range(20)]
    # Its last byte would come after six times as long as a hello may take.
    hello = packed(["hello", {"protocol": 1, "name": "n" * MAX_NAME_BYTES}])[:-1]
    assert len(hello) * TRICKLE_S > 6 * HELLO_S
    for at in range(len(hello)):
        for link in slow:
            with suppress(ConnectionError):  # it may be cut by now
                link.send_bytes(hello[at : at + 1])
        good.settle()
        try:
            frame = slow[0].receive(within_s=TRICKLE_S)
        except TimeoutError:
            continue
        assert frame is not None
        assert frame[1]["code"] == "too-slow"
        assert f"no hello within {HELLO_S:g} s" in frame[1]["message"]
        break
    else:
        raise AssertionError("it was never cut")
    for link in slow[1:]:
        assert refused(link)[0] == "too-slow"
    is_unharmed(good)
    sidecar.gateway("another").settle()


CROWD: Final = 10_000
PROCESSES: Final = 4
STRANGERS_S: Final = 90.0  # until all are gone, on a slow machine
# A link that has said nothing takes some 5 KiB, and ten thousand that come at once some
# megabytes more.
LINK_BYTES: Final = 16 << 10
STORM_BYTES: Final = 32 << 20
# As many as the sidecar may have on this machine, where a link takes two open files.
MOST_LINKS: Final = (resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 200) // 2


def get_in(sidecar: Sidecar, name: str) -> Client:
    """A new gateway, as soon as there is room for it."""
    until = perf_counter() + SOON_S
    while True:
        link = sidecar.connect()
        with suppress(ConnectionError):
            link.say_hello(name)
        with suppress(ConnectionError):
            frame = link.receive()
            if frame is not None and frame[0] == "welcome":
                return link
        link.close()
        assert perf_counter() < until, "there is no room for it"


@pytest.mark.parametrize(
    "links",
    [1_000, pytest.param(min(CROWD + 1, MOST_LINKS), marks=pytest.mark.slow)],
    ids=["as many links as usual", "as many as there may be"],
)
def test_ten_thousand_who_say_nothing_are_sent_away_and_harm_nobody(
    start: Start, say: Say, links: int
) -> None:
    sidecar = start(limits_hello_s=2, limits_max_links=links)
    good = sidecar.gateway("good")
    good.send("login", "unharmed")
    is_unharmed(good)
    rss = [sidecar.rss_bytes]
    with ExitStack() as stack:
        crowds = [
            stack.enter_context(Strangers(sidecar.socket, CROWD // PROCESSES))
            for _ in range(PROCESSES)
        ]
        until = perf_counter() + STRANGERS_S
        while not all(crowd.are_gone for crowd in crowds):
            is_unharmed(good)
            rss.append(sidecar.rss_bytes)
            assert perf_counter() < until, [crowd.told for crowd in crowds]
        told = sum((crowd.told for crowd in crowds), Counter[str]())
    get_in(sidecar, "new").settle()
    is_unharmed(good)
    say(f"{dict(told)}; memory {max(rss) - rss[0] >> 10:+} KiB at most")
    # All with an answer, whichever limit they ran into.
    assert told.total() == CROWD
    assert set(told) <= {"too-slow", "overloaded"}
    assert told["too-slow"] > 0
    assert max(rss) - rss[0] < STORM_BYTES + links * LINK_BYTES


# --- replies that nobody reads --------------------------------------------------------------

LONG: Final = [f"{n:04}" + "x" * 250 for n in range(4_000)]
MOST_REPLY_BYTES: Final = 2 << 20


def test_answers_that_nobody_reads_are_bounded_by_their_bytes(start: Start) -> None:
    sidecar = start(limits_max_reply_bytes=MOST_REPLY_BYTES)
    good = sidecar.gateway("good")
    good.send("login", "unharmed")
    good.send("login", LONG)
    is_unharmed(good)
    rss = sidecar.rss_bytes
    greedy = sidecar.gateway("greedy")
    # Each answer is a megabyte, of some hundred bytes: all would be a fifth of a gigabyte.
    question = packed(["where", LONG])
    with suppress(ConnectionError):
        for _ in range(200):
            greedy.send_bytes(question)
    greedy.wait_closed()
    line = sidecar.line("link refused", name="greedy", code="overloaded")
    assert f"{MOST_REPLY_BYTES} bytes" in line["detail"]
    assert "limits.max_reply_bytes" in line["detail"]
    assert sidecar.rss_bytes - rss < 8 * MOST_REPLY_BYTES
    is_unharmed(good)
    eventually(lambda: sidecar.metric("liveness_links", role="gateway") == 1)
    sidecar.gateway("greedy").settle()
