"""The storm guard: too many users that come due at once are held, and not for ever."""

from collections.abc import Sequence
from typing import Any, Final

import pytest

from liveness.core.sessions.clearance import STORM
from liveness.core.sessions.storm_guard import (
    BY_CALM,
    BY_FRESH,
    BY_TIME,
    Guard,
    GuardRules,
    Storm,
)
from liveness.core.wheel.wheel import Wheel
from tests.core.scene import Scene, Shown

TIMEOUT_S, HOLD_S = 30.0, 20.0
RULES: Final = GuardRules(0.5, 10, HOLD_S, TIMEOUT_S)


@pytest.fixture
def scene(wheel_class: type[Wheel]) -> Scene:
    """Gateways that promised nothing, guarded from ten users on."""
    return Scene(wheel_class, timeout=TIMEOUT_S, guard=RULES)


def guard_of(scene: Scene) -> Guard:
    return scene.firing.guard


def told(scene: Scene) -> list[tuple[Any, ...]]:
    """Of each storm that began, due and users; of each that ended, why and due."""
    lines = [line.fields for line in guard_of(scene).take()]
    return [
        (line["due"], line["users"]) if "users" in line else (line["why"], line["due"])
        for line in lines
    ]


def users(count: int, name: str = "g") -> list[str]:
    return [f"{name}{n}" for n in range(count)]


def arrive(scene: Scene, count: int, name: str = "g") -> list[str]:
    """Log users in at a gateway that is linked."""
    scene.link(name)
    uids = users(count, name)
    scene.login(name, uids)
    return uids


def speak(scene: Scene, uids: Sequence[str], name: str = "g") -> None:
    scene.hear(name, *(("keepalive", uid, None) for uid in uids))


def silent(records: list[Shown]) -> list[str]:
    return [shown["uid"] for shown in records]


def test_half_of_the_users_may_fall_silent_and_one_more_is_a_storm(
    scene: Scene,
) -> None:
    for name, due in (("g", 10), ("h", 11)):
        uids = arrive(scene, 20, name)
        scene.wait(29)
        speak(scene, uids[due:], name)
        records = scene.wait(1.5, name)
        assert len(records) == (10 if name == "g" else 0)
    (line,) = guard_of(scene).take()
    hold_s = line.fields["hold_s"]
    assert line.fields == {"gateway": "h", "due": 11, "users": 20, "hold_s": hold_s}
    assert hold_s in (HOLD_S - 1.5, HOLD_S - 0.5)


@pytest.mark.parametrize(("count", "gone"), [(9, 9), (10, 0)])
def test_a_gateway_with_few_users_has_no_storm(
    scene: Scene, count: int, gone: int
) -> None:
    arrive(scene, count)
    assert len(scene.wait(30.5, "g")) == gone
    assert guard_of(scene).begun == (0 if gone else 1)


@pytest.mark.parametrize("pause", [0, 25], ids=["within", "more"])
def test_only_users_judged_within_a_revolution_count(scene: Scene, pause: int) -> None:
    first, second = users(10), users(11, "later ")
    scene.link("g")
    scene.login("g", first)
    scene.pass_time(29)
    scene.login("g", second)
    assert silent(scene.wait(1.5, "g")) == first
    if pause:
        scene.wait(10, "g")
        speak(scene, second)
        scene.wait(15, "g")
        speak(scene, second[5:])
        assert silent(scene.wait(15.5, "g")) == second[:5]
        assert guard_of(scene).begun == 0
        return
    speak(scene, second[5:])
    # 29 s after the ten, five more are too many.
    assert scene.wait(28.75, "g") == []
    assert told(scene) == [(15, 21)]


def test_a_user_that_logs_out_does_not_count(scene: Scene) -> None:
    uids = arrive(scene, 20)
    scene.wait(29, "g")
    scene.logout("g", uids[:12])
    speak(scene, uids[16:])
    assert silent(scene.wait(1.5, "g")) == uids[12:16]
    assert guard_of(scene).begun == 0


def test_users_that_wait_for_their_mute_gateway_are_no_storm(
    wheel_class: type[Wheel],
) -> None:
    scene = Scene(wheel_class, timeout=TIMEOUT_S, guard=RULES, hold=60)
    uids = users(20)
    scene.link("g", ping=5)
    scene.login("g", uids)
    for _ in range(89):
        scene.pass_time(1)
        scene.look_at("g")
        assert scene.fire() == []
    scene.pass_time(1.5)
    scene.look_at("g")
    assert silent(scene.fire()) == uids
    assert guard_of(scene).begun == 0


def test_users_of_a_gateway_that_speaks_again_are_renewed_before_they_are_counted(
    wheel_class: type[Wheel],
) -> None:
    scene = Scene(wheel_class, timeout=TIMEOUT_S, guard=RULES)
    arrive(scene, 20)
    scene.gateway("g").ping = 2.5
    scene.pass_time(40)
    scene.look_at("g")
    assert scene.fire() == []
    scene.read("g")
    # The first pass renews three of them, and could judge none of the others.
    assert scene.fire(limit=3) == []
    assert guard_of(scene).begun == 0
    # From here on the gateway is never mute.
    scene.gateway("g").ping = None
    assert scene.wait(30.5, "g") == []
    assert guard_of(scene).begun == 1


def test_users_that_speak_are_saved_and_the_others_are_judged_after_the_storm(
    scene: Scene,
) -> None:
    uids = arrive(scene, 20)
    assert scene.wait(30.5, "g") == []
    assert scene.firing.held(scene.now)[STORM] == 20
    status = scene.firing.status_of(uids[0], scene.at)
    assert status is not None
    assert (status.slot, status.held, status.absence) == (None, "storm", None)
    assert guard_of(scene).storms(scene.now) == [Storm("g", 20, HOLD_S - 0.5)]
    assert scene.wait(5, "g") == []
    speak(scene, uids[:15])
    assert scene.wait(HOLD_S - 5.75, "g") == []
    assert guard_of(scene).storms(scene.now) == [Storm("g", 5, 0.25)]
    assert silent(scene.wait(0.25, "g")) == uids[15:]
    assert scene.firing.held(scene.now)[STORM] == 0
    assert told(scene)[1:] == [(BY_TIME, 5)]
    assert set(scene.kept) == set(uids[:15])


def test_time_in_a_storm_is_no_lateness_and_other_gateways_are_judged_as_ever(
    scene: Scene,
) -> None:
    arrive(scene, 20)
    alone = arrive(scene, 9, "h")
    heard = scene.mono
    scene.pass_time(30.5)
    scene.read("g", "h")
    scene.presence.wheel.advance(scene.now, 100)
    assert scene.firing.fire(scene.at, limit=100) == len(alone)
    assert scene.presence.decided.take().records.due == [heard + TIMEOUT_S] * len(alone)
    scene.pass_time(HOLD_S)
    scene.read("g")
    scene.firing.fire(scene.at, limit=100)
    assert scene.presence.decided.take().records.due == [0.0] * 20


@pytest.mark.parametrize("count", [4, 12], ids=["few", "many"])
def test_after_a_storm_only_users_that_come_due_later_count(
    scene: Scene, count: int
) -> None:
    scene.link("g")
    first, later, last = users(20), users(count, "later "), users(9, "last ")
    scene.login("g", first)
    scene.wait(30.5, "g")
    scene.login("g", later + last)
    assert silent(scene.wait(HOLD_S, "g")) == first
    speak(scene, last)
    # Twelve of 21 are too many. Four of 13 are not, though with the first twenty they were.
    records = scene.wait(10.5, "g")
    if count == 4:
        assert silent(records) == later
        assert guard_of(scene).begun == 1
        return
    assert records == []
    assert told(scene)[-1] == (12, 21)
    assert silent(scene.wait(HOLD_S - 0.5, "g")) == later


def test_users_judged_before_a_storm_do_not_count_after_it(scene: Scene) -> None:
    scene.link("g")
    first, rest = users(15), users(15, "later ")
    scene.login("g", first)
    scene.wait(2, "g")
    scene.login("g", rest)
    assert silent(scene.wait(28.5, "g")) == first
    scene.wait(1, "g")
    speak(scene, rest[1:])
    assert scene.wait(1, "g") == []
    assert told(scene) == [(16, 30)]
    scene.wait(HOLD_S - 1, "g")
    # If the fifteen still counted, this user would begin a storm again.
    scene.login("g", ["short"], timeout=5)
    assert silent(scene.wait(0.5, "g")) == rest[:1]
    assert silent(scene.wait(4.75, "g")) == ["short"]


def test_a_storm_ends_at_once_when_all_have_spoken(scene: Scene) -> None:
    uids = arrive(scene, 20)
    scene.wait(30.5, "g")
    speak(scene, uids)
    assert scene.wait(0, "g") == []
    assert told(scene)[1:] == [(BY_CALM, 0)]
    assert guard_of(scene).storms(scene.now) == []


def test_a_storm_goes_on_while_too_many_were_judged_before_it(scene: Scene) -> None:
    scene.link("g")
    uids = users(20)
    for uid in uids:
        scene.login("g", [uid])
        scene.wait(1, "g")
    # One a second comes due: the eleventh is one too many.
    scene.pass_time(9.5)
    gone = [uid for _ in range(11) for uid in silent(scene.wait(1, "g"))]
    assert gone == uids[:10]
    assert told(scene) == [(11, 20)]
    speak(scene, uids[10:])
    # Those ten count for half a minute; when five of them are left, the storm may end.
    assert scene.wait(HOLD_S - 1, "g") == []
    assert told(scene) == []
    assert scene.wait(6, "g") == []
    assert told(scene) == [(BY_TIME, 0)]


def test_a_gateway_that_comes_back_fresh_ends_its_storm_and_begins_none(
    scene: Scene,
) -> None:
    uids = arrive(scene, 20)
    scene.wait(30.5, "g")
    scene.link("g")
    records = scene.lose("g", limit=3)
    assert sorted(silent(records)) == sorted(uids)
    assert scene.firing.ended["gateway_lost"] == 20
    assert told(scene)[1:] == [(BY_FRESH, 20)]
    scene.login("g", uids)
    scene.wait(20, "g")
    speak(scene, uids[5:])
    assert silent(scene.wait(10.5, "g")) == uids[:5]
    assert guard_of(scene).begun == 1


def test_the_largest_of_several_storms_is_named_first(scene: Scene) -> None:
    for name, count in (("g", 12), ("h", 20), ("a", 12)):
        arrive(scene, count, name)
    scene.pass_time(30.5)
    scene.read("g", "h", "a")
    scene.fire()
    storms = guard_of(scene).storms(scene.now)
    found = [(storm.gateway, storm.users) for storm in storms]
    assert found == [("h", 20), ("a", 12), ("g", 12)]


def test_a_gateway_without_a_storm_is_forgotten_and_nothing_is_logged(
    scene: Scene,
) -> None:
    arrive(scene, 2)
    assert len(scene.wait(30.5, "g")) == 2
    scene.unlink("g")
    scene.firing.forget(scene.gateway("g"), scene.now)
    assert told(scene) == []


def test_a_gateway_that_is_forgotten_leaves_the_guard_too(scene: Scene) -> None:
    uids = arrive(scene, 20, "old")
    scene.wait(30.5, "old")
    assert guard_of(scene).storms(scene.now)
    scene.logout("old", uids)
    scene.unlink("old")
    scene.firing.forget(scene.gateway("old"), scene.now)
    assert guard_of(scene).storms(scene.now) == []
    # The next gateway has its number, and none of its counts.
    number = scene.gateway("new").number
    arrive(scene, 20, "new")
    assert scene.gateway("new").number == number
    assert len(scene.wait(5, "new")) == 0
    assert told(scene)[-1] == (BY_CALM, 0)
    assert scene.firing.held(scene.now)[STORM] == 0
