"""Whose silence is it? Gateways that are mute, away or fresh, and a sidecar frozen."""

import signal
from time import perf_counter
from typing import Any

from tests.e2e.client import Client, Record
from tests.e2e.conftest import Start
from tests.e2e.sidecar import SOON_S, Sidecar

PING_S = 0.2  # a gateway that has promised it is mute a second later
# Where users are kept alive by this process, with room for its being slow.
TIMEOUT_S = 1.5
ENDINGS = ["offline"]


def held(sidecar: Sidecar, why: str, users: int) -> None:
    sidecar.metric_until(lambda value: value == users, "liveness_users_held", why=why)


def talk(
    gateway: Client, uids: list[Any], seconds: float, *, listener: Client | None = None
) -> list[Record]:
    """Keeps these users alive for so long, or until the listener is told something."""
    listener = listener or gateway
    until = perf_counter() + seconds
    while (left := until - perf_counter()) > 0 and not listener.records:
        gateway.send("keepalive", uids)
        try:
            frame = listener.receive(min(left, 0.1))
        except TimeoutError:
            continue
        assert frame is not None
        assert frame[0] == "notices", frame
    taken, listener.records = listener.records, []
    return taken


def facts(records: list[Record]) -> list[tuple[Any, ...]]:
    return sorted((one["uid"], one["kind"], one["reason"]) for one in records)


def no_early_one(sidecar: Sidecar) -> None:
    assert sidecar.metric("liveness_early_offline_total") == 0


# --- mute --------------------------------------------------------------------------


def test_users_of_a_mute_gateway_are_held_and_get_a_fresh_timeout_when_it_speaks(
    start: Start,
) -> None:
    sidecar = start(TIMEOUT_S)
    gateway = sidecar.gateway("g", ping=PING_S)
    gateway.send("login", ["speaks", "silent"], {"conn": [1, 2]})
    gateway.settle()
    held(sidecar, "mute", 2)
    assert sidecar.metric("liveness_users_online") == 2
    heard_at = perf_counter()
    records = talk(gateway, ["speaks"], SOON_S)
    assert perf_counter() - heard_at >= TIMEOUT_S
    assert facts(records) == [("silent", "offline", "silence")]
    assert records[0]["silence"] >= 2 * TIMEOUT_S
    held(sidecar, "mute", 0)
    # A hold is the gateway's doing, and no lateness of ours.
    late = sidecar.metric("liveness_offline_lateness_seconds_sum", stage="decided")
    assert late < TIMEOUT_S
    no_early_one(sidecar)


def test_a_hold_ends_by_itself_and_blames_the_gateway(start: Start) -> None:
    sidecar = start(TIMEOUT_S, limits_gateway_hold_s=1)
    gateway = sidecar.gateway("g", ping=PING_S)
    gateway.send("login", ["a", "b"])
    records = gateway.take(2)
    assert facts(records) == [
        ("a", "offline", "gateway_lost"),
        ("b", "offline", "gateway_lost"),
    ]
    least = TIMEOUT_S + 1
    assert all(least <= one["silence"] < least + 1.5 for one in records)
    assert sidecar.metric("liveness_offline_total", reason="gateway_lost") == 2
    held(sidecar, "mute", 0)
    no_early_one(sidecar)


def test_only_a_gateway_that_broke_its_promise_holds_its_users(start: Start) -> None:
    sidecar = start(TIMEOUT_S)
    mute = sidecar.gateway("mute", ping=PING_S)
    plain = sidecar.gateway("plain")  # promised nothing
    alive = sidecar.gateway("alive", ping=PING_S)  # and keeps its promise
    for gateway in (mute, plain, alive):
        gateway.send("login", f"of {id(gateway)}")
    while not alive.records:
        alive.settle()
    for gateway in (plain, alive):
        (record,) = gateway.take(1)
        assert (record["uid"], record["reason"]) == (f"of {id(gateway)}", "silence")
        assert TIMEOUT_S <= record["silence"] < TIMEOUT_S + 1
    held(sidecar, "mute", 1)


# --- away --------------------------------------------------------------------------


def test_users_of_a_gateway_that_left_are_lost_with_it(start: Start) -> None:
    sidecar = start(1)
    watcher = sidecar.watcher(kinds=ENDINGS)
    gateway = sidecar.gateway("g")
    gateway.send("login", ["a", 7], {"conn": [1, 2]})
    gateway.settle()
    gateway.close()
    records = watcher.take(2)
    assert {one["reason"] for one in records} == {"gateway_lost"}
    assert {one["conn"] for one in records} == {1, 2}
    assert all(1 <= one["silence"] < 3.5 for one in records)
    assert sidecar.metric("liveness_links", role="gateway") == 0


def test_reconnecting_within_a_second_saves_the_users_who_speak(start: Start) -> None:
    sidecar = start(TIMEOUT_S)
    watcher = sidecar.watcher(kinds=ENDINGS)
    gateway = sidecar.gateway("g")
    gateway.send("login", ["speaks", "silent"], {"conn": [1, 2]})
    # Almost until the other one is due, so that this happens while the gateway is away.
    talk(gateway, ["speaks"], TIMEOUT_S - 0.3)
    gateway.close()
    held(sidecar, "away", 1)
    again = sidecar.gateway("g")
    records = talk(again, ["speaks"], SOON_S, listener=watcher)
    assert facts(records) == [("silent", "offline", "silence")]
    assert again.where("speaks") == [["speaks", "g", 1, 1]]
    no_early_one(sidecar)


def test_a_fresh_gateway_ends_its_old_sessions_before_anything_else(
    sidecar: Sidecar,
) -> None:
    watcher = sidecar.watcher()
    first = watcher.next
    gateway = sidecar.gateway("g", kinds=["online"])
    gateway.send("login", ["a", "b"], {"conn": [1, 2]})
    assert len(gateway.take(2)) == 2
    gateway.close()
    fresh = sidecar.connect()
    # All at once, as a gateway does that does not wait for its welcome.
    fresh.say_hello("g", kinds=["online", "offline"], fresh=True)
    fresh.send("login", "a", {"conn": 3})
    fresh.send("logout", "b", {"conn": 2})
    (welcome,) = fresh.expect("welcome")
    assert welcome["next"] == first + 4
    fresh.settle()
    # Its cursor moved to now: neither what was unacknowledged nor what that ended.
    (record,) = fresh.until(len)
    assert (record["seq"], record["uid"]) == (first + 4, "a")
    records = watcher.take(5)
    assert [(one["kind"], one["reason"]) for one in records[2:]] == [
        *[("offline", "gateway_lost")] * 2,
        ("online", "login"),
    ]
    assert {one["conn"] for one in records[2:4]} == {1, 2}
    assert fresh.listed() == ({"a": ("g", first + 4, 3)}, first + 4)
    assert sidecar.metric("liveness_events_ignored_total", why="offline") == 1


def test_a_fresh_gateway_ends_nobody_elses_sessions(sidecar: Sidecar) -> None:
    users = [f"of another {n}" for n in range(2_000)]
    other = sidecar.gateway("other")
    other.send("login", users)
    other.settle()
    sidecar.gateway("fresh", fresh=True)
    assert len(other.where(*users)) == 2_000


# --- a sidecar that was not there ----------------------------------------------------


def test_a_frozen_sidecar_takes_nobody_for_silent_who_was_reported(
    start: Start,
) -> None:
    sidecar = start(1)
    gateway = sidecar.gateway("g")
    gateway.send("login", ["speaks", "silent"])
    gateway.settle()
    before = sidecar.metric("liveness_unattended_seconds_total")
    sidecar.signal(signal.SIGSTOP)
    assert talk(gateway, ["speaks"], 2) == []
    sidecar.signal(signal.SIGCONT)
    records = talk(gateway, ["speaks"], SOON_S)
    assert facts(records) == [("silent", "offline", "silence")]
    assert records[0]["silence"] > 2
    assert gateway.where("speaks") == [["speaks", "g", 1, None]]
    after = sidecar.metric("liveness_unattended_seconds_total")
    assert 1.5 < after - before < SOON_S
    no_early_one(sidecar)
