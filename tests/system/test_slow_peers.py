"""Peers that read nothing, or a byte at a time, or acknowledge nothing.

They delay no other link and take no memory, and once they read they get all records, or a
gap.
"""

from itertools import count
from time import perf_counter
from typing import Any, Final

import pytest

from liveness.lab.common.judge import quantile
from tests.helpers.wire import Record
from tests.system.client import Client
from tests.system.conftest import Say, Start
from tests.system.sidecar import SOON_S, eventually

WINDOW: Final = 500
EVERYTHING: Final[dict[str, Any]] = {
    "scope": "all",
    "kinds": ["online", "offline", "moved"],
}
# Of each sort. What they leave unread, kept once, is half as much again as the bound, and
# kept for each peer five times as much.
PEERS: Final = 3
CROWD: Final = 500  # in a round: as many logins, and as many logouts
WARM: Final = 5  # rounds after which everything was allocated that is allocated once
GROWTH_BYTES: Final = 10 << 20
LEAST_RETENTION_BYTES: Final = 16 << 20
# A record that no peer can have been sent before the log was cut back to that.
FAR: Final = 15_000
FILLING: Final = "x" * 200  # long uids, so that there is much to leave unread

READING_S: Final = 60.0  # all that was left unread, on a slow machine
# To wait for a peer that reads so slowly would take longer than this; measured is a
# twentieth of it, on a machine with other things to do.
BYTE_EVERY_S: Final = 1


def crowd(number: int) -> list[str]:
    return [f"{number}-{n}-{FILLING}" for n in range(CROWD)]


def come_and_go(link: Client, number: int) -> None:
    """Twice as many records as there are in a crowd, all on disk."""
    link.send("login", crowd(number))
    link.apply("logout", crowd(number))


def told_in(link: Client, uid: str) -> float:
    """The seconds until a gateway gets the record of what it has just reported."""
    link.send("login", uid)
    began = perf_counter()
    link.send("logout", uid)
    (record,) = link.take(1)
    took = perf_counter() - began
    assert record["uid"] == uid
    link.send("ack", record["seq"])
    return took


def is_whole(records: list[Record], first: int, last: int) -> bool:
    """Whether these are all records from *first* to *last*."""
    return [record["seq"] for record in records] == list(range(first, last + 1))


@pytest.mark.parametrize(
    ("rounds", "every_s"),
    [(20, 0), pytest.param(60, BYTE_EVERY_S, marks=pytest.mark.slow)],
)
def test_a_peer_that_does_not_read_delays_none_takes_no_memory_and_misses_nothing(
    start: Start, say: Say, rounds: int, every_s: float
) -> None:
    sidecar = start(limits_window=WINDOW, limits_tail=1_000)
    busy = sidecar.gateway("busy", kinds=["moved"])
    others = sidecar.gateway("others")
    for number in range(WARM):
        come_and_go(busy, number)
    first = sidecar.watcher().next
    sorts: dict[str, dict[str, Any]] = {
        "gateway": {"ack": False},
        "gateway with a window": {},
        "watcher": {"role": "watcher", "ack": False},
        "watcher a byte at a time": {"role": "watcher", "ack": False},
    }
    peers = {
        sort: [sidecar.gateway(f"{sort} {n}", **EVERYTHING, **it) for n in range(PEERS)]
        for sort, it in sorts.items()
    }
    speaking = peers["gateway"][0]
    speaking.send("login", "of a deaf gateway", {"conn": 1, "timeout": SOON_S})
    speaking.send("keepalive", "of a deaf gateway", {"conn": 1})
    unacking = sidecar.gateway("unacking", **EVERYTHING)
    taken_s, nibbled = list[float](), 0
    before = sidecar.rss_bytes
    for number in range(rounds):
        until = perf_counter() + every_s
        nibbled += sum(peer.nibble() for peer in peers["watcher a byte at a time"])
        speaking.send("keepalive", "of a deaf gateway", {"conn": 1})
        come_and_go(busy, number)
        taken_s.append(told_in(others, "other"))
        while perf_counter() < until:
            taken_s.append(told_in(others, "other"))
    assert 0 < nibbled <= PEERS * rounds
    grown = sidecar.rss_bytes - before
    # A deaf gateway is heard all the same: its user is there, on its first session.
    assert [row[1:] for row in others.where("of a deaf gateway")] == [
        ["gateway 0", first, 1]
    ]
    speaking.send("logout", "of a deaf gateway", {"conn": 1})
    eventually(lambda: not others.where("of a deaf gateway"))
    last = sidecar.watcher().next - 1
    say(
        f"{last - first + 1} records, {4 * PEERS} slow peers: others are told within "
        f"{1000 * quantile(taken_s, 0.5):.1f} ms (p50), "
        f"{1000 * quantile(taken_s, 0.99):.1f} ms (p99); memory {grown >> 10:+} KiB"
    )
    assert grown < GROWTH_BYTES
    if every_s:
        assert quantile(taken_s, 0.99) < BYTE_EVERY_S
    # A link with a window is sent as much as fits, and more with each ack.
    assert sidecar.metric("liveness_link_unacked", gateway="unacking") == WINDOW
    acked = len(taken_s)
    for peer in (unacking, *peers["gateway with a window"]):
        told = peer.take(WINDOW)
        for _ in range(2):
            peer.sync()
        assert not peer.records
        while told[-1]["seq"] < last:
            peer.send("ack", told[-1]["seq"])
            before_ack = len(told)
            told += peer.take(1, READING_S)
        peer.sync()  # what it was sent last may have followed an earlier ack
        acked += before_ack
        assert is_whole(told, told[0]["seq"], last)
    assert sidecar.metric("liveness_notices_acked_total") == acked
    for sort in ("gateway", "watcher", "watcher a byte at a time"):
        for peer in peers[sort]:
            assert is_whole(peer.take(last - first + 1, READING_S), first, last)


@pytest.mark.slow
def test_a_peer_that_reads_after_the_retention_has_passed_gets_a_gap(
    start: Start,
) -> None:
    sidecar = start(state_retention_bytes=LEAST_RETENTION_BYTES, limits_tail=1_000)
    busy = sidecar.gateway("busy", kinds=["moved"])
    others = sidecar.gateway("others")  # whom nothing that goes concerns
    peers = [
        (sidecar.gateway(f"{role}, {acks}", **EVERYTHING, role=role, ack=acks), acks)
        for role in ("gateway", "watcher")
        for acks in (False, True)
    ]
    before = sidecar.rss_bytes
    oldest = 1
    for number in count():  # until what is gone is more than a socket and a window hold
        come_and_go(busy, number)
        if oldest > FAR:
            break
        ((oldest,),) = sidecar.rows("select min(first) from log")
    assert sidecar.rss_bytes - before < GROWTH_BYTES
    last = sidecar.watcher().next - 1
    for peer, acks in peers:
        told = list[Record]()
        while not told or told[-1]["seq"] < last:
            told += peer.take(1, READING_S)
            if acks:
                peer.send("ack", told[-1]["seq"])
        (gap,) = (record for record in told if record["kind"] == "gap")
        place = told.index(gap)
        assert (gap["first"], gap["seq"]) == (
            told[place - 1]["seq"] + 1,
            gap["until"] - 1,
        )
        assert is_whole(told[:place], 1, gap["first"] - 1)
        assert is_whole(told[place + 1 :], gap["until"], last)
    told_in(others, "u")
    assert others.records == []
