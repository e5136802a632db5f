"""How often users speak: what is learnt of it, from whom, and what is advised."""

from collections.abc import Iterable
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liveness.core import presence
from liveness.core.cadence import (
    BUCKETS,
    EDGES,
    HALVED_AFTER,
    LEAST_SILENCES,
    STEPS,
    Silences,
    bucket_of,
    is_short,
)
from liveness.core.wheel import Wheel
from tests.core.scene import Scene
from tests.strategies import BOUNDED

WheelClass = type[Wheel]

CROWD = [f"u{n}" for n in range(40)]
ALONE = CROWD[:1]
LOOK_S = 10.0


@pytest.fixture
def scene(wheel_class: WheelClass) -> Scene:
    scene = Scene(wheel_class)
    scene.link("g")
    return scene


def speak(
    scene: Scene, uids: Iterable[str], every: float, times: int, *, gateway: str = "g"
) -> int:
    """Have each of them speak so often, each in a frame of its own; and look meanwhile.

    Returns:
        How often the timeout began to be too short.
    """
    began = 0
    for _ in range(times):
        scene.wait(every, gateway)
        for uid in uids:
            scene.hear(gateway, ("keepalive", uid, None))
        began += [one.name for one in scene.presence.look_at_cadence(scene.now)].count(
            gateway
        )
    return began


def interval(scene: Scene, name: str = "g") -> float | None:
    scene.presence.look_at_cadence(scene.now)
    return scene.presence.interval(scene.gateway(name))


# --- the sketch --------------------------------------------------------------------------


@given(st.floats(EDGES[0], EDGES[BUCKETS - 1]))
def test_a_bucket_tells_a_silence_never_longer_and_a_32nd_shorter_at_most(
    silence: float,
) -> None:
    told = EDGES[bucket_of(silence)]
    assert silence * (1 - 1 / STEPS) < told <= silence


def test_each_bucket_begins_at_its_edge_and_the_outermost_take_the_rest() -> None:
    assert [bucket_of(EDGES[bucket]) for bucket in range(BUCKETS)] == [*range(BUCKETS)]
    assert [bucket_of(one) for one in (-1.0, 0.0, 1e-9, 0.03)] == [0, 0, 0, 0]
    assert {bucket_of(one) for one in (135_000.0, 1e300)} == {BUCKETS - 1}
    assert EDGES[0] == 1 / 32
    assert EDGES[BUCKETS - 1] > 86_400


@settings(BOUNDED)
@given(st.lists(st.floats(0.04, 90_000), min_size=1))
def test_the_usual_silence_is_the_middle_by_time(silences: list[float]) -> None:
    sketch = Silences()
    for silence in silences:
        sketch.count(silence)
    told = sorted((EDGES[bucket_of(one)] for one in silences), reverse=True)
    reached = [2 * so_far >= sum(told) for so_far in accumulate(told)]
    middle = told[reached.index(True)]
    assert sketch.usual() == (sum(one >= middle for one in told), middle)


# --- what is learnt ----------------------------------------------------------------------


@pytest.mark.parametrize("every", [1.0, 10.0, 15.0, 20.0, 29.0])
def test_users_who_speak_regularly_speak_that_often(scene: Scene, every: float) -> None:
    scene.login("g", CROWD)
    began = speak(scene, CROWD, every, round(100 / every))
    told = interval(scene)
    assert told is not None
    assert every * (1 - 1 / STEPS) < told <= every
    assert began == (every > 15)


def test_bursts_of_messages_hide_no_keepalives(scene: Scene) -> None:
    scene.login("g", CROWD)
    for _ in range(5):
        speak(scene, CROWD, 0.1, 50)
        speak(scene, CROWD, 20, 1)
    assert interval(scene) == 20


def test_one_user_who_talks_all_the_time_does_not_speak_for_the_others(
    scene: Scene,
) -> None:
    scene.login("g", [*CROWD, "chatty"])
    for _ in range(5):
        speak(scene, ["chatty"], 1 / 32, 640)
        speak(scene, CROWD, 0.0, 1)
    assert interval(scene) == 20


def test_a_lost_keepalive_in_ten_is_no_longer_interval(scene: Scene) -> None:
    scene.login("g", CROWD)
    speak(scene, CROWD, 14, 9)
    speak(scene, CROWD, 28, 1)
    assert interval(scene) == 14
    assert not scene.gateway("g").cadence.is_short


def test_time_in_which_nobody_listened_is_nobodys_silence(scene: Scene) -> None:
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


def test_who_has_a_timeout_of_its_own_says_nothing_of_its_gateways(
    scene: Scene,
) -> None:
    scene.login("g", CROWD, timeout=600)
    speak(scene, CROWD, 25, 10)
    assert interval(scene) is None
    scene.login("g", ["other", *CROWD[20:]])
    speak(scene, CROWD, 25, 3)
    assert interval(scene) == 25


def test_who_was_given_a_fresh_timeout_after_a_hold_is_not_counted(
    wheel_class: WheelClass,
) -> None:
    scene = Scene(wheel_class, settle=2.0)
    scene.link("g", ping=5)
    scene.login("g", CROWD)
    scene.pass_time(32)  # and the gateway is mute
    assert scene.judge() == []
    scene.read("g")
    assert scene.wait(2.5, "g") == []  # held, and now given a fresh timeout
    scene.hear("g", *(("keepalive", uid, None) for uid in CROWD))
    assert scene.presence.wheel.usual(0) == (0, 0.0)


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
    assert scene.presence.wheel.usual(0) == ((1, 12.0) if planned else (0, 0.0))
    speak(scene, ALONE, 8, 1)
    assert scene.presence.wheel.usual(0) == (1, 12.0 if planned else 8.0)


def test_of_signs_read_at_once_every_eighth_counts(scene: Scene) -> None:
    scene.login("g", CROWD)
    scene.wait(10, "g")
    scene.hear("g", *(("keepalive", uid, None) for uid in CROWD[:17]))
    assert scene.presence.wheel.usual(0) == (3, 10.0)


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


def test_what_was_learnt_is_forgotten_when_nobody_speaks_any_more(scene: Scene) -> None:
    scene.login("g", CROWD)
    assert speak(scene, CROWD, 20, 5) == 1
    for _ in range(100):
        scene.wait(HALVED_AFTER * 30, "g")
        interval(scene)
    assert interval(scene) is None
    assert not scene.gateway("g").cadence.is_short
    scene.login("g", CROWD)
    assert speak(scene, CROWD, 20, 5) == 1


def test_a_gateway_that_was_forgotten_leaves_nothing_to_who_gets_its_number(
    scene: Scene,
) -> None:
    scene.login("g", CROWD)
    speak(scene, CROWD, 20, 5)
    scene.logout("g", CROWD)
    scene.unlink("g")
    scene.presence.forget("g", scene.now)
    scene.link("next")
    assert scene.gateway("next").number == 0
    assert scene.presence.wheel.usual(0) == (0, 0.0)
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
    monkeypatch.setattr(presence, "LOOKS", 2)
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
            scene.presence.look_at_cadence(scene.now)
    told = [scene.presence.interval(scene.gateway(name)) for name in names]
    assert told == [20.0] * 5


def test_a_timeout_of_just_two_intervals_is_long_enough() -> None:
    assert not is_short(30.0, 15.0)
    assert is_short(29.99, 15.0)
