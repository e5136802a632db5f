"""Processes that are stopped, killed, replaced and started anew, on either side.

Each of them is a real one, and so is what happens to it. Nobody who was reported may be
taken for silent by it, and whoever is silent is told of once.
"""

from contextlib import ExitStack
from time import perf_counter
from typing import Any, Final

from liveness.core.records import Record as Logged
from tests.e2e.client import Client, Record
from tests.e2e.conftest import QUICK_FLUSH_S, Start
from tests.e2e.sidecar import SOON_S, Sidecar, eventually
from tests.e2e.talker import Talker, alive, logins, standing_still

PING_S: Final = 0.2
HOLD_S: Final = 1
# Where a user is kept alive by another process, with room for its being slow.
TIMEOUT_S: Final = 2.5
# The longest that the sidecar sleeps, and what of its absence it takes for sleep.
SLEEP_S: Final = 0.2

USERS: Final = [(f"user-{n}", n) for n in range(100)]
# Frames that fill a socket within a second of nobody reading them.
OFTEN_S: Final = 0.002


def sit_out_a_timeout(sidecar: Sidecar) -> None:
    """Waits until somebody who was heard of only just now is told of as silent.

    Whoever else was silent by then has been told of before.
    """
    marker = sidecar.gateway("marker", kinds=["offline"])
    marker.send("login", "marker")
    (record,) = marker.take(1)
    assert record["reason"] == "silence"


def ends(sidecar: Sidecar) -> list[Logged]:
    """All who were told of as offline, but for markers."""
    return [
        one for one in sidecar.log() if one.kind == "offline" and one.uid != "marker"
    ]


def online(link: Client, users: list[tuple[str, int]]) -> dict[Any, int]:
    """Those of them who are, with their conns."""
    return {uid: conn for uid, _, _, conn in link.where(*(uid for uid, _ in users))}


def of(records: list[Record], uid: str) -> list[Record]:
    return [one for one in records if one["uid"] == uid]


def facts(records: list[Record]) -> list[tuple[Any, ...]]:
    return sorted((one["uid"], one["reason"]) for one in records)


def held(sidecar: Sidecar, why: str, users: int) -> None:
    sidecar.metric_until(lambda value: value == users, "liveness_users_held", why=why)


# --- the sidecar stands still -----------------------------------------------------------


def test_a_sidecar_that_stands_still_for_four_timeouts_takes_nobody_for_silent_who_spoke(
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
        quiet.send("login", ["silent before", "silent during"], {"conn": [1, 2]})
        quiet.settle()
        before = sidecar.metric("liveness_unattended_seconds_total")
        with standing_still(sidecar) as stopped_at:
            # While nobody reads: one more sign of life, and all others until none fits.
            quiet.send("keepalive", "silent during", {"conn": 2})
            for gateway in gateways:
                gateway.told("full", lambda line: line["at"] > stopped_at)
            eventually(lambda: perf_counter() - stopped_at >= 4 * TIMEOUT_S)
            stood_s = perf_counter() - stopped_at
        sit_out_a_timeout(sidecar)
        assert facts(watcher.take(3)) == [
            ("marker", "silence"),
            ("silent before", "silence"),
            ("silent during", "silence"),
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
            # None was let go meanwhile, and they are shown for what they are.
            assert sidecar.metric("liveness_users_held", why="mute") == len(USERS) + 1
            assert online(watcher, [silent]) == dict([silent])
            woken_at = perf_counter()
        (record,) = of(watcher.until(lambda them: of(them, "silent")), "silent")
        assert perf_counter() - woken_at >= TIMEOUT_S
        assert (record["reason"], record["conn"]) == ("silence", 1_000)
        held(sidecar, "mute", 0)
        sit_out_a_timeout(sidecar)
        assert online(watcher, USERS) == dict(USERS)
        assert [one.uid for one in ends(sidecar)] == ["silent"]
    assert sidecar.metric("liveness_early_offline_total") == 0


def test_the_hold_of_a_stopped_gateway_ends_by_itself_and_its_users_come_back_with_it(
    start: Start,
) -> None:
    sidecar = start(TIMEOUT_S, flush_s=QUICK_FLUSH_S, limits_gateway_hold_s=HOLD_S)
    watcher = sidecar.watcher()
    logged_in = logins(USERS)
    with Talker(sidecar.socket, "g", logged_in, alive(USERS), ping=PING_S) as gateway:
        with standing_still(gateway):
            lost = watcher.take(2 * len(USERS))[len(USERS) :]
            assert {one["uid"]: one["conn"] for one in lost} == dict(USERS)
            assert {(one["kind"], one["reason"]) for one in lost} == {
                ("offline", "gateway_lost")
            }
            assert all(one["silence"] >= TIMEOUT_S + HOLD_S for one in lost)
            held(sidecar, "mute", 0)
        # It was the gateway's silence: each of them is there again as soon as it is.
        back = watcher.take(len(USERS))
        assert {one["uid"]: one["conn"] for one in back} == dict(USERS)
        assert {(one["kind"], one["reason"]) for one in back} == {
            ("online", "keepalive")
        }
        gateway.told("notices")  # and it has been told whom it had lost
    assert len(gateway.records) == len(USERS)


# --- a gateway is killed, replaced, started anew ----------------------------------------


def test_users_of_a_killed_gateway_are_lost_at_their_timeouts(start: Start) -> None:
    sidecar = start(TIMEOUT_S, flush_s=QUICK_FLUSH_S)
    long = ("long", 1_000)
    first = [*logins(USERS), *logins([long], timeout=60)]
    with Talker(sidecar.socket, "g", first, alive(USERS)) as gateway:
        sit_out_a_timeout(sidecar)
        watcher = sidecar.watcher(kinds=["offline"])
        gateway.kill()
        lost = watcher.take(len(USERS))
    assert {one["uid"]: one["conn"] for one in lost} == dict(USERS)
    assert {one["reason"] for one in lost} == {"gateway_lost"}
    assert all(one["silence"] >= TIMEOUT_S for one in lost)
    assert {one["last"] for one in lost} == {"keepalive"}
    sit_out_a_timeout(sidecar)
    assert online(watcher, [long]) == dict([long])
    assert sidecar.metric("liveness_links", role="gateway") == 1  # the marker's


def test_nobody_ends_when_a_gateway_is_replaced_while_it_still_writes(
    start: Start,
) -> None:
    sidecar = start(TIMEOUT_S, flush_s=QUICK_FLUSH_S)
    path, said = sidecar.socket, alive(USERS)
    with (
        Talker(path, "g", logins(USERS), said, every_s=0) as old,
        Talker(path, "g", logins([("silent", 1_000)]), said, ping=PING_S) as new,
    ):
        refusal = old.told("error")
        assert (refusal["code"], refusal["fatal"]) == ("replaced", True)
        old.told("end")
        # The end of the older one is not taken for that of their gateway.
        (record,) = new.told("notices")["records"]
        assert (record["uid"], record["reason"]) == ("silent", "silence")
        sit_out_a_timeout(sidecar)
        assert online(sidecar.watcher(), USERS) == dict(USERS)
        assert len(ends(sidecar)) == 1
        assert not new.lines("error")
        assert not old.records


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


def test_a_gateway_that_was_killed_and_comes_back_fresh_has_only_its_new_users(
    sidecar: Sidecar, name: str
) -> None:
    def users(conn: int) -> list[tuple[str, int]]:
        return [(f"{name}:{n}", conn + n) for n in range(200)]

    watcher = sidecar.watcher()
    with Talker(sidecar.socket, name, logins(users(0)), alive(users(0))) as old:
        watcher.take(200)
        old.kill()
    back = users(1_000)[:100]
    with Talker(sidecar.socket, name, logins(back), alive(back), fresh=True) as new:
        records = watcher.take(300)
        assert {one["reason"] for one in records[:200]} == {"gateway_lost"}
        assert {one["uid"]: one["conn"] for one in records[:200]} == dict(users(0))
        assert [one["kind"] for one in records[200:]] == ["online"] * 100
        assert online(watcher, users(0)) == dict(back)
        # Nothing of what went before is this process's affair.
        assert not new.records
        assert not new.lines("error")
