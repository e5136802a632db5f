"""Ten thousand connections that say nothing, at the socket of a real sidecar.

Its memory stays bounded, and a good gateway's link and user are there afterwards.
"""

import json
import resource
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, suppress
from time import perf_counter
from typing import Final

import pytest

from tests.helpers.tree import ROOT
from tests.system.client import SOON_S, Client
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar

LONG_TIMEOUT: Final = {"timeout": 3_600}  # on a machine that is busy, too


def is_unharmed(link: Client) -> None:
    link.sync()
    assert [row[0] for row in link.where("unharmed")] == ["unharmed"]


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
