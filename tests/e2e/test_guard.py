"""The storm guard of a running sidecar: it holds, tells, lets go, and is told to."""

import json
import re
from typing import Any

import pytest

from liveness.cli import main
from tests.e2e.client import Client
from tests.e2e.conftest import Start
from tests.e2e.sidecar import Sidecar, eventually

# Long enough for a busy machine not to be over before something was looked at.
LONG_S = 600
USERS = [f"u{n}" for n in range(40)]
SILENT, SPEAK = USERS[:30], USERS[30:]
BEGUN = "storm: too many users came due at once, and are held"
ENDED = "storm is over"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(sidecar: Sidecar, *arguments: str) -> tuple[int, str, str]:
        words = 2 if arguments[0] == "guard" else 1
        place = ["--socket", str(sidecar.socket)]
        code = main([*arguments[:words], *place, *arguments[words:]])
        return code, *capsys.readouterr()

    return run


def guarded(start: Start, timeout_s: float = 1, **settings: object) -> Sidecar:
    wanted = {"guard_least_users": 20, "guard_hold_s": LONG_S, **settings}
    return start(timeout_s, guard_enabled="true", **wanted)


def arrive(sidecar: Sidecar, name: str, uids: list[str]) -> Client:
    gateway = sidecar.gateway(name)
    gateway.send("login", uids)
    gateway.settle()
    return gateway


def held(sidecar: Sidecar, users: int) -> None:
    metric = ("liveness_users_held",)
    sidecar.metric_until(lambda value: value == users, *metric, why="storm")


def guard_of(sidecar: Sidecar, door: str = "admin") -> dict[str, Any]:
    response, body = sidecar.ask(door, "GET", "/v1/guard")
    assert response.status == 200
    found: dict[str, Any] = json.loads(body)
    return found


def release(sidecar: Sidecar, body: bytes = b"{}") -> tuple[int, dict[str, Any]]:
    response, answer = sidecar.ask("admin", "POST", "/v1/guard/release", body)
    return response.status, json.loads(answer)


def test_a_storm_is_held_shown_and_released_by_name(start: Start, run: Any) -> None:
    sidecar = guarded(start)
    gateway = arrive(sidecar, "gw-1", USERS)
    held(sidecar, 40)
    assert sidecar.metric("liveness_storms_total") == 1
    for door in ("http", "admin"):
        found = guard_of(sidecar, door)
        (storm,) = found["storms"]
        assert (found["enabled"], found["more"]) == (True, 0)
        assert (storm["gateway"], storm["users"]) == ("gw-1", 40)
        assert 0 < storm["left_s"] < LONG_S
    code, shown, _ = run(sidecar, "status")
    assert code == 0
    assert re.search(r"^held +storm 40, ", shown, re.M)
    assert re.search(r"^storm +gw-1 40 users, \d+ s left$", shown, re.M)
    assert re.search(r"^to release +liveness guard release \[NAME\]$", shown, re.M)
    (shown_storm,) = json.loads(run(sidecar, "status", "--json")[1])["storms"]
    assert shown_storm["gateway"] == "gw-1"
    begun = sidecar.line(BEGUN)
    assert (begun["gateway"], begun["due"], begun["users"]) == ("gw-1", 40, 40)
    assert begun["likely"].startswith("no other gateway has users: ")
    assert run(sidecar, "guard", "release", "gw-1") == (
        0,
        "released 40 users of gw-1\n",
        "",
    )
    assert {one["reason"] for one in gateway.take(40)} == {"silence"}
    ended = sidecar.line(ENDED)
    assert (ended["why"], ended["saved"], ended["others"]) == (
        "released by command",
        0,
        40,
    )
    held(sidecar, 0)
    late = sidecar.metric("liveness_offline_lateness_seconds_count", stage="decided")
    assert (late, sidecar.metric("liveness_storms_total")) == (0, 1)
    assert "storm" not in run(sidecar, "status")[1].replace("storm 0", "")


def test_a_storm_is_over_by_itself(start: Start) -> None:
    sidecar = guarded(start, guard_hold_s=2)
    gateway = arrive(sidecar, "gw-1", USERS)
    records = gateway.take(40)
    assert all(one["silence"] >= 3 for one in records)
    assert sidecar.line(ENDED)["why"] == "its time is over"
    assert guard_of(sidecar)["storms"] == []


def test_a_touch_while_held_saves_the_user(start: Start, run: Any) -> None:
    sidecar = guarded(start, 2)
    gateway = arrive(sidecar, "gw-1", USERS)
    other = arrive(sidecar, "gw-2", ["alone"])
    held(sidecar, 40)
    # A login on a session's own connection is one, and may bring another timeout: so
    # they are not due again soon, however slow this machine is.
    gateway.send("login", SPEAK, {"timeout": LONG_S})
    held(sidecar, 30)
    assert run(sidecar, "guard", "release", "gw-1")[1] == "released 30 users of gw-1\n"
    assert sorted(one["uid"] for one in gateway.take(30)[:30]) == sorted(SILENT)
    assert [one["uid"] for one in other.take(1)] == ["alone"]
    ended = sidecar.line(ENDED)
    assert (ended["saved"], ended["others"]) == (10, 30)


def test_a_storm_of_which_all_have_spoken_is_over_at_once(start: Start) -> None:
    sidecar = guarded(start, 2)
    gateway = arrive(sidecar, "gw-1", USERS)
    held(sidecar, 40)
    gateway.send("keepalive", USERS)
    ended = sidecar.line(ENDED)
    assert (ended["why"], ended["saved"], ended["others"]) == (
        "nobody is due any more",
        40,
        0,
    )


def test_all_storms_are_released_together_and_their_cause_is_told(
    start: Start, run: Any
) -> None:
    sidecar = guarded(start)
    names = ["gw-1", "gw-2"]
    both = [sidecar.gateway(name) for name in names]
    # At once: who comes later than the storm of the others has begun is none of its cause.
    for name, gateway in zip(names, both, strict=True):
        gateway.send("login", [f"{name} {uid}" for uid in USERS])
    held(sidecar, 80)
    for name in names:
        likely = sidecar.line(BEGUN, gateway=name)["likely"]
        assert likely.startswith("other gateways too: ")
    code, shown, _ = run(sidecar, "guard", "release")
    assert code == 0
    assert shown.splitlines() == [f"released 40 users of {name}" for name in names]
    for gateway in both:
        assert len(gateway.take(40)) == 40
    assert run(sidecar, "guard", "release") == (0, "no users are held by a storm\n", "")


def test_a_gateway_that_comes_back_fresh_loses_its_users_at_once(start: Start) -> None:
    sidecar = guarded(start)
    watcher = sidecar.watcher(kinds=["offline"])
    arrive(sidecar, "gw-1", USERS)
    held(sidecar, 40)
    sidecar.gateway("gw-1", fresh=True)
    assert {one["reason"] for one in watcher.take(40)} == {"gateway_lost"}
    assert sidecar.line(ENDED)["why"] == "the gateway came back without its sessions"


def test_a_planned_restart_forgets_the_storm_and_counts_anew(start: Start) -> None:
    sidecar = guarded(start)
    gateway = arrive(sidecar, "gw-1", USERS)
    held(sidecar, 40)
    sidecar.stop()
    sidecar.start(guard_enabled="false")
    gateway = sidecar.gateway("gw-1")
    assert len(gateway.take(40)) == 40
    assert guard_of(sidecar) == {"enabled": False, "storms": [], "more": 0}


# --- what cannot be ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["calm", "nobody", "-x"])
def test_a_name_of_which_nobody_is_held_is_an_error(
    guarded_one: Sidecar, run: Any, name: str
) -> None:
    arrive(guarded_one, "calm", [])
    code, shown, told = run(guarded_one, "guard", "release", "--", name)
    assert (code, shown) == (1, "")
    wrong = (
        f"no users of '{name}' are held by a storm; `liveness status` shows whose are"
    )
    assert told == f"liveness: {wrong}\n"
    assert guard_of(guarded_one)["storms"][0]["users"] == 40


def test_without_a_guard_the_command_says_how_to_have_one(
    sidecar: Sidecar, run: Any
) -> None:
    for name in ([], ["gw-1"]):
        code, shown, told = run(sidecar, "guard", "release", *name)
        assert (code, shown) == (1, "")
        assert told == (
            "liveness: the storm guard is off and holds nobody; to have it set "
            "guard.enabled, and restart the sidecar\n"
        )
    assert guard_of(sidecar)["enabled"] is False


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b'{"gateway": null}',
        b'{"gateway": ""}',
        b'{"gateway": "a\\n"}',
        b'{"gateway": 7}',
        b'{"name": "gw-1"}',
    ],
)
def test_a_body_that_cannot_be_is_refused_and_releases_nobody(
    guarded_one: Sidecar, body: bytes
) -> None:
    status, answer = release(guarded_one, body)
    assert status == 400
    assert "must be" in answer["error"]
    assert "\n" not in answer["error"]
    assert guard_of(guarded_one)["storms"][0]["users"] == 40


@pytest.fixture(scope="module")
def guarded_one(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One whose storm goes on through all tests that change nothing."""
    settings = {"guard_least_users": 20, "guard_hold_s": LONG_S}
    folder = tmp_path_factory.mktemp("s")
    with Sidecar(folder, 1, guard_enabled="true", **settings) as sidecar:
        sidecar.start()
        arrive(sidecar, "gw-1", USERS)
        held(sidecar, 40)
        yield sidecar


def test_the_tcp_door_releases_nobody(guarded_one: Sidecar) -> None:
    path = "/v1/guard/release"
    assert guarded_one.ask("http", "POST", path, b"{}")[0].status == 405
    assert guarded_one.ask("http", "POST", "/v1/guard", b"{}")[0].status == 405
    assert guarded_one.ask("admin", "GET", path)[0].status == 405
    assert guard_of(guarded_one)["storms"][0]["users"] == 40


def test_whoever_logs_out_while_held_is_gone_at_once(start: Start) -> None:
    sidecar = guarded(start)
    gateway = sidecar.gateway("gw-1", kinds=["offline"])
    gateway.send("login", USERS)
    held(sidecar, 40)
    gateway.send("logout", USERS[0])
    (record,) = gateway.take(1)
    assert (record["uid"], record["reason"]) == (USERS[0], "logout")
    eventually(lambda: guard_of(sidecar)["storms"][0]["users"] == 39)
