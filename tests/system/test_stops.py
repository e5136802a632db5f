"""Processes that stand still: the sidecar's, or a gateway's.

No user who was reported may be taken for silent because of that, and a silent user ends
once. The decisions (holds, replaced links, fresh gateways) are those of
`tests/core/sessions/test_clearance.py` and `tests/service/links/test_links.py`.
"""

from contextlib import ExitStack
from time import perf_counter
from typing import Any, Final

from liveness.core.records import Record as Logged
from tests.system.client import Client
from tests.system.conftest import QUICK_FLUSH_S, Start
from tests.system.sidecar import SOON_S, Sidecar, eventually
from tests.system.talker import Talker, alive, logins, standing_still

PING_S: Final = 0.2
# Another process keeps users alive; with room for its being slow.
TIMEOUT_S: Final = 2.5
# The longest that the sidecar sleeps, and what of its absence it takes for sleep.
SLEEP_S: Final = 0.2

USERS: Final = [(f"user-{n}", n) for n in range(100)]
# Frames that fill a socket within a second of nobody reading them.
OFTEN_S: Final = 0.002


def sit_out_a_timeout(sidecar: Sidecar) -> None:
    """Waits for the end of a user who logs in now: all who are silent ended before."""
    marker = sidecar.gateway("marker", kinds=["offline"])
    marker.send("login", "marker")
    (record,) = marker.take(1)
    assert record["reason"] == "silence"


def ends(sidecar: Sidecar) -> list[Logged]:
    """All offlines but those of markers."""
    return [
        record
        for record in sidecar.log()
        if record.kind == "offline" and record.uid != "marker"
    ]


def online(link: Client, users: list[tuple[str, int]]) -> dict[Any, int]:
    """Those of these users who are online, with their conns."""
    return {uid: conn for uid, _, _, conn in link.where(*(uid for uid, _ in users))}


def held(sidecar: Sidecar, why: str, users: int) -> None:
    sidecar.metric_until(lambda value: value == users, "liveness_users_held", why=why)


# --- the sidecar stands still -----------------------------------------------------------


def test_a_sidecar_that_stands_still_for_four_timeouts_ends_no_user_who_spoke(
    start: Start,
) -> None:
    sidecar = start(TIMEOUT_S, flush_s=QUICK_FLUSH_S)
    with ExitStack() as stack:
        gateways = [
            stack.enter_context(
                Talker(
                    sidecar.socket, f"g-{n}", logins(part), alive(part), every_s=OFTEN_S
                )
            )
            for n, part in enumerate(USERS[n::4] for n in range(4))
        ]
        watcher = sidecar.watcher(kinds=["offline"])
        quiet = sidecar.gateway("quiet")
        quiet.apply("login", ["silent before", "silent during"], {"conn": [1, 2]})
        before = sidecar.metric("liveness_unattended_seconds_total")
        with standing_still(sidecar) as stopped_at:
            # While nobody reads: a sign of life, and those of others until none fits.
            quiet.send("keepalive", "silent during", {"conn": 2})
            for gateway in gateways:
                gateway.told("full", lambda line: line["at"] > stopped_at)
            eventually(lambda: perf_counter() - stopped_at >= 4 * TIMEOUT_S)
            stood_s = perf_counter() - stopped_at
        sit_out_a_timeout(sidecar)
        silent = watcher.take(3)
        assert {record["reason"] for record in silent} == {"silence"}
        assert sorted(record["uid"] for record in silent) == [
            "marker",
            "silent before",
            "silent during",
        ]
        assert online(watcher, USERS) == dict(USERS)
        assert not any(gateway.records for gateway in gateways)
        assert len(ends(sidecar)) == 2
    unattended = sidecar.metric("liveness_unattended_seconds_total") - before
    assert stood_s - SLEEP_S <= unattended < stood_s + SOON_S
    assert sidecar.metric("liveness_early_offline_total") == 0


# --- a gateway stands still -------------------------------------------------------------


def test_users_of_a_stopped_gateway_are_held_and_get_a_fresh_timeout_on_its_return(
    start: Start,
) -> None:
    sidecar = start(TIMEOUT_S, flush_s=QUICK_FLUSH_S)
    watcher = sidecar.watcher(kinds=["offline"])
    silent = ("silent", 1_000)
    with Talker(
        sidecar.socket, "g", logins([*USERS, silent]), alive(USERS), ping=PING_S
    ) as gateway:
        with standing_still(gateway):
            held(sidecar, "mute", len(USERS) + 1)
            sit_out_a_timeout(sidecar)
            # All of them are still held, and online.
            assert sidecar.metric("liveness_users_held", why="mute") == len(USERS) + 1
            assert online(watcher, [silent]) == dict([silent])
            woken_at = perf_counter()
        record = watcher.until(
            lambda records: records[-1:] and records[-1]["uid"] == "silent"
        )[-1]
        assert perf_counter() - woken_at >= TIMEOUT_S
        assert (record["reason"], record["conn"]) == ("silence", 1_000)
        held(sidecar, "mute", 0)
        sit_out_a_timeout(sidecar)
        assert online(watcher, USERS) == dict(USERS)
        assert [record.uid for record in ends(sidecar)] == ["silent"]
    assert sidecar.metric("liveness_early_offline_total") == 0


# --- a gateway is replaced --------------------------------------------------------------


def test_all_that_a_replaced_gateway_had_sent_is_applied_though_its_socket_was_full(
    sidecar: Sidecar, name: str
) -> None:
    with Talker(sidecar.socket, name, every_s=0, counted=name) as old:
        with standing_still(sidecar) as stopped_at:
            full = old.told("full", lambda line: line["at"] > stopped_at)
            new = sidecar.connect()
            new.say_hello(name)
        new.expect("welcome")
        assert old.told("error")["code"] == "replaced"
        # The last one that went in whole, and those before it.
        sent = [f"{name}-{number}" for number in range(full["whole"])][-4_000:]
        assert len(new.where(*sent)) == len(sent)
