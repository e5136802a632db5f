"""Hostile peers at the gateway socket of a real sidecar: its memory stays bounded.

Bytes that claim more than they bring, or never end; ten thousand connections that say
nothing; answers that nobody reads. Meanwhile a good gateway has a link and a user, and
both have to be there afterwards; a refusal says which limit was met.
"""

import json
import resource
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from itertools import repeat
from time import perf_counter
from typing import Final

import pytest

from tests.helpers.tree import ROOT
from tests.helpers.wire import packed
from tests.system.client import SOON_S, Client
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar

MAX_FRAME_BYTES: Final = 1 << 20
# Of memory for one hostile peer: a frame of the greatest size, kept and copied, and the
# allocator's slack. Endless ones send many times as much.
GROWTH_BYTES: Final = 16 << 20
ENDLESS_BYTES: Final = 64 << 20
CHUNK_BYTES: Final = 1 << 16
LONG_TIMEOUT: Final = {"timeout": 3_600}  # on a machine that is busy, too

HELLO: Final = packed(["hello", {"protocol": 1, "name": "hostile"}])


@pytest.fixture(scope="module")
def good(sidecar: Sidecar) -> Iterator[Client]:
    """A gateway whose link and user notice nothing of what others do."""
    link = sidecar.gateway("good")
    link.send("login", "unharmed", LONG_TIMEOUT)
    yield link
    is_unharmed(link)
    assert not link.records


def is_unharmed(link: Client) -> None:
    link.sync()
    assert [row[0] for row in link.where("unharmed")] == ["unharmed"]


# --- bytes that claim more than they bring ---------------------------------------------


ENDLESS: Final = {
    "a string": (b"\x92\xa4ping\xdb\xff\xff\xff\xff", b"a"),
    "a map": (b"\x92\xa4ping\xdf\xff\xff\xff\xff", b"\xa1k\x07\xa1l\x07"),
}


def send_until_answered(link: Client, pieces: Iterable[bytes]) -> int:
    """Send until there is an answer; how many bytes that were."""
    sent = 0
    for piece in pieces:
        if select.select([link], [], [], 0)[0]:
            break
        link.send_bytes(piece)
        sent += len(piece)
    return sent


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
        refusal = link.refusal()
        assert (refusal["code"], refusal["fatal"]) == ("too-large", True)
        assert link.receive() is None
        assert sidecar.rss_bytes - rss < GROWTH_BYTES
    assert str(MAX_FRAME_BYTES) in refusal["message"]
    assert "welcome.max_frame" in refusal["message"]
    is_unharmed(good)


# --- without a hello ---------------------------------------------------------------------

CROWD: Final = 10_000
PROCESSES: Final = 4
CROWD_S: Final = 300.0  # until all are gone, on a machine that is busy
# A link that has said nothing takes some 5 KiB, and ten thousand that come at once some
# megabytes more.
LINK_BYTES: Final = 16 << 10
STORM_BYTES: Final = 32 << 20
# As many as the sidecar may have on this machine: a link takes two open files, and the rest
# of it some 330.
MOST_LINKS: Final = (resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 400) // 2


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
    start: Start, links: int
) -> None:
    sidecar = start(limits_max_links=links)
    good = sidecar.gateway("good")
    good.send("login", "unharmed", LONG_TIMEOUT)
    is_unharmed(good)
    rss = [sidecar.rss_bytes]
    # The open files of a process are limited, often to 4,096.
    program = [
        sys.executable,
        "-m",
        "tests.system.idle_connections",
        str(sidecar.socket),
    ]
    program.append(str(CROWD // PROCESSES))
    with ExitStack() as stack:
        crowds = list[subprocess.Popen[str]]()
        for _ in range(PROCESSES):
            crowd = subprocess.Popen(
                program, cwd=ROOT, stdout=subprocess.PIPE, text=True
            )
            crowds.append(stack.enter_context(crowd))
            stack.callback(crowd.kill)
        until = perf_counter() + CROWD_S
        while any(crowd.poll() is None for crowd in crowds):
            is_unharmed(good)
            rss.append(sidecar.rss_bytes)
            assert perf_counter() < until, "they are not gone"
        codes = Counter[str]()
        for crowd in crowds:
            codes.update(json.loads(crowd.communicate()[0]))
    get_in(sidecar, "new").sync()
    is_unharmed(good)
    # All with an answer, whichever limit they ran into.
    assert codes.total() == CROWD
    assert set(codes) <= {"too-slow", "overloaded"}
    assert codes["too-slow"] > 0
    assert max(rss) - rss[0] < STORM_BYTES + links * LINK_BYTES


# --- replies that nobody reads --------------------------------------------------------------
