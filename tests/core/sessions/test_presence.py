"""The rules of "Sessions", as named examples that show whole records.

A plain model of the same rules is `sessions_rig`: the fuzzer holds a presence to it.
"""

from collections import Counter
from typing import Any, Final

import pytest

from liveness.core.records import OnlineRow, Uid
from liveness.core.sessions.firing import UserStatus
from liveness.core.sessions.presence import WHY_BEGAN_UNUSED, WHY_IGNORED
from liveness.core.wheel.wheel import Wheel
from liveness.core.wire.link_requests import Login, Logout
from tests.core.scene import ALL, Scene, Shown, Sign, run_of
from tests.helpers.strategies import NO_UIDS

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


MOVED: Final = [("moved", "u", "login")]


def record(scene: Scene, seq: int, kind: str, reason: str, **more: object) -> Shown:
    """A record of now of the user `u`, with conn 5 in session 1 of gateway `g`."""
    user = {"uid": "u", "gateway": "g", "session": 1, "conn": 5}
    return (
        {"seq": seq, "kind": kind, "reason": reason, "at": scene.wall_ms} | user | more
    )


# --- login -----------------------------------------------------------------------


def test_a_login_of_an_offline_uid_opens_a_session(scene: Scene) -> None:
    assert scene.login("g", ["u"], [5]) == [record(scene, 1, "online", "login")]
    assert scene.presence.where(["u", "v"]) == [("u", "g", 1, 5)]


def test_a_newer_connection_of_another_gateway_moves_the_user(scene: Scene) -> None:
    scene.login("g", ["u"], [5])
    scene.wait(10, "g", "h")
    moved = record(scene, 2, "moved", "login", gateway="h", session=2, conn=6)
    before = {"from": "g", "from_session": 1, "from_conn": 5}
    assert scene.login("h", ["u"], [6]) == [moved | before]


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


def is_refused_as_older(records: list[Shown]) -> bool:
    """Whether a login is answered that the user is on a newer connection already."""
    return brief(records) == MOVED and "from_session" not in records[0]


@pytest.fixture
def clocked(scene: Scene) -> Scene:
    """Both gateways have the sidecar's CLOCK_MONOTONIC, which is 100 s ahead of `mono`."""
    for name in ("g", "h"):
        scene.link(name, clock_offset=-100.0)
    return scene


def began(scene: Scene, seconds_ago: float) -> list[float | None]:
    """The `began` of a login, on the clock of its gateway."""
    return [scene.mono + 100.0 - seconds_ago]


def test_the_newer_of_two_connections_wins_in_whatever_order_they_are_read(
    clocked: Scene,
) -> None:
    clocked.login("g", ["u"], [1], began=began(clocked, 60))
    clocked.login("h", ["u"], [3], began=began(clocked, 1))
    clocked.login("g", ["u"], [2], began=began(clocked, 2))
    assert clocked.presence.ignored["older"] == 1
    assert clocked.presence.where(["u"]) == [("u", "h", 2, 3)]


@pytest.mark.parametrize("name", ["g", "h"])
def test_an_older_connection_that_says_when_it_began_is_told_who_has_the_user(
    clocked: Scene, name: str
) -> None:
    clocked.login("g", ["u"], [5], began=began(clocked, 1))
    before = clocked.presence.wheel.find("u")
    moved = record(clocked, 2, "moved", "login") | {"from": name, "from_conn": 6}
    assert clocked.login(name, ["u"], [6], began=began(clocked, 2)) == [moved]
    assert clocked.presence.wheel.find("u") == before


@pytest.mark.parametrize("opened", ["by a keepalive", "without began"])
def test_a_newer_connection_wins_over_a_session_of_unknown_beginning(
    clocked: Scene, opened: str
) -> None:
    """Only the moment at which that session was read is known, and that was late."""
    if opened == "by a keepalive":
        clocked.hear("g", ("keepalive", "u", 1))
    else:
        clocked.login("g", ["u"], [1])
    assert brief(clocked.login("h", ["u"], [2], began=began(clocked, 1))) == MOVED


def test_the_login_of_a_session_that_a_keepalive_opened_tells_when_it_began(
    clocked: Scene,
) -> None:
    clocked.hear("g", ("keepalive", "u", 1))
    assert clocked.login("g", ["u"], [1], age=60.0, began=began(clocked, 60)) == []
    assert clocked.kept["u"].start_ms == clocked.state_ms - 60_000
    older = clocked.login("h", ["u"], [2], age=61.0, began=began(clocked, 61))
    assert is_refused_as_older(older)
    newer = clocked.login("h", ["u"], [3], age=59.0, began=began(clocked, 59))
    assert brief(newer) == MOVED


def test_signs_of_life_do_not_forget_when_a_connection_began(clocked: Scene) -> None:
    clocked.login("g", ["u"], [1], began=began(clocked, 1))
    clocked.hear("g", ("keepalive", "u", 1))
    clocked.wait(10, "g", "h")
    clocked.hear("g", ("message", "u", 1))
    older = clocked.login("h", ["u"], [2], began=began(clocked, 12))
    assert is_refused_as_older(older)


def test_a_login_may_say_of_some_users_only_when_they_connected(clocked: Scene) -> None:
    clocked.login("g", ["u", "v"], [1, 2], began=[*began(clocked, 60), None])
    assert clocked.kept["u"].start_ms == clocked.state_ms - 60_000
    assert clocked.kept["v"].start_ms == clocked.state_ms


@pytest.mark.parametrize("why", WHY_BEGAN_UNUSED)
def test_a_beginning_on_another_clock_or_in_the_future_is_not_used(
    clocked: Scene, why: str
) -> None:
    if why == "other_clock":
        clocked.link("h")
    clocked.login("g", ["u"], [1], began=began(clocked, 1))
    ago = -0.002 if why == "future" else 60
    assert brief(clocked.login("h", ["u"], [2], began=began(clocked, ago))) == MOVED
    assert clocked.kept["u"].start_ms == clocked.state_ms
    unused = dict.fromkeys(WHY_BEGAN_UNUSED, 0) | {why: 1}
    assert clocked.presence.began_unused == unused


def test_a_beginning_may_be_rounded_up_by_a_millisecond(clocked: Scene) -> None:
    clocked.login("g", ["u"], [1], began=began(clocked, -0.001))
    assert clocked.presence.began_unused["future"] == 0


# --- signs of life -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "conn", "why"),
    [("h", 5, "other_gateway"), ("h", None, "other_gateway"), ("g", 6, "other_conn")],
)
def test_a_sign_of_life_of_another_connection_is_ignored(
    scene: Scene, name: str, conn: int | None, why: str
) -> None:
    scene.login("g", ["u"], [5])
    scene.wait(20, "g", "h")
    before = scene.presence.wheel.find("u")
    assert scene.hear(name, ("keepalive", "u", conn)) == []
    assert scene.presence.wheel.find("u") == before
    assert scene.presence.ignored[why] == 1


def test_of_two_events_of_a_user_in_a_batch_the_first_opens_its_session(
    scene: Scene,
) -> None:
    signs: list[Sign] = [
        ("keepalive", "u", 1),
        ("message", "u", 1),
        ("message", "u", 2),
    ]
    assert brief(scene.hear("g", *signs)) == [("online", "u", "keepalive")]
    assert scene.presence.ignored["other_conn"] == 1


def test_a_frame_with_bad_uids_is_reported_once_and_its_good_uids_count(
    scene: Scene,
) -> None:
    scene.login("g", ["old"])
    scene.wait(20, "g")
    signs = run_of(
        ["message", None],
        ["message", []],
        ["message", ["a", "b", "", "old", *NO_UIDS]],
        ["message", "c"],
        ["message", [-1]],
    )
    bad = scene.presence.heard(scene.gateway("g"), signs, scene.at)
    assert bad == [(2, 0, 0), (4, 3, 2), (6, 6 + len(NO_UIDS), 0)]
    assert [shown["uid"] for shown in scene.written()] == ["a", "b", "c"]
    assert scene.wait(30, "g") == []
    assert len(scene.wait(0.25, "g")) == 4


# --- logout ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "has", "says", "why"),
    [
        ("h", 5, 5, "other_gateway"),
        ("h", None, None, "other_gateway"),
        ("g", 5, 6, "other_conn"),
        ("g", None, 5, "other_conn"),
    ],
)
def test_any_other_logout_is_ignored(
    scene: Scene, name: str, has: int | None, says: int | None, why: str
) -> None:
    scene.login("g", ["u"], [has])
    before = scene.presence.wheel.find("u")
    assert scene.logout(name, ["u"], [says]) == []
    assert scene.presence.wheel.find("u") == before
    assert scene.presence.ignored[why] == 1
    assert scene.logout(name, ["nobody"]) == []
    assert scene.presence.ignored["offline"] == 1


# --- silence and its evidence --------------------------------------------------------


def come_due(scene: Scene, *read: str) -> None:
    """Let everybody come due, and read the links of these gateways."""
    scene.pass_time(31)
    scene.read(*read)
    scene.presence.wheel.advance(scene.now, ALL)


def test_a_silent_user_goes_offline_after_its_timeout_and_not_before(
    scene: Scene,
) -> None:
    scene.login("g", ["u"], [5])
    scene.wait(12.5, "g")
    scene.hear("g", ("message", "u", 5))
    seen = scene.wall_ms
    assert scene.wait(30, "g") == []
    (offline,) = scene.wait(0.25, "g")
    evidence = {"seen": seen, "last": "message", "silence": 30.25}
    assert scene.wall_ms == seen + 30_250
    assert offline == record(scene, 2, "offline", "silence") | evidence
    assert scene.disk == {}


def test_an_offline_that_comes_too_early_for_the_real_clock_is_counted(
    scene: Scene,
) -> None:
    scene.login("g", ["u"])
    scene.now += 31
    scene.mono += 29.99
    scene.read("g")
    scene.presence.wheel.advance(scene.now, ALL)
    assert scene.firing.fire(scene.at, limit=9) == 1
    assert scene.firing.early == 1


def test_each_gateway_has_an_equal_share_of_a_pass(scene: Scene) -> None:
    scene.login("g", range(1_000))
    scene.login("h", range(1_000, 2_000))
    come_due(scene, "g", "h")
    scene.firing.fire(scene.at, limit=10)
    judged = Counter(shown["gateway"] for shown in scene.written())
    assert judged == {"g": 5, "h": 5}


def test_three_gateways_take_turns_even_if_only_one_is_judged_at_a_time(
    scene: Scene,
) -> None:
    scene.link("i")
    for name in "ghi":
        scene.login(name, [f"{name}{number}" for number in range(5)])
    come_due(scene, "g", "h", "i")
    for _ in range(5):
        judged = []
        for _ in range(3):
            assert scene.firing.fire(scene.at, limit=1) == 1
            judged += scene.written()
        assert {shown["gateway"] for shown in judged} == {"g", "h", "i"}


# --- what is kept and counted --------------------------------------------------------


def test_what_one_gateway_leaves_of_its_share_another_one_uses(scene: Scene) -> None:
    for name in ("i", "j", "k"):
        scene.link(name)
        scene.login(name, [f"{name}{number}" for number in range(5)])
    scene.login("g", range(1_000))
    scene.login("h", ["only"])
    come_due(scene, "g", "h")  # the others are unread, so their users are held
    for _ in range(7):
        assert scene.firing.fire(scene.at, limit=100) == 100


def test_the_sessions_kept_change_by_the_net_effect(scene: Scene) -> None:
    g, h = scene.gateway("g"), scene.gateway("h")
    scene.presence.login(g, Login(["a", "b"], [1, 2], None, 2.5), scene.at)
    scene.presence.login(h, Login(["a"], [3], 45.0, 0.0), scene.at)
    scene.presence.heard(g, run_of(["keepalive", ["c", "d"]]), scene.at)
    scene.presence.heard(g, run_of(["keepalive", "b", {"conn": 2}]), scene.at)
    scene.presence.logout(g, Logout(["d"], [None]), scene.at)
    changes = scene.presence.decided.take()
    now_ms = scene.state_ms
    online: dict[int, OnlineRow] = {}
    changes.change_online(online)
    assert online == {
        # 1 has moved, 5 came and went
        2: OnlineRow(2, "b", now_ms - 2_500, 2, "g", None),
        3: OnlineRow(3, "a", now_ms, 3, "h", 45.0),
        4: OnlineRow(4, "c", now_ms, None, "g", None),
    }
    assert [record.seq for record in changes.records] == [1, 2, 3, 4, 5, 6]


def test_a_change_without_a_record_is_kept_too(scene: Scene) -> None:
    scene.login("g", ["u"], age=3)
    began = scene.state_ms - 3_000
    scene.wait(5, "g")
    for conn, timeout in [(None, 45.0), (5, 45.0), (5, None)]:
        assert scene.login("g", ["u"], [conn], timeout=timeout) == []
        assert scene.kept["u"] == OnlineRow(1, "u", began, conn, "g", timeout)


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
    assert presence.logouts == 1
    assert scene.firing.ended == {"silence": 2, "gateway_lost": 0}
    ignored = dict.fromkeys(WHY_IGNORED, 0) | {"other_conn": 1, "offline": 1}
    assert presence.ignored == ignored


# --- the status of a user ----------------------------------------------------------------


def test_the_status_of_a_user_holds_all_that_is_known_of_it(scene: Scene) -> None:
    scene.login("g", ["u"], [5], age=2.0)
    began = scene.wall_ms - 2_000
    scene.wait(4.5, "g", "h")
    scene.hear("g", ("keepalive", "u", 5))
    heard = scene.wall_ms
    scene.wait(10.25, "g", "h")
    # What passes unattended is in the evidence, and in nobody's time.
    scene.pass_time(0.0, absent=100.0)
    assert scene.firing.status_of("u", scene.at) == UserStatus(
        gateway="g", session=1, conn=5, since=began, last="keepalive", seen=heard,
        timeout=30.0, fires_in=19.75, slot=(0, 4), held=None, absence=None,
    )  # fmt: skip
    assert scene.firing.status_of("v", scene.at) is None
    scene.crash()
    status = scene.firing.status_of("u", scene.at)
    assert status is not None
    assert (status.last, status.seen, status.since) == (None, None, began)
    assert (status.fires_in, status.absence) == (30.0, "away")


# --- restarts ------------------------------------------------------------------------


def test_the_status_of_a_user_that_is_due_says_what_it_waits_for(scene: Scene) -> None:
    scene.link("g", ping=2.5)
    scene.login("g", ["u"])
    scene.wait(29.5, "g")

    def status() -> tuple[object, ...]:
        found = scene.firing.status_of("u", scene.at)
        assert found is not None
        return found.slot is None, found.fires_in, found.held, found.absence

    assert status() == (False, 0.5, None, None)
    scene.pass_time(0.51)
    scene.presence.wheel.advance(scene.now, ALL)
    assert status() == (True, 0.0, "unread", None)
    scene.pass_time(5.0)
    assert status() == (True, 0.0, "mute", "mute")
    assert scene.firing.held(scene.now)["mute"] == 1
    scene.gateway("g").reconnect_grace = 2.0
    scene.unlink("g")
    assert status() == (True, 0.0, "away", "away")
    scene.pass_time(2.0)
    assert status() == (True, 0.0, None, "away")


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
    (offline,) = scene.wait(0.25, "g")
    evidence = {"restored": True, "silence": 30.25}
    assert offline == record(scene, 4, "offline", "silence") | evidence


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
    assert scene.gateways.timeouts_over(scene.now) == []
    gateway.heard(scene.now)  # it was mute: its users are given a fresh timeout
    scene.pass_time(59.75)
    assert scene.gateways.timeouts_over(scene.now) == []
    assert gateway.in_force == 60
    scene.pass_time(0.5)
    assert scene.gateways.timeouts_over(scene.now) == [gateway]
    assert gateway.in_force == 2
    assert scene.gateways.timeouts_over(scene.now) == []


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
    assert scene.gateways.timeouts_over(scene.now) == [gateway]


def test_a_planned_stop_resets_nobodys_clock(scene: Scene) -> None:
    scene.login("g", ["u"], [5])
    seen = scene.wall_ms
    scene.wait(10, "g")
    scene.stop_and_start(away=100)
    scene.link("g")
    assert scene.wait(20, "g") == []
    (offline,) = scene.wait(0.25, "g")
    assert (offline["seen"], offline["last"]) == (seen, "login")
    assert (offline["silence"], offline["reason"]) == (130.25, "silence")


def test_a_wall_clock_set_back_over_a_restart_locks_no_user_to_its_old_session(
    scene: Scene,
) -> None:
    scene.login("g", ["u"], [5])
    scene.wall_ms -= 3_600_000
    scene.crash()
    scene.link("g")
    scene.link("h")
    scene.wait(1, "g", "h")
    assert brief(scene.login("h", ["u"], [6])) == MOVED


# --- the names of users -----------------------------------------------------------------


@pytest.mark.parametrize(("login", "other"), [("4711", 4711), (4711, "4711")])
def test_an_integer_and_its_decimal_are_one_user_by_the_name_of_the_login(
    scene: Scene, login: Uid, other: Uid
) -> None:
    scene.login("g", [login], [5])
    scene.wait(20, "g")
    assert scene.hear("g", ("keepalive", other, 5)) == []
    assert scene.wait(20, "g") == []
    found = scene.presence.where([other, login])
    assert repr(found) == repr([(login, "g", 1, 5)] * 2)
    assert scene.login("g", [other], [5], timeout=3) == []
    assert repr(scene.kept) == repr({login: scene.disk[1]})
    (offline,) = scene.logout("g", [other], [5])
    assert (offline["kind"], repr(offline["uid"])) == ("offline", repr(login))


@pytest.mark.parametrize(
    ("gateway", "conn", "lost"),
    [("g", 5, None), ("g", 6, 5), ("h", 5, 5), ("g", None, None)],
    ids=["its connection", "another", "another gateway's", "an unknown one"],
)
def test_of_two_sessions_of_a_user_that_were_kept_the_newer_goes_on(
    scene: Scene, gateway: str, conn: int | None, lost: int | None
) -> None:
    """Until version 0.2, `7` and `"7"` were two users, and both may be online."""
    scene.login("g", ["7"], [5])
    scene.login("g", ["other"])
    scene.disk[2] = OnlineRow(2, 7, scene.state_ms, conn, gateway, None)
    scene.crash()
    (moved,) = scene.written()
    expected = record(scene, 3, "moved", "login", uid=7, gateway=gateway, session=2)
    expected |= {"conn": conn, "from": "g", "from_session": 1, "from_conn": lost}
    assert moved == {key: it for key, it in expected.items() if it is not None}
    assert repr(scene.presence.where(["7"])) == repr([(7, gateway, 2, conn)])
    scene.link("g")
    scene.link("h")
    assert {scene.gateway(name).users for name in ("g", "h") if name != gateway} == {0}
    assert scene.gateway(gateway).users == 1
    assert brief(scene.wait(31, "g", "h")) == [("offline", 7, "silence")]


# --- devices ----------------------------------------------------------------------------


def test_devices_that_fall_silent_together_are_counted_one_by_one(
    wheel_class: WheelClass,
) -> None:
    scene = Scene(wheel_class, separator="/")
    scene.link("g")
    online = scene.login("g", ["ada/a", "ada/b", 7, "7/a"])
    scene.wait(31, "g")
    shown = [*online, *scene.log[4:]]
    assert [(record["user"], record["devices"]) for record in shown] == [
        ("ada", 1), ("ada", 2), (7, 1), ("7", 2),
        ("ada", 1), ("ada", 0), (7, 1), ("7", 0),
    ]  # fmt: skip
