"""How often users speak: how the interval is learnt, and when a timeout is too short."""

from collections.abc import Iterable
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liveness.core.sessions import gateway_table
from liveness.core.wheel.intervals import (
    BUCKETS,
    EDGES,
    HALVED_AFTER,
    LEAST_SILENCES,
    STEPS,
    Silences,
    bucket_of,
    is_short,
)
from liveness.core.wheel.wheel import Wheel
from tests.core.scene import Scene
from tests.helpers.strategies import BOUNDED

WheelClass = type[Wheel]

CROWD = [f"u{n}" for n in range(40)]
ALONE = CROWD[:1]


@pytest.fixture
def scene(wheel_class: WheelClass) -> Scene:
    scene = Scene(wheel_class)
    scene.link("g")
    return scene


def speak(scene: Scene, uids: Iterable[str], every: float, times: int) -> int:
    """Let users speak so often, each in a frame of its own.

    Returns:
        How often the timeout began to be too short.
    """
    began = 0
    for _ in range(times):
        scene.wait(every, "g")
        for uid in uids:
            scene.hear("g", ("keepalive", uid, None))
        began += len(scene.gateways.look_at_cadence(scene.now))
    return began


def interval(scene: Scene, name: str = "g") -> float | None:
    scene.gateways.look_at_cadence(scene.now)
    return scene.gateway(name).cadence.interval


# --- the sketch --------------------------------------------------------------------------


@BOUNDED
@given(st.floats(EDGES[0], EDGES[BUCKETS - 1]))
def test_a_bucket_gives_a_silence_to_a_32nd_and_never_longer(
    silence: float,
) -> None:
    edge = EDGES[bucket_of(silence)]
    assert silence * (1 - 1 / STEPS) < edge <= silence


def test_a_bucket_begins_at_its_edge_and_the_outermost_take_the_rest() -> None:
    assert [bucket_of(EDGES[bucket]) for bucket in range(BUCKETS)] == [*range(BUCKETS)]
    assert {bucket_of(silence) for silence in (-1.0, 0.0, 1e-9, 0.03)} == {0}
    assert {bucket_of(silence) for silence in (135_000.0, 1e300)} == {BUCKETS - 1}
    assert EDGES[0] == 1 / 32
    assert EDGES[BUCKETS - 1] > 86_400


@settings(BOUNDED)
@given(st.lists(st.floats(0.04, 90_000), min_size=1))
def test_the_median_silence_is_the_middle_by_time(silences: list[float]) -> None:
    sketch = Silences()
    for silence in silences:
        sketch.count(silence)
    edges = sorted((EDGES[bucket_of(silence)] for silence in silences), reverse=True)
    reached = [2 * so_far >= sum(edges) for so_far in accumulate(edges)]
    middle = edges[reached.index(True)]
    assert sketch.median_silence() == (sum(edge >= middle for edge in edges), middle)


# --- what is learnt ----------------------------------------------------------------------


@pytest.mark.parametrize("every", [1.0, 10.0, 15.0, 20.0, 29.0])
def test_the_interval_of_users_that_speak_regularly_is_found(
    scene: Scene, every: float
) -> None:
    scene.login("g", CROWD)
    began = speak(scene, CROWD, every, round(100 / every))
    found = interval(scene)
    assert found is not None
    assert every * (1 - 1 / STEPS) < found <= every
    assert began == (every > 15)


def test_bursts_of_messages_hide_no_keepalives(scene: Scene) -> None:
    scene.login("g", CROWD)
    for _ in range(5):
        speak(scene, CROWD, 0.1, 50)
        speak(scene, CROWD, 20, 1)
    assert interval(scene) == 20


def test_unattended_time_is_not_silence(scene: Scene) -> None:
    scene.login("g", CROWD)
    for _ in range(6):
        scene.pass_time(6, absent=100)
        speak(scene, CROWD, 4, 1)
    assert interval(scene) == 10


def test_few_observations_are_no_reason_for_advice(scene: Scene) -> None:
    scene.login("g", ALONE)
    # The first silence ends as the user speaks for the first time.
    assert speak(scene, ALONE, 10, LEAST_SILENCES - 1) == 0
    assert interval(scene) is None
    speak(scene, ALONE, 10, 1)
    assert interval(scene) == 10


def test_a_burst_is_not_many_observations(scene: Scene) -> None:
    scene.login("g", ALONE)
    speak(scene, ALONE, 0.1, 500)
    assert speak(scene, ALONE, 25, 6) == 0
    assert interval(scene) is None


def test_within_the_first_timeout_nothing_is_known_of_longer_silences(
    scene: Scene,
) -> None:
    scene.login("g", CROWD)
    speak(scene, CROWD, 1, 30)
    assert interval(scene) is None
    speak(scene, CROWD, 1, 1)
    assert interval(scene) == 1


def test_users_with_a_timeout_of_their_own_do_not_count(
    scene: Scene,
) -> None:
    scene.login("g", CROWD, timeout=600)
    speak(scene, CROWD, 25, 10)
    assert interval(scene) is None
    scene.login("g", ["other", *CROWD[20:]])
    speak(scene, CROWD, 25, 3)
    assert interval(scene) == 25


def test_users_given_a_fresh_timeout_after_a_hold_do_not_count(
    wheel_class: WheelClass,
) -> None:
    scene = Scene(wheel_class, reconnect_grace=2.0)
    scene.link("g", ping=5)
    scene.login("g", CROWD)
    scene.pass_time(32)  # and the gateway is mute
    assert scene.fire() == []
    scene.read("g")
    assert scene.wait(2.5, "g") == []  # held, and now given a fresh timeout
    scene.hear("g", *(("keepalive", uid, None) for uid in CROWD))
    assert scene.presence.wheel.median_silence(0) == (0, 0.0)


@pytest.mark.parametrize("planned", [False, True])
def test_over_a_restart_only_clocks_that_were_kept_count(
    scene: Scene, *, planned: bool
) -> None:
    scene.login("g", ALONE)
    scene.wait(4, "g")
    if planned:
        scene.stop_and_start(away=100)
    else:
        scene.crash()
    speak(scene, ALONE, 8, 1)
    assert scene.presence.wheel.median_silence(0) == (
        (1, 12.0) if planned else (0, 0.0)
    )
    speak(scene, ALONE, 8, 1)
    assert scene.presence.wheel.median_silence(0) == (1, 12.0 if planned else 8.0)


def test_every_eighth_of_the_signs_read_at_once_counts(scene: Scene) -> None:
    scene.login("g", CROWD)
    scene.wait(10, "g")
    scene.hear("g", *(("keepalive", uid, None) for uid in CROWD[:17]))
    assert scene.presence.wheel.median_silence(0) == (3, 10.0)


# --- how it is kept up -------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [(25.0, 5.0), (5.0, 25.0)])
def test_a_change_of_habit_is_noticed_within_twenty_timeouts(
    scene: Scene, before: float, after: float
) -> None:
    scene.login("g", CROWD)
    speak(scene, CROWD, before, round(2_000 / before))
    assert interval(scene) == before
    speak(scene, CROWD, after, round(2 * HALVED_AFTER * 30 / after))
    assert interval(scene) == after


def test_an_interval_is_forgotten_when_users_cease_to_speak(scene: Scene) -> None:
    scene.login("g", CROWD)
    assert speak(scene, CROWD, 20, 5) == 1
    for _ in range(100):
        scene.wait(HALVED_AFTER * 30, "g")
        interval(scene)
    assert interval(scene) is None
    assert not scene.gateway("g").cadence.is_short
    scene.login("g", CROWD)
    assert speak(scene, CROWD, 20, 5) == 1


def test_a_new_gateway_inherits_nothing_from_a_forgotten_one(
    scene: Scene,
) -> None:
    scene.login("g", CROWD)
    speak(scene, CROWD, 20, 5)
    scene.logout("g", CROWD)
    scene.unlink("g")
    scene.gateways.remove(scene.gateway("g"))
    scene.link("next")
    assert scene.gateway("next").number == 0
    assert scene.presence.wheel.median_silence(0) == (0, 0.0)
    assert interval(scene, "next") is None


def test_advice_begins_anew_once_the_timeout_was_long_enough(scene: Scene) -> None:
    scene.login("g", CROWD)
    assert speak(scene, CROWD, 20, 10) == 1
    assert scene.gateway("g").cadence.is_short
    scene.link("g", timeout=40)  # reconnects with another
    assert speak(scene, CROWD, 20, 1) == 0
    assert not scene.gateway("g").cadence.is_short
    scene.link("g", timeout=39)
    assert speak(scene, CROWD, 20, 1) == 1


def test_gateways_are_looked_at_in_turns_however_many_there_are(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_table, "CADENCES_PER_LOOK", 2)
    names = [f"g{n}" for n in range(5)]
    for name in names:
        scene.link(name)
        scene.login(name, [f"{name}'s {uid}" for uid in CROWD])
    for _ in range(4):
        scene.wait(20, *names)
        for name in names:
            for uid in CROWD:
                scene.hear(name, ("keepalive", f"{name}'s {uid}", None))
        for _ in range(3):
            scene.gateways.look_at_cadence(scene.now)
    found = [scene.gateway(name).cadence.interval for name in names]
    assert found == [20.0] * 5


def test_a_timeout_of_just_two_intervals_is_long_enough() -> None:
    assert not is_short(30.0, 15.0)
    assert is_short(29.99, 15.0)
