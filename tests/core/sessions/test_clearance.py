"""When the due users of a gateway may be judged: its holds, and how each of them ends."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liveness.core.sessions.clearance import (
    AWAY,
    MUTE,
    NEVER,
    SHORT_PAUSE_S,
    STORM,
    UNREAD,
    Clearance,
    GatewayState,
)
from liveness.core.wheel.wheel import Wheel
from tests.core.scene import Scene, Shown
from tests.helpers.strategies import BOUNDED, examples

HOLD_S, SETTLE_S = 60.0, 2.0


@pytest.fixture
def gateway() -> GatewayState:
    """A gateway with users, linked at 100 s and settled since, that promised nothing."""
    made = GatewayState("g", 0, SETTLE_S, users=3)
    made.linked(ping=None, now=100.0)
    return made


@pytest.fixture
def pinging() -> GatewayState:
    """A gateway without users, linked at 100 s, that promised a ping every 2.5 s."""
    made = GatewayState("g", 0, SETTLE_S)
    made.linked(ping=2.5, now=100.0)
    return made


@pytest.fixture
def scene(wheel_class: type[Wheel]) -> Scene:
    """Two gateways with a user each, of a timeout of 30 s; links promise 2.5 s."""
    made = Scene(wheel_class, hold=HOLD_S, reconnect_grace=SETTLE_S)
    for name in ("g", "h"):
        made.link(name, ping=2.5)
        made.login(name, [f"user of {name}"])
    return made


def reasons(records: list[Shown]) -> list[tuple[str, str]]:
    return [(shown["uid"], shown["reason"]) for shown in records]


def live(scene: Scene, seconds: float, *names: str) -> list[Shown]:
    """Let time pass in which these gateways are heard and read all along."""
    records = []
    while seconds > 0:
        records += scene.wait(min(seconds, 4.0), *names)
        seconds -= 4.0
    return records


@pytest.mark.parametrize(
    ("empty_at", "cleared"),
    [
        (150.0, Clearance(silence=150.0, lost=90.0)),
        (149.0, Clearance(silence=149.0, lost=89.0, why=UNREAD)),
        (NEVER, Clearance(lost=40.0, why=UNREAD)),
    ],
    ids=["now", "before", "never"],
)
def test_a_gateway_is_cleared_up_to_when_it_was_last_read_empty(
    gateway: GatewayState, empty_at: float, cleared: Clearance
) -> None:
    gateway.empty_at = empty_at
    assert gateway.clearance(150.0, hold=HOLD_S) == cleared


def test_a_link_is_read_itself_though_the_last_was_read_at_the_same_instant() -> None:
    gateway = GatewayState("g", 0, reconnect_grace=0.0, users=3)
    gateway.linked(ping=None, now=100.0)
    gateway.empty_at = 100.0
    gateway.linked(ping=None, now=100.0)
    assert gateway.clearance(100.0, hold=HOLD_S).silence == NEVER


def test_a_short_pause_of_reading_gives_no_time_to_settle(
    gateway: GatewayState,
) -> None:
    gateway.reading_paused(150.0)
    gateway.reading_resumed(150.0 + SHORT_PAUSE_S)
    assert gateway.grace_until == 100.0 + SETTLE_S


@pytest.mark.parametrize(
    ("users", "timeout", "in_force", "until"),
    [
        (3, 60.0, 60.0, NEVER),
        (3, 30.0, 30.0, NEVER),
        (3, 20.0, 30.0, 140.0),
        (0, 20.0, 20.0, NEVER),
    ],
    ids=["longer", "the same", "shorter", "shorter, of nobody"],
)
def test_a_longer_timeout_is_in_force_at_once_and_a_shorter_one_later(
    users: int, timeout: float, in_force: float, until: float
) -> None:
    gateway = GatewayState("g", 0, SETTLE_S, users=users)
    gateway.set_in_force(30.0, 100.0, before=0.0)
    gateway.set_in_force(timeout, 110.0, before=30.0)
    assert (gateway.in_force, gateway.in_force_until) == (in_force, until)


def test_a_gateway_heard_at_the_instant_of_a_miss_can_miss_again(
    pinging: GatewayState,
) -> None:
    pinging.count_miss(200.0)
    pinging.heard(200.0)
    assert pinging.has_missed(300.0)


@pytest.mark.parametrize(
    ("now", "silence", "why"),
    [(101.75, NEVER, UNREAD), (102.0, 102.0, None)],
    ids=["settling", "settled"],
)
def test_a_new_link_is_given_time_to_send_what_it_had_collected(
    gateway: GatewayState, now: float, silence: float, why: str | None
) -> None:
    gateway.empty_at = now
    assert gateway.clearance(now, hold=HOLD_S) == (silence, now - HOLD_S, NEVER, why)


def test_a_gateway_that_left_is_away_until_it_is_settled_and_then_to_blame(
    gateway: GatewayState,
) -> None:
    gateway.unlinked(150.0)
    assert gateway.clearance(151.75, hold=HOLD_S) == (NEVER, 91.75, NEVER, AWAY)
    assert gateway.clearance(152.0, hold=HOLD_S) == (NEVER, 152.0, NEVER, None)


def test_a_renewed_user_waits_for_a_gateway_that_is_away_and_for_no_mute_one(
    pinging: GatewayState,
) -> None:
    pinging.empty_at = 150.0
    assert pinging.clearance_of_renewed(150.0) == (NEVER, 150.0, NEVER, MUTE)
    pinging.unlinked(150.0)
    assert pinging.clearance_of_renewed(151.0) == (NEVER, 149.0, NEVER, AWAY)


@pytest.mark.parametrize(
    ("empty_at", "silence", "why"),
    [(111.75, NEVER, UNREAD), (112.0, 112.0, UNREAD), (112.5, 112.5, None)],
    ids=["before", "then", "later"],
)
def test_a_link_has_to_be_read_empty_after_its_gateway_has_settled(
    pinging: GatewayState, empty_at: float, silence: float, why: str | None
) -> None:
    pinging.heard(110.0)
    assert pinging.clearance(111.0, hold=HOLD_S) == (NEVER, 50.0, 110.0, UNREAD)
    pinging.empty_at = empty_at
    assert pinging.clearance(112.5, hold=HOLD_S)[::3] == (silence, why)


@pytest.mark.parametrize(
    ("ping", "kept"), [(0.1, 1.1), (1.0, 2.0), (5.0, 10.0), (60.0, 120.0)]
)
def test_a_promise_is_broken_once_late_by_as_much_again_and_by_a_second_at_least(
    ping: float, kept: float
) -> None:
    gateway = GatewayState("g", 0, SETTLE_S)
    gateway.linked(ping=ping, now=0.0)
    assert gateway.absence(kept) is None
    assert gateway.absence(kept + 0.001) == MUTE


def test_a_broken_promise_is_counted_once_until_the_gateway_is_heard(
    pinging: GatewayState,
) -> None:
    pinging.count_miss(100.0)
    assert (pinging.mutes, pinging.has_missed(105.0)) == (0, False)
    assert pinging.has_missed(105.25)
    pinging.count_miss(105.25)
    assert not pinging.has_missed(300.0)
    pinging.heard(300.0)
    assert not pinging.has_missed(301.0)
    assert pinging.has_missed(306.0)
    pinging.count_miss(306.0)
    pinging.heard(310.0)
    pinging.reading_paused(316.0)  # it is the sidecar that does not read
    assert not pinging.has_missed(316.0)
    pinging.unlinked(316.0)
    assert not pinging.has_missed(400.0)
    assert pinging.mutes == 2


def test_users_of_a_mute_gateway_are_held_and_get_a_fresh_timeout_when_it_is_heard(
    scene: Scene,
) -> None:
    assert reasons(live(scene, 30.25, "h")) == [("user of h", "silence")]
    assert scene.firing.held(scene.now) == {AWAY: 0, MUTE: 1, UNREAD: 0, STORM: 0}
    assert live(scene, 10, "h") == []
    scene.read("g")
    assert scene.fire() == []
    assert scene.firing.held(scene.now) == {AWAY: 0, MUTE: 0, UNREAD: 0, STORM: 0}
    assert live(scene, 30, "g") == []
    (record,) = live(scene, 0.25, "g")
    assert (record["reason"], record["silence"]) == ("silence", 70.5)


def test_a_user_with_a_fresh_timeout_waits_no_longer_than_for_a_reconnect(
    scene: Scene,
) -> None:
    live(scene, 31, "h")
    scene.wait(0, "g")
    assert live(scene, 29.5, "g") == []
    scene.unlink("g")
    assert scene.wait(1.5) == []
    scene.link("g", ping=2.5)
    assert scene.wait(0.75, "g") == []
    assert scene.firing.held(scene.now)[UNREAD] == 1
    assert reasons(scene.wait(0.25, "g")) == [("user of g", "gateway_lost")]


def test_a_fresh_timeout_ends_with_the_hold_and_leaves_time_to_settle(
    scene: Scene,
) -> None:
    live(scene, 70, "h")
    assert live(scene, 17.75, "g") == []  # at 70 s it would last until 100 s
    (record,) = live(scene, 1, "g")
    assert (record["uid"], record["reason"]) == ("user of g", "silence")


@settings(BOUNDED, max_examples=examples(100))
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["talk", "talk", "flood", "hush", "drop", "connect"]),
            st.sampled_from([0.5, 1.0, 1.75, 2.25, 5.25]),
            st.integers(1, 12),
        ),
        min_size=5,
        max_size=60,
    )
)
def test_no_user_waits_longer_than_the_hold_whatever_its_gateway_does(
    wheel_class: type[Wheel], steps: list[tuple[str, float, int]]
) -> None:
    scene = Scene(wheel_class, hold=20.0, reconnect_grace=SETTLE_S)
    scene.link("g", ping=0.5)
    timeouts = {"short": 1.0, "usual": 8.0, "long": 60.0}
    for uid, timeout in timeouts.items():
        scene.login("g", [uid], timeout=timeout)
    for what, seconds, times in steps:
        for _ in range(times):
            scene.pass_time(seconds)
            if what == "drop":
                scene.unlink("g")
            elif what == "connect":
                scene.link("g", ping=0.5)
            elif what != "hush":
                scene.gateway("g").heard(scene.now)
            if what != "flood":
                scene.look_at("g")
            scene.fire()
            for uid, timeout in timeouts.items():
                assert uid not in scene.kept or scene.now <= timeout + 20 + seconds


def test_users_of_a_link_left_unread_are_given_up_after_the_hold_and_not_before(
    gateway: GatewayState,
) -> None:
    gateway.empty_at = 900.0
    gateway.reading_paused(900.0)
    assert gateway.clearance(1_000.0, hold=HOLD_S) == (NEVER, 940.0, NEVER, UNREAD)


def test_after_a_long_pause_a_gateway_gets_time_to_send_what_it_had_collected(
    gateway: GatewayState,
) -> None:
    gateway.empty_at = 900.0
    gateway.reading_paused(900.0)
    gateway.reading_resumed(1_000.0)
    gateway.heard(1_001.0)
    gateway.empty_at = 1_001.0  # it may still have events to send
    # No fresh timeout: pauses could follow each other for ever.
    assert gateway.clearance(1_001.0, hold=HOLD_S) == (NEVER, 941.0, NEVER, UNREAD)
    gateway.empty_at = 1_003.0
    assert gateway.clearance(1_003.0, hold=HOLD_S) == (1_003.0, 943.0, NEVER, None)


def test_a_gateway_whose_link_is_left_unread_is_not_mute(gateway: GatewayState) -> None:
    gateway.linked(ping=5.0, now=100.0)
    gateway.reading_paused(103.0)
    assert gateway.absence(200.0) is None
    gateway.reading_resumed(200.0)
    assert gateway.absence(200.0) is None
    assert gateway.clearance(200.0, hold=HOLD_S).why == UNREAD
    # It had used three of its ten seconds.
    assert gateway.absence(207.0) is None
    assert gateway.absence(207.5) == MUTE


def test_letting_go_of_a_link_that_was_read_changes_nothing(
    gateway: GatewayState,
) -> None:
    gateway.empty_at = 150.0
    gateway.reading_resumed(150.0)
    assert gateway.clearance(150.0, hold=HOLD_S) == (150.0, 90.0, NEVER, None)


def test_a_gateway_whose_link_ends_while_unread_is_away(gateway: GatewayState) -> None:
    gateway.reading_paused(150.0)
    gateway.unlinked(160.0)
    assert gateway.absence(160.0) == AWAY
    assert gateway.clearance(162.0, hold=HOLD_S) == (NEVER, 162.0, NEVER, None)
