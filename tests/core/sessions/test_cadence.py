"""How often users speak: how the interval is learnt, and when a timeout is too short."""

from collections.abc import Iterable

import pytest

from liveness.core.sessions import gateway_table
from liveness.core.sessions.cadence import FORGOTTEN_AFTER, LEAST_SILENCES, is_short
from liveness.core.wheel.table import Silences
from liveness.core.wheel.wheel import Wheel
from tests.core.scene import Scene

WheelClass = type[Wheel]

CROWD = [f"u{n}" for n in range(40)]
ALONE = CROWD[:1]


@pytest.fixture
def scene(wheel_class: WheelClass) -> Scene:
    scene = Scene(wheel_class)
    scene.link("g")
    scene.gateways.look_at_cadence(scene.now)
    return scene


def speak(scene: Scene, uids: Iterable[str], every: float, times: int) -> None:
    """Let users speak so often, each in a frame of its own."""
    for _ in range(times):
        scene.wait(every, "g")
        for uid in uids:
            scene.hear("g", ("keepalive", uid, None))
        scene.gateways.look_at_cadence(scene.now)


def interval(scene: Scene, name: str = "g") -> float | None:
    scene.gateways.look_at_cadence(scene.now)
    return scene.gateway(name).cadence.interval


def sums(*silences: float) -> Silences:
    return Silences(sum(silences), sum(silence * silence for silence in silences))


@pytest.mark.parametrize("every", [1.0, 10.0, 15.0, 20.0, 29.0])
def test_the_interval_of_users_that_speak_regularly_is_found(
    scene: Scene, every: float
) -> None:
    scene.login("g", CROWD)
    speak(scene, CROWD, every, round(100 / every))
    found = interval(scene)
    assert found is not None
    assert found == pytest.approx(every)


def test_few_observations_show_no_interval(scene: Scene) -> None:
    scene.login("g", ALONE)
    # The first silence ends as the user speaks for the first time.
    speak(scene, ALONE, 10, LEAST_SILENCES - 1)
    assert interval(scene) is None
    speak(scene, ALONE, 10, 1)
    assert interval(scene) == 10


def test_within_the_first_timeout_nothing_is_known_of_longer_silences(
    scene: Scene,
) -> None:
    scene.login("g", CROWD)
    speak(scene, CROWD, 1, 29)
    assert interval(scene) is None
    speak(scene, CROWD, 1, 1)
    assert interval(scene) == 1


def test_users_with_a_timeout_of_their_own_do_not_count(scene: Scene) -> None:
    scene.login("g", CROWD, timeout=600)
    speak(scene, CROWD, 25, 10)
    assert interval(scene) is None
    scene.login("g", ["other", *CROWD[20:]])
    speak(scene, CROWD, 25, 3)
    assert interval(scene) == 25


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
    kept = [12.0] if planned else []
    assert scene.presence.wheel.silences(0) == sums(*kept)
    speak(scene, ALONE, 8, 1)
    assert scene.presence.wheel.silences(0) == sums(*kept, 8.0)


def test_a_change_of_habit_is_noticed_within_twenty_timeouts(scene: Scene) -> None:
    scene.login("g", CROWD)
    speak(scene, CROWD, 5.0, 400)
    speak(scene, CROWD, 25.0, round(2 * FORGOTTEN_AFTER * 30 / 25.0))
    assert interval(scene) == 25.0


def test_a_new_gateway_inherits_nothing_from_a_forgotten_one(scene: Scene) -> None:
    scene.login("g", CROWD)
    speak(scene, CROWD, 20, 5)
    scene.logout("g", CROWD)
    scene.unlink("g")
    scene.gateways.remove(scene.gateway("g"))
    scene.wait(FORGOTTEN_AFTER * 30)
    scene.link("next")
    assert scene.gateway("next").number == 0
    # An event before the first look does not count; one after it is too few.
    scene.login("next", CROWD)
    scene.wait(1, "next")
    scene.hear("next", ("keepalive", CROWD[0], None))
    assert interval(scene, "next") is None
    scene.wait(1, "next")
    scene.hear("next", ("keepalive", CROWD[0], None))
    assert interval(scene, "next") is None


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
    assert not is_short(27.0, 15.0)
    assert is_short(26.99, 15.0)
