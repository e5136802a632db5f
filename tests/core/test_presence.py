"""Every rule of "Sessions": as named examples, and as a machine against a plain model."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from liveness.core.frames import MAX_AGE_S
from liveness.core.presence import WHY_BEGAN_UNUSED, WHY_IGNORED, Standing
from liveness.core.records import ListedSigns, Login, OnlineRow, Uid
from liveness.core.wheel import Slot, Wheel
from tests.core.scene import ALL, Scene, Shown, Sign, run_of
from tests.core.sessions import Sessions, User
from tests.strategies import BOUNDED, NO_UIDS, examples

WheelClass = type[Wheel]


@pytest.fixture
def scene(wheel_class: WheelClass) -> Scene:
    """Two gateways with a link each; a timeout of 30 s; nobody online."""
    made = Scene(wheel_class)
    made.link("g")
    made.link("h")
    return made


def brief(records: list[Shown]) -> list[tuple[Any, ...]]:
    return [(shown["kind"], shown["uid"], shown["reason"]) for shown in records]


# --- login -----------------------------------------------------------------------


def test_a_login_of_an_offline_uid_opens_a_session(scene: Scene) -> None:
    assert scene.login("g", ["u"], [5]) == [
        {
            "seq": 1,
            "kind": "online",
            "uid": "u",
            "gateway": "g",
            "session": 1,
            "conn": 5,
            "reason": "login",
            "at": scene.wall_ms,
        }
    ]
    assert scene.presence.where(["u", "v"]) == [("u", "g", 1, 5)]


@pytest.mark.parametrize("event", ["keepalive", "message"])
def test_a_sign_of_life_of_an_unknown_uid_opens_a_session_and_says_so(
    scene: Scene, event: str
) -> None:
    (record,) = scene.hear("g", (event, "u", 5))
    assert (record["kind"], record["reason"], record["conn"]) == ("online", event, 5)


@pytest.mark.parametrize("conn", [None, 5])
def test_a_login_on_its_own_session_is_a_sign_of_life(
    scene: Scene, conn: int | None
) -> None:
    scene.login("g", ["u"], [conn])
    scene.wait(20, "g")
    assert scene.login("g", ["u"], [conn]) == []
    assert scene.wait(20, "g") == []
    (record,) = scene.wait(10.25, "g")
    assert (record["session"], record["last"]) == (1, "login")


def test_a_login_of_whatever_age_on_its_own_session_is_a_sign_of_life(
    scene: Scene,
) -> None:
    scene.login("g", ["u"], [5])
    scene.wait(20, "g")
    assert scene.login("g", ["u"], [5], age=1_000) == []
    assert scene.wait(20, "g") == []


def test_a_session_without_a_conn_adopts_that_of_a_login(scene: Scene) -> None:
    scene.login("g", ["u"])
    assert scene.login("g", ["u"], [5]) == []
    assert scene.presence.where(["u"]) == [("u", "g", 1, 5)]
    assert scene.kept["u"].conn == 5
    assert scene.logout("g", ["u"], [6]) == []
    assert brief(scene.logout("g", ["u"], [5])) == [("offline", "u", "logout")]


@pytest.mark.parametrize("event", ["keepalive", "message"])
def test_a_session_without_a_conn_does_not_adopt_that_of_a_sign_of_life(
    scene: Scene, event: str
) -> None:
    scene.login("g", ["u"])
    scene.hear("g", (event, "u", 5))
    assert scene.presence.where(["u"]) == [("u", "g", 1, None)]


def test_a_newer_connection_of_another_gateway_moves_the_user(scene: Scene) -> None:
    scene.login("g", ["u"], [5])
    scene.wait(10, "g", "h")
    assert scene.login("h", ["u"], [6]) == [
        {
            "seq": 2,
            "kind": "moved",
            "uid": "u",
            "gateway": "h",
            "session": 2,
            "conn": 6,
            "reason": "login",
            "at": scene.wall_ms,
            "from": "g",
            "from_session": 1,
            "from_conn": 5,
        }
    ]


def test_a_newer_connection_of_the_same_gateway_moves_the_user(scene: Scene) -> None:
    scene.login("g", ["u"], [5])
    (record,) = scene.login("g", ["u"], [6])
    assert (record["kind"], record["gateway"], record["from"]) == ("moved", "g", "g")
    assert (record["conn"], record["from_conn"]) == (6, 5)


def test_a_login_that_names_no_conn_is_not_that_of_a_session_with_one(
    scene: Scene,
) -> None:
    scene.login("g", ["u"], [5])
    (record,) = scene.login("g", ["u"])
    assert (record["kind"], record["from_conn"]) == ("moved", 5)
    assert "conn" not in record


@pytest.mark.parametrize("name", ["g", "h"])
def test_a_login_of_an_older_connection_changes_nothing(
    scene: Scene, name: str
) -> None:
    scene.login("g", ["u"], [5])
    scene.wait(10, "g", "h")
    before = scene.presence.wheel.find("u")
    assert scene.login(name, ["u"], [6], age=10.25) == []
    assert scene.presence.wheel.find("u") == before
    assert scene.presence.ignored["older"] == 1


def test_a_login_of_a_connection_of_the_same_age_is_not_older(scene: Scene) -> None:
    scene.login("g", ["u"], [5])
    scene.wait(10, "g", "h")
    assert brief(scene.login("h", ["u"], [6], age=10)) == [("moved", "u", "login")]


def test_age_says_when_a_session_began_not_when_it_was_heard(scene: Scene) -> None:
    scene.login("g", ["u"], [5], age=100)
    assert scene.login("h", ["u"], [6], age=101) == []
    (newer,) = scene.login("h", ["u"], [6], age=99)
    assert (newer["from"], newer["from_session"]) == ("g", 1)
    assert scene.wait(29.75, "g", "h") == []


def is_older(shown: list[Shown]) -> bool:
    """Whether a login is told that the user is on a newer connection already."""
    return brief(shown) == [("moved", "u", "login")] and "from_session" not in shown[0]


def clocked(scene: Scene, *names: str) -> None:
    """Link gateways whose CLOCK_MONOTONIC is the sidecar's, 100 s ahead of its `mono`."""
    for name in names:
        scene.link(name, clock_offset=-100.0)


def said(scene: Scene, ago: float) -> list[float | None]:
    """What a gateway says of a connection that began so many seconds ago."""
    return [scene.mono + 100.0 - ago]


def test_of_two_logins_that_were_read_late_the_newer_connection_wins(
    scene: Scene,
) -> None:
    clocked(scene, "g", "h")
    scene.login("g", ["u"], [1], began=said(scene, 60))
    # Both lay in their sockets for some seconds. The link of the newer is read first.
    (moved,) = scene.login("h", ["u"], [3], began=said(scene, 1))
    assert moved["conn"] == 3
    scene.login("g", ["u"], [2], began=said(scene, 2))
    assert scene.presence.ignored["older"] == 1
    assert scene.presence.where(["u"]) == [("u", "h", 2, 3)]


@pytest.mark.parametrize("name", ["g", "h"])
def test_an_older_connection_that_says_when_it_began_is_told_who_has_the_user(
    scene: Scene, name: str
) -> None:
    clocked(scene, "g", "h")
    scene.login("g", ["u"], [5], began=said(scene, 1))
    before = scene.presence.wheel.find("u")
    assert scene.login(name, ["u"], [6], began=said(scene, 2)) == [
        {
            "seq": 2,
            "kind": "moved",
            "uid": "u",
            "gateway": "g",
            "session": 1,
            "conn": 5,
            "reason": "login",
            "at": scene.wall_ms,
            "from": name,
            "from_conn": 6,
        }
    ]
    assert scene.presence.wheel.find("u") == before


def test_of_two_connections_that_began_at_once_the_one_read_later_wins(
    scene: Scene,
) -> None:
    clocked(scene, "g", "h")
    scene.login("g", ["u"], [1], began=said(scene, 1))
    assert brief(scene.login("h", ["u"], [2], began=said(scene, 1))) == [
        ("moved", "u", "login")
    ]


@pytest.mark.parametrize(
    "opened", ["by a keepalive", "without began", "by another clock"]
)
def test_a_newer_connection_is_not_older_than_a_session_whose_beginning_is_not_known(
    scene: Scene, opened: str
) -> None:
    """What is known of that session is when it was read, which was late."""
    clocked(scene, "g", "h")
    if opened == "by a keepalive":
        scene.hear("g", ("keepalive", "u", 1))
    elif opened == "without began":
        scene.login("g", ["u"], [1])
    else:
        scene.link("g")
        scene.login("g", ["u"], [1], began=said(scene, 60))
    assert brief(scene.login("h", ["u"], [2], began=said(scene, 1))) == [
        ("moved", "u", "login")
    ]


def test_by_age_an_older_connection_is_known_that_says_when_it_began(
    scene: Scene,
) -> None:
    clocked(scene, "g", "h")
    scene.hear("g", ("keepalive", "u", 1))
    assert scene.login("h", ["u"], [2], age=5.0, began=said(scene, 5)) == []


def test_the_login_of_a_session_that_a_keepalive_opened_tells_when_it_began(
    scene: Scene,
) -> None:
    clocked(scene, "g", "h")
    scene.hear("g", ("keepalive", "u", 1))
    assert scene.login("g", ["u"], [1], age=60.0, began=said(scene, 60)) == []
    assert scene.kept["u"].start_ms == scene.wall_ms - 60_000
    assert is_older(scene.login("h", ["u"], [2], age=61.0, began=said(scene, 61)))
    assert brief(scene.login("h", ["u"], [3], age=59.0, began=said(scene, 59))) == [
        ("moved", "u", "login")
    ]


def test_signs_of_life_do_not_forget_when_a_connection_began(scene: Scene) -> None:
    clocked(scene, "g", "h")
    scene.login("g", ["u"], [1], began=said(scene, 1))
    scene.hear("g", ("keepalive", "u", 1))
    scene.wait(10, "g", "h")
    scene.hear("g", ("message", "u", 1))
    assert is_older(scene.login("h", ["u"], [2], began=said(scene, 12)))


def test_who_logs_in_for_some_of_a_batch_says_so_for_those(scene: Scene) -> None:
    clocked(scene, "g", "h")
    (early,) = said(scene, 60)
    scene.login("g", ["u", "v"], [1, 2], began=[early, None])
    assert scene.kept["u"].start_ms == scene.wall_ms - 60_000
    assert scene.kept["v"].start_ms == scene.wall_ms


@pytest.mark.parametrize("why", WHY_BEGAN_UNUSED)
def test_a_beginning_on_another_clock_or_in_the_future_is_not_used(
    scene: Scene, why: str
) -> None:
    clocked(scene, "g", "h")
    if why == "other_clock":
        scene.link("h")
    scene.login("g", ["u"], [1], began=said(scene, 1))
    ago = -0.002 if why == "future" else 60
    assert brief(scene.login("h", ["u"], [2], began=said(scene, ago))) == [
        ("moved", "u", "login")
    ]
    assert scene.kept["u"].start_ms == scene.wall_ms
    unused = dict.fromkeys(WHY_BEGAN_UNUSED, 0) | {why: 1}
    assert scene.presence.began_unused == unused


def test_a_beginning_may_be_rounded_up_by_a_millisecond(scene: Scene) -> None:
    clocked(scene, "g")
    scene.login("g", ["u"], [1], began=said(scene, -0.001))
    assert scene.presence.began_unused["future"] == 0


@pytest.mark.parametrize("how", ["crash", "stop"])
def test_after_a_restart_age_decides_until_a_login_tells_when_it_began(
    scene: Scene, how: str
) -> None:
    """What is kept on disk is rounded, and by a wall clock that may be set."""
    clocked(scene, "g", "h")
    scene.login("g", ["u"], [1], began=said(scene, 20))
    if how == "crash":
        scene.crash()
    else:
        scene.stop_and_start(away=0)
    clocked(scene, "g", "h")
    assert scene.login("h", ["u"], [2], age=20.25, began=said(scene, 20.25)) == []
    assert brief(scene.login("h", ["u"], [3], age=0, began=said(scene, 20.25))) == [
        ("moved", "u", "login")
    ]
    assert is_older(scene.login("g", ["u"], [4], age=0, began=said(scene, 20.5)))


def test_a_connection_of_the_greatest_age_fits_on_disk(scene: Scene) -> None:
    scene.login("g", ["u"], age=MAX_AGE_S)
    assert abs(scene.kept["u"].start_ms) < 2**63
    scene.crash()
    scene.link("h")
    younger = MAX_AGE_S - 60
    assert brief(scene.login("h", ["u"], age=younger)) == [("moved", "u", "login")]


def test_a_timeout_of_a_login_holds_until_the_next_login(scene: Scene) -> None:
    scene.login("g", ["u"], timeout=100)
    scene.wait(50, "g")
    scene.hear("g", ("keepalive", "u", None))
    assert scene.wait(99.75, "g") == []
    assert scene.login("g", ["u"]) == []
    assert scene.wait(30, "g") == []
    assert brief(scene.wait(0.25, "g")) == [("offline", "u", "silence")]


def test_a_timeout_of_a_gateway_holds_from_each_uids_next_event_on(
    scene: Scene,
) -> None:
    scene.login("g", ["heard", "unheard"])
    scene.link("g", timeout=5)
    scene.hear("g", ("keepalive", "heard", None))
    assert brief(scene.wait(5.25, "g")) == [("offline", "heard", "silence")]
    assert scene.wait(24.75, "g") == []
    assert brief(scene.wait(0.25, "g")) == [("offline", "unheard", "silence")]


def test_one_uid_twice_in_a_login_is_taken_twice(scene: Scene) -> None:
    records = scene.login("g", ["u", "u"], [5, 6])
    assert brief(records) == [("online", "u", "login"), ("moved", "u", "login")]
    assert scene.presence.where(["u"]) == [("u", "g", 2, 6)]


def test_the_integer_and_the_string_are_two_users(scene: Scene) -> None:
    scene.login("g", [7, "7"], [1, 2])
    assert scene.presence.where([7, "7"]) == [(7, "g", 1, 1), ("7", "g", 2, 2)]
    assert [shown["uid"] for shown in scene.logout("g", ["7"])] == ["7"]
    assert scene.presence.where([7, "7"]) == [(7, "g", 1, 1)]


# --- signs of life -----------------------------------------------------------------


@pytest.mark.parametrize("event", ["keepalive", "message"])
@pytest.mark.parametrize(("has", "says"), [(None, None), (None, 5), (5, None), (5, 5)])
def test_a_sign_of_life_counts_where_gateway_and_conn_match(
    scene: Scene, event: str, has: int | None, says: int | None
) -> None:
    scene.login("g", ["u"], [has])
    scene.wait(20, "g")
    assert scene.hear("g", (event, "u", says)) == []
    assert scene.wait(30, "g") == []
    (record,) = scene.wait(0.25, "g")
    assert (record["last"], record["silence"]) == (event, 30.25)


@pytest.mark.parametrize(
    ("name", "conn", "why"),
    [("h", 5, "other_gateway"), ("h", None, "other_gateway"), ("g", 6, "other_conn")],
)
def test_a_sign_of_life_of_another_connection_changes_nothing_and_is_counted(
    scene: Scene, name: str, conn: int | None, why: str
) -> None:
    scene.login("g", ["u"], [5])
    scene.wait(20, "g", "h")
    before = scene.presence.wheel.find("u")
    assert scene.hear(name, ("keepalive", "u", conn)) == []
    assert scene.presence.wheel.find("u") == before
    assert scene.presence.ignored[why] == 1


def test_signs_of_life_of_one_list_are_applied_in_order(scene: Scene) -> None:
    records = scene.hear(
        "g", ("message", "u", 5), ("keepalive", "u", 6), ("keepalive", "u", None)
    )
    assert brief(records) == [("online", "u", "message")]
    assert records[0]["conn"] == 5
    assert scene.presence.ignored["other_conn"] == 1
    (record,) = scene.wait(30.25, "g")
    assert record["last"] == "keepalive"


def test_of_signs_with_bad_uids_the_good_ones_are_applied(scene: Scene) -> None:
    scene.login("g", ["old", 1])
    scene.wait(20, "g")
    signs = run_of(
        ["keepalive", "new"],
        ["message", [None, "old", *NO_UIDS]],
        ["keepalive", 1],
    )
    bad = scene.presence.heard(scene.gateway("g"), signs, scene.at)
    assert bad == [(3, 1, 0)]
    assert brief(scene.written()) == [("online", "new", "keepalive")]
    assert scene.wait(30, "g") == []
    assert len(scene.wait(0.25, "g")) == 3


def test_each_frame_with_bad_uids_is_named_once_by_its_first(scene: Scene) -> None:
    signs = run_of(
        ["message", None],
        ["message", ["a", "b", "", ""]],
        ["message", []],
        ["message", "c"],
        ["message", [-1]],
    )
    bad = scene.presence.heard(scene.gateway("g"), signs, scene.at)
    assert bad == [(2, 0, 0), (3, 3, 2), (6, 6, 0)]


def test_bad_uids_by_the_thousand_cost_no_more_than_as_many_good_ones(
    scene: Scene,
) -> None:
    """Naming one must not mean to look through all the frames before it."""
    asked = 0

    class Counting(list[Any]):
        def __getitem__(self, at: Any) -> Any:
            nonlocal asked
            asked += 1
            return super().__getitem__(at)

        def __iter__(self) -> Iterator[Any]:
            nonlocal asked
            for item in super().__iter__():
                asked += 1
                yield item

    signs = run_of(*[["keepalive", [None, None]]] * 2_000)
    assert isinstance(signs, ListedSigns)
    counting: Any = Counting(signs.batches)
    signs = replace(signs, batches=counting)
    assert len(scene.presence.heard(scene.gateway("g"), signs, scene.at)) == 2_000
    assert asked < 2_000 * 50


# --- logout ------------------------------------------------------------------------


@pytest.mark.parametrize(("has", "says"), [(None, None), (5, None), (5, 5)])
def test_a_logout_ends_the_session_with_that_conn_or_without_one_any(
    scene: Scene, has: int | None, says: int | None
) -> None:
    scene.login("g", ["u"], [has])
    scene.wait(20, "g")
    (record,) = scene.logout("g", ["u"], [says])
    assert brief([record]) == [("offline", "u", "logout")]
    assert (record["last"], record["silence"]) == ("logout", 0)
    assert record["seen"] == record["at"] == scene.wall_ms
    assert (record["session"], record.get("conn")) == (1, has)


@pytest.mark.parametrize(
    ("name", "has", "says", "why"),
    [
        ("h", 5, 5, "other_gateway"),
        ("h", None, None, "other_gateway"),
        ("g", 5, 6, "other_conn"),
        ("g", None, 5, "other_conn"),
    ],
)
def test_any_other_logout_changes_nothing_and_is_counted(
    scene: Scene, name: str, has: int | None, says: int | None, why: str
) -> None:
    scene.login("g", ["u"], [has])
    before = scene.presence.wheel.find("u")
    assert scene.logout(name, ["u"], [says]) == []
    assert scene.presence.wheel.find("u") == before
    assert scene.presence.ignored[why] == 1
    assert scene.logout(name, ["nobody"]) == []
    assert scene.presence.ignored["offline"] == 1


def test_a_late_logout_does_not_end_a_newer_session(scene: Scene) -> None:
    scene.login("g", ["u"], [5])
    scene.login("g", ["u"], [6])
    assert scene.logout("g", ["u"], [5]) == []
    scene.login("h", ["u"], [5])
    assert scene.logout("g", ["u"]) == []
    assert scene.presence.where(["u"]) == [("u", "h", 3, 5)]


# --- silence and its evidence --------------------------------------------------------


def test_a_silent_user_goes_offline_after_its_timeout_and_not_before(
    scene: Scene,
) -> None:
    scene.login("g", ["u"], [5])
    scene.wait(12.5, "g")
    scene.hear("g", ("message", "u", 5))
    seen = scene.wall_ms
    assert scene.wait(30, "g") == []
    assert scene.wait(0.25, "g") == [
        {
            "seq": 2,
            "kind": "offline",
            "uid": "u",
            "gateway": "g",
            "session": 1,
            "conn": 5,
            "reason": "silence",
            "at": seen + 30_250,
            "seen": seen,
            "last": "message",
            "silence": 30.25,
        }
    ]
    assert scene.disk == {}


def test_unattended_time_counts_for_nobodys_silence_but_is_in_the_evidence(
    scene: Scene,
) -> None:
    scene.login("g", ["u"])
    scene.pass_time(10, absent=1_000)
    scene.read("g")
    assert scene.judge() == []
    assert scene.wait(20, "g") == []
    (record,) = scene.wait(0.25, "g")
    assert record["silence"] == 1_030.25
    assert record["at"] - record["seen"] == 1_030_250


def test_the_silence_of_a_gateway_without_a_link_is_the_gateways(scene: Scene) -> None:
    scene.login("g", ["u"])
    scene.login("h", ["v"])
    scene.unlink("g")
    records = scene.wait(30.25, "h")
    assert sorted(brief(records)) == [
        ("offline", "u", "gateway_lost"),
        ("offline", "v", "silence"),
    ]
    assert {shown["last"] for shown in records} == {"login"}


def test_those_judged_late_for_our_own_sake_are_still_silent_themselves(
    scene: Scene,
) -> None:
    scene.login("g", [f"u{number}" for number in range(10)])
    for _ in range(400):  # nobody judges: the journal, say, has not caught up
        scene.pass_time(0.25)
        scene.read("g")
        scene.presence.wheel.advance(scene.now, ALL)
    records = scene.judge(limit=3)
    assert {shown["reason"] for shown in records} == {"silence"}
    assert len(records) == 10


def test_lateness_is_counted_from_the_deadline_of_those_judged_by_silence(
    scene: Scene,
) -> None:
    scene.login("g", ["u", "v"])
    login = scene.mono
    scene.logout("g", ["v"])
    scene.pass_time(31)
    scene.read("g")
    scene.presence.wheel.advance(scene.now, ALL)
    scene.presence.fire(scene.at, limit=9)
    assert scene.presence.decided.take().due == [login + 30]


def test_an_offline_that_comes_too_early_for_the_real_clock_is_counted(
    scene: Scene,
) -> None:
    scene.login("g", ["u"])
    scene.now += 31
    scene.mono += 29.99
    scene.read("g")
    scene.presence.wheel.advance(scene.now, ALL)
    assert scene.presence.fire(scene.at, limit=9) == 1
    assert scene.presence.early == 1


def test_a_gateway_that_comes_back_fresh_loses_its_sessions_at_once(
    scene: Scene,
) -> None:
    scene.login("g", ["a", "b"], [1, 2])
    scene.login("h", ["c"])
    scene.wait(5, "g", "h")
    records = scene.lose("g", limit=1_000)
    assert sorted(brief(records)) == [
        ("offline", "a", "gateway_lost"),
        ("offline", "b", "gateway_lost"),
    ]
    assert {shown["silence"] for shown in records} == {5}
    assert {shown["last"] for shown in records} == {"login"}
    assert [*scene.kept] == ["c"]


def test_each_gateway_gets_its_turn_whoever_has_more(scene: Scene) -> None:
    scene.login("g", range(1_000))
    scene.login("h", ["only"])
    scene.pass_time(31)
    scene.read("g", "h")
    scene.presence.wheel.advance(scene.now, ALL)
    scene.presence.fire(scene.at, limit=10)
    assert "only" in [shown["uid"] for shown in scene.written()]


def test_each_gateway_has_an_equal_share_of_a_pass(scene: Scene) -> None:
    scene.login("g", range(1_000))
    scene.login("h", range(1_000, 2_000))
    scene.pass_time(31)
    scene.read("g", "h")
    scene.presence.wheel.advance(scene.now, ALL)
    scene.presence.fire(scene.at, limit=10)
    judged = Counter(shown["gateway"] for shown in scene.written())
    assert judged == {"g": 5, "h": 5}


def test_three_gateways_take_turns_even_if_only_one_is_judged_at_a_time(
    scene: Scene,
) -> None:
    scene.link("i")
    for name in "ghi":
        scene.login(name, [f"{name}{number}" for number in range(5)])
    scene.pass_time(31)
    scene.read("g", "h", "i")
    scene.presence.wheel.advance(scene.now, ALL)
    for _ in range(5):
        judged = []
        for _ in range(3):
            assert scene.presence.fire(scene.at, limit=1) == 1
            judged += scene.written()
        assert {shown["gateway"] for shown in judged} == {"g", "h", "i"}


def test_what_one_gateway_leaves_of_its_share_another_one_uses(scene: Scene) -> None:
    for name in ("i", "j", "k"):
        scene.link(name)
        scene.login(name, [f"{name}{number}" for number in range(5)])
    scene.login("g", range(1_000))
    scene.login("h", ["only"])
    scene.pass_time(31)
    scene.read("g", "h")  # the others are unread, so their users are held
    scene.presence.wheel.advance(scene.now, ALL)
    for _ in range(7):
        assert scene.presence.fire(scene.at, limit=100) == 100


# --- what is kept and counted --------------------------------------------------------


def test_the_sessions_kept_change_by_the_net_effect(scene: Scene) -> None:
    g, h = scene.gateway("g"), scene.gateway("h")
    scene.presence.login(g, Login(["a", "b"], [1, 2], None, 2.5), scene.at)
    scene.presence.login(h, Login(["a"], [3], 45.0, 0.0), scene.at)
    scene.presence.heard(g, run_of(["keepalive", "c"]), scene.at)
    scene.presence.heard(g, run_of(["keepalive", "b", {"conn": 2}]), scene.at)
    changes = scene.presence.decided.take()
    wall = scene.wall_ms
    assert changes.online == {
        1: None,  # moved
        2: OnlineRow(2, "b", wall - 2_500, 2, "g", None),
        3: OnlineRow(3, "a", wall, 3, "h", 45.0),
        4: OnlineRow(4, "c", wall, None, "g", None),
    }
    assert [record.seq for record in changes.records] == [1, 2, 3, 4]


def test_a_change_without_a_record_is_kept_too(scene: Scene) -> None:
    scene.login("g", ["u"], age=3)
    wall = scene.wall_ms
    scene.wait(5, "g")
    for conn, timeout in [(None, 45.0), (5, 45.0), (5, None)]:
        assert scene.login("g", ["u"], [conn], timeout=timeout) == []
        assert scene.kept["u"] == OnlineRow(1, "u", wall - 3_000, conn, "g", timeout)


def test_a_sign_of_life_alone_writes_nothing(scene: Scene) -> None:
    scene.login("g", ["u"], [5], timeout=45)
    scene.wait(5, "g")
    scene.presence.heard(
        scene.gateway("g"), run_of(["keepalive", "u", {"conn": 5}]), scene.at
    )
    scene.presence.login(scene.gateway("g"), Login(["u"], [5], 45, 9.0), scene.at)
    assert not scene.presence.decided.take()


def test_a_user_who_came_and_went_between_two_commits_is_not_kept(
    scene: Scene,
) -> None:
    g = scene.gateway("g")
    scene.presence.heard(g, run_of(["message", "u", {"conn": 5}]), scene.at)
    scene.logout("g", ["u"], [5])
    assert scene.disk == {}
    assert brief(scene.log) == [("online", "u", "message"), ("offline", "u", "logout")]


def test_a_list_of_events_is_one_change_of_each_counter(scene: Scene) -> None:
    scene.login("g", ["a", "b"], [1, 2])
    scene.login("h", ["a"], [3])
    scene.hear("g", ("keepalive", "c", None), ("message", "b", 2), ("message", "b", 9))
    scene.logout("g", ["c", "d"])
    scene.wait(30.25, "g", "h")
    presence = scene.presence
    assert presence.events == {"login": 3, "keepalive": 1, "message": 2, "logout": 2}
    assert presence.opened == {"login": 2, "keepalive": 1, "message": 0}
    assert presence.moved == 1
    assert presence.ended == {"silence": 2, "logout": 1, "gateway_lost": 0}
    ignored = dict.fromkeys(WHY_IGNORED, 0) | {"other_conn": 1, "offline": 1}
    assert presence.ignored == ignored


# --- how it stands with one of them ------------------------------------------------------


def test_all_that_is_known_of_a_user_is_told_at_any_moment(scene: Scene) -> None:
    scene.login("g", ["u"], [5], age=2.0)
    began = scene.wall_ms
    scene.wait(4.5, "g", "h")
    scene.hear("g", ("keepalive", "u", 5))
    heard = scene.wall_ms
    scene.wait(10.25, "g", "h")
    assert scene.presence.standing("u", scene.at) == Standing(
        gateway="g",
        session=1,
        conn=5,
        since=began - 2_000,
        last="keepalive",
        seen=heard,
        timeout=30.0,
        fires_in=19.75,
        slot=Slot(0, 4),
        held=None,
        absence=None,
    )
    assert scene.presence.standing("v", scene.at) is None
    # What passes unattended is in the evidence, and in nobody's time.
    scene.pass_time(0.0, absent=100.0)
    standing = scene.presence.standing("u", scene.at)
    assert standing is not None
    assert (standing.fires_in, standing.seen) == (19.75, heard)


def test_one_who_is_due_is_told_by_what_it_waits_for(scene: Scene) -> None:
    scene.link("g", ping=2.5)
    scene.login("g", ["u"])
    scene.wait(29.5, "g")

    def standing() -> tuple[object, ...]:
        found = scene.presence.standing("u", scene.at)
        assert found is not None
        return found.slot is None, found.fires_in, found.held, found.absence

    assert standing() == (False, 0.5, None, None)
    scene.pass_time(0.51)
    scene.presence.advance(scene.now, ALL)
    assert standing() == (True, 0.0, "unread", None)
    scene.pass_time(5.0)
    assert standing() == (True, 0.0, "mute", "mute")
    assert scene.presence.held(scene.now)["mute"] == 1
    scene.gateway("g").settle = 2.0
    scene.unlink("g")
    assert standing() == (True, 0.0, "away", "away")
    scene.pass_time(2.0)
    assert standing() == (True, 0.0, None, "away")


def test_one_unheard_since_a_crash_has_no_last_event(scene: Scene) -> None:
    scene.login("g", ["u"], [5], age=7.0)
    began = scene.wall_ms - 7_000
    scene.crash()
    standing = scene.presence.standing("u", scene.at)
    assert standing is not None
    assert (standing.last, standing.seen, standing.since) == (None, None, began)
    assert (standing.fires_in, standing.absence) == (30.0, "away")


# --- restarts ------------------------------------------------------------------------


def test_after_a_crash_everyone_gets_a_fresh_timeout_and_is_restored(
    scene: Scene,
) -> None:
    scene.login("g", ["u"], [5])
    scene.login("g", ["own"], timeout=10)
    scene.wait(9.75, "g")
    scene.crash()
    scene.link("g")
    assert brief(scene.wait(10.25, "g")) == [("offline", "own", "silence")]
    assert scene.wait(19.75, "g") == []
    (record,) = scene.wait(0.25, "g")
    assert record == {
        "seq": 4,
        "kind": "offline",
        "uid": "u",
        "gateway": "g",
        "session": 1,
        "conn": 5,
        "reason": "silence",
        "at": scene.wall_ms,
        "restored": True,
        "silence": 30.25,
    }


def test_a_timeout_lasts_over_a_crash_until_the_users_next_event(scene: Scene) -> None:
    scene.link("g", timeout=60)
    scene.login("g", ["heard", "unheard"])
    scene.link("g", timeout=2)
    scene.crash()
    scene.link("g", timeout=2)
    scene.hear("g", ("keepalive", "heard", None))
    assert brief(scene.wait(2.25, "g")) == [("offline", "heard", "silence")]
    assert scene.wait(57.5, "g") == []
    assert brief(scene.wait(0.5, "g")) == [("offline", "unheard", "silence")]


def test_a_longer_timeout_is_in_force_as_long_as_a_session_may_be_under_it(
    scene: Scene,
) -> None:
    gateway = scene.gateway("g")
    scene.link("g", timeout=60, ping=5)
    scene.login("g", ["u"])
    scene.wait(1, "g")
    scene.link("g", timeout=2, ping=5)
    scene.pass_time(59.75)
    assert scene.presence.timeouts_over(scene.now) == []
    gateway.heard(scene.now)  # it was mute: its users are given a fresh timeout
    scene.pass_time(59.75)
    assert scene.presence.timeouts_over(scene.now) == []
    assert gateway.in_force == 60
    scene.pass_time(0.5)
    assert scene.presence.timeouts_over(scene.now) == [gateway]
    assert gateway.in_force == 2
    assert scene.presence.timeouts_over(scene.now) == []


def test_a_longer_timeout_ends_however_often_the_shorter_one_is_said_again(
    scene: Scene,
) -> None:
    gateway = scene.gateway("g")
    scene.link("g", timeout=60)
    scene.login("g", ["u"])
    scene.link("g", timeout=2)
    for _ in range(4):
        scene.pass_time(14.75)
        scene.hear("g", ("keepalive", "u", None))
        scene.stop_and_start(away=0)
        scene.link("g", timeout=2)
        gateway = scene.gateway("g")
    assert gateway.in_force == 60
    scene.pass_time(1.25)
    assert scene.presence.timeouts_over(scene.now) == [gateway]


def test_a_longer_timeout_ends_with_the_last_session_of_its_gateway(
    scene: Scene,
) -> None:
    scene.link("g", timeout=60)
    scene.login("g", ["u"])
    scene.link("g", timeout=2)
    scene.logout("g", ["u"])
    assert scene.presence.timeouts_over(scene.now) == [scene.gateway("g")]


@pytest.mark.parametrize("event", ["keepalive", "message", "login", "logout"])
def test_whoever_is_heard_after_a_crash_is_no_longer_restored(
    scene: Scene, event: str
) -> None:
    scene.login("g", ["u"], [5])
    scene.crash()
    scene.link("g")
    scene.wait(2, "g")
    if event == "login":
        assert scene.login("g", ["u"], [5]) == []
    elif event == "logout":
        scene.logout("g", ["u"], [5])
    else:
        assert scene.hear("g", (event, "u", 5)) == []
    scene.wait(30.25, "g")
    (record,) = scene.log[1:]
    assert (record["session"], record["last"]) == (1, event)
    assert "restored" not in record


def test_a_planned_stop_resets_nobodys_clock(scene: Scene) -> None:
    scene.login("g", ["u"], [5])
    seen = scene.wall_ms
    scene.wait(10, "g")
    scene.stop_and_start(away=100)
    scene.link("g")
    assert scene.wait(20, "g") == []
    (record,) = scene.wait(0.25, "g")
    assert (record["seen"], record["last"]) == (seen, "login")
    assert (record["silence"], record["reason"]) == (130.25, "silence")


def test_a_user_unheard_since_a_crash_stays_restored_over_a_planned_stop(
    scene: Scene,
) -> None:
    scene.login("g", ["u"])
    scene.crash()
    scene.link("g")
    scene.wait(10, "g")
    scene.stop_and_start(away=0)
    scene.link("g")
    (record,) = scene.wait(20.25, "g")
    assert (record["restored"], record["silence"]) == (True, 30.25)


def test_nobody_counts_as_early_who_was_due_before_a_stop_by_another_timeout(
    scene: Scene,
) -> None:
    scene.link("g", timeout=10)
    scene.login("g", ["u"])
    scene.wait(5, "g")
    scene.link("g", timeout=300)  # from each uid's next event on, and there is none
    scene.stop_and_start(away=1)
    scene.link("g", timeout=300)
    assert brief(scene.wait(5.25, "g")) == [("offline", "u", "silence")]
    assert scene.presence.early == 0


@pytest.mark.parametrize("how", ["crash", "stop"])
def test_a_restart_keeps_session_conn_age_and_gateway(scene: Scene, how: str) -> None:
    scene.login("g", ["u"], [5], age=20)
    scene.wait(5, "g")
    if how == "crash":
        scene.crash()
    else:
        scene.stop_and_start(away=0)
    scene.link("g")
    scene.link("h")
    assert scene.presence.where(["u"]) == [("u", "g", 1, 5)]
    assert scene.gateway("g").users == 1
    assert scene.login("h", ["u"], [6], age=25.25) == []
    assert brief(scene.login("h", ["u"], [6], age=24.75)) == [("moved", "u", "login")]


@pytest.mark.parametrize("how", ["crash", "stop"])
def test_a_restart_keeps_each_timeout_for_the_events_to_come(
    scene: Scene, how: str
) -> None:
    scene.link("h", timeout=10)
    scene.login("g", ["own"], timeout=100)
    scene.login("h", ["its gateway's"])
    if how == "crash":
        scene.crash()
    else:
        scene.stop_and_start(away=0)
    scene.link("g")
    scene.link("h", timeout=10)
    scene.hear("g", ("keepalive", "own", None))
    scene.hear("h", ("keepalive", "its gateway's", None))
    assert scene.wait(10, "g", "h") == []
    (record,) = scene.wait(0.25, "g", "h")
    assert record["uid"] == "its gateway's"
    assert scene.wait(89.75, "g") == []
    assert brief(scene.wait(0.25, "g")) == [("offline", "own", "silence")]


def test_a_wall_clock_set_back_over_a_restart_locks_no_user_to_its_old_session(
    scene: Scene,
) -> None:
    scene.login("g", ["u"], [5])
    scene.wall_ms -= 3_600_000
    scene.crash()
    scene.link("g")
    scene.link("h")
    scene.wait(1, "g", "h")
    assert brief(scene.login("h", ["u"], [6])) == [("moved", "u", "login")]


# --- the machine -----------------------------------------------------------------------

UIDS: Final[tuple[Uid, ...]] = ("a", 7, "7")
SERVER_TIMEOUT: Final = 2.0

names = st.sampled_from(["g", "h"])
pool = st.sampled_from(UIDS)
conns = st.sampled_from([None, None, 1, 2])
ages = st.sampled_from([0.0, 0.25, 1.0, 5.0, 40.0])
began_agos = st.sampled_from([None, 0.0, 0.25, 1.0, 5.0, 40.0, -0.25])
offsets = st.sampled_from([None, 0.0, 3.5, -700.0])
timeouts = st.sampled_from([None, 1.0, 1.5, 4.0, 90.0])
ways = st.sampled_from(["keepalive", "message"])


class Rules(RuleBasedStateMachine):
    """The rules of "Sessions", applied to a presence and to a dictionary."""

    implementation: WheelClass = Wheel

    def __init__(self) -> None:
        super().__init__()
        self.sessions = Sessions(self.implementation, timeout=SERVER_TIMEOUT, uids=UIDS)
        for name in ("g", "h"):
            self.sessions.hello(name, timeout=None, is_fresh=False, clock_offset=0.0)

    @rule(
        name=names,
        who=st.lists(st.tuples(pool, conns), min_size=1, max_size=3),
        timeout=timeouts,
        age=ages,
        began_ago=began_agos,
    )
    def login(
        self,
        name: str,
        who: list[User],
        timeout: float | None,
        age: float,
        began_ago: float | None,
    ) -> None:
        self.sessions.login(name, who, timeout=timeout, age=age, began_ago=began_ago)

    @rule(name=names, signs=st.lists(st.tuples(ways, pool, conns), max_size=5))
    def signs_of_life(self, name: str, signs: list[Sign]) -> None:
        if signs:
            frames = [[event, uid, {"conn": conn}] for event, uid, conn in signs]
            assert self.sessions.signs_of_life(name, run_of(*frames)) == []

    @rule(name=names, uid=pool, conn=conns)
    def logout(self, name: str, uid: Uid, conn: int | None) -> None:
        self.sessions.logout(name, [(uid, conn)])

    @rule(
        seconds=st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0, 2.25, 60.0]),
        absent=st.sampled_from([0.0, 0.0, 0.25, 300.0]),
        limit=st.sampled_from([1, 2, 100]),
    )
    def time_passes(self, seconds: float, absent: float, limit: int) -> None:
        self.sessions.time_passes(seconds, absent=absent, limit=limit)

    @rule(name=names, timeout=timeouts, is_fresh=st.booleans(), offset=offsets)
    def hello(
        self, name: str, timeout: float | None, is_fresh: bool, offset: float | None
    ) -> None:
        self.sessions.hello(
            name, timeout=timeout, is_fresh=is_fresh, clock_offset=offset
        )

    @rule(name=names)
    def link_ends(self, name: str) -> None:
        self.sessions.link_ends(name)

    @rule()
    def crash(self) -> None:
        self.sessions.crash()

    @rule(away=st.sampled_from([0.0, 0.25, 600.0]))
    def planned_stop(self, away: float) -> None:
        self.sessions.planned_stop(away)


def test_presence_keeps_every_rule_of_sessions(wheel_class: WheelClass) -> None:
    class OnThisWheel(Rules):
        implementation = wheel_class

    run_state_machine_as_test(
        OnThisWheel,
        settings=settings(BOUNDED, max_examples=examples(150), stateful_step_count=40),
    )
