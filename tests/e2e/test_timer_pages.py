"""What an operator sees of timers at the HTTP doors of a running sidecar, and changes."""

import json
import socket
import sqlite3
from contextlib import closing
from http.client import HTTPResponse
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.e2e.client import Client
from tests.e2e.conftest import Start
from tests.e2e.sidecar import SOON_S, Sidecar, eventually

DOORS = ["http", "admin"]
# Nothing here is a letter, a digit or ASCII alone.
ODD_KEYS = ["a key/with?odd&=#%+;", "заказ 17 🕒", "-", "'\"\\", "%2F", "none"]

Timer = dict[str, Any]


def listed(sidecar: Sidecar, door: str = "http", **query: str) -> list[Timer]:
    """The timers of a listing that has no more."""
    response, body = sidecar.ask(door, "GET", f"/v1/timers?{urlencode(query)}")
    assert response.status == 200, body
    page = json.loads(body)
    assert page["next"] is None
    timers: list[Timer] = page["timers"]
    return timers


def order(
    sidecar: Sidecar, what: str, gateway: object, key: object
) -> tuple[int, dict[str, Any]]:
    """The answer to a change."""
    body = json.dumps({"gateway": gateway, "key": key}).encode()
    response, answer = sidecar.ask("admin", "POST", f"/v1/timers/{what}", body)
    return response.status, json.loads(answer)


def told(answer: tuple[HTTPResponse, bytes]) -> tuple[int, str]:
    """What was refused, and the one line that says why."""
    response, body = answer
    (error,) = json.loads(body).items()
    assert error[0] == "error"
    assert "\n" not in error[1]
    return response.status, error[1]


@pytest.fixture
def gateway(sidecar: Sidecar, name: str) -> Client:
    return sidecar.gateway(name)


def after(gateway: Client, *keys: str, seconds: float = 3_600, **options: str) -> None:
    """Asks for timers; on disk when this returns."""
    for key in keys:
        gateway.send("after", key, seconds, options)
    gateway.settle()


def fired(gateway: Client, key: str) -> int:
    """Has a timer fire; the seq of its record."""
    after(gateway, key, seconds=0.1)
    (record,) = gateway.take(1)
    seq: int = record["seq"]
    return seq


# --- listing -----------------------------------------------------------------------


@pytest.mark.parametrize("door", DOORS)
def test_a_timer_is_shown_with_all_that_is_kept_of_it_and_nothing_that_is_not_there(
    sidecar: Sidecar, gateway: Client, name: str, door: str
) -> None:
    after(gateway, "plain")
    after(gateway, "rich", payload='{"a": "é\u2028\x07"}', ext="user-17")
    rich, plain = listed(sidecar, door, gateway=name)
    assert plain.keys() == {
        "gateway", "key", "state", "due", "attempts", "created", "changed"
    }  # fmt: skip
    assert (plain["gateway"], plain["key"], plain["state"]) == (
        name,
        "plain",
        "pending",
    )
    assert plain["due"] - plain["created"] in (3_600_000, 3_600_001)
    assert rich.keys() - plain.keys() == {"payload", "ext"}
    assert (rich["payload"], rich["ext"]) == ('{"a": "é\u2028\x07"}', "user-17")


def test_each_state_is_told_with_what_led_to_it(
    sidecar: Sidecar, gateway: Client, name: str
) -> None:
    seqs = {key: fired(gateway, key) for key in ("done", "failed", "fired")}
    gateway.send("done", "done", "mailed")
    gateway.send("fail", "failed", "no route", {"final": True})
    after(gateway, "pending", "cancelled", "replaced", "replaced")
    gateway.send("cancel", {"key": "cancelled"})
    gateway.settle()
    # The table waits a moment for the answer to a run.
    eventually(lambda: bool(listed(sidecar, gateway=name, state="fired")))
    by_state = {
        timer["state"]: timer
        for timer in listed(sidecar, gateway=name)
        if (timer["key"], timer["state"]) != ("replaced", "pending")
    }
    assert {state: timer["key"] for state, timer in by_state.items()} == {
        state: state for state in by_state
    }
    assert len(by_state) == 6
    assert by_state["done"]["message"] == "mailed"
    assert by_state["failed"]["message"] == "no route"
    for state, seq in seqs.items():
        assert (by_state[state]["seq"], by_state[state]["attempts"]) == (seq, 1)
        assert by_state[state]["fired"] >= by_state[state]["due"]


def test_filters_hold_together_and_the_newest_come_first(
    sidecar: Sidecar, gateway: Client, name: str
) -> None:
    after(gateway, "a", "b", "c", ext="one")
    after(gateway, "d", ext="two")
    after(sidecar.gateway(f"{name}-other"), "a", ext="one")
    gateway.send("cancel", {"key": "b"})
    gateway.settle()

    def keys(**query: str) -> list[str]:
        return [timer["key"] for timer in listed(sidecar, **query)]

    assert keys(gateway=name) == ["d", "c", "b", "a"]
    assert keys(gateway=name, ext="one") == ["c", "b", "a"]
    assert keys(gateway=name, ext="one", state="pending") == ["c", "a"]
    assert keys(gateway=name, state="cancelled") == ["b"]
    assert keys(gateway=name, key="a") == ["a"]
    assert keys(gateway=name, key="a", ext="two") == []
    assert keys(gateway=name, before="1") == []
    assert keys(gateway="nobody") == []


def test_pages_follow_each_other_without_a_gap_or_a_repetition(
    sidecar: Sidecar, gateway: Client, name: str
) -> None:
    after(gateway, *(f"n{n}" for n in range(25)))
    keys, query = list[str](), f"gateway={name}&limit=10"
    for size in (10, 10, 5):
        _, text = sidecar.get(f"/v1/timers?{query}")
        page = json.loads(text)
        assert len(page["timers"]) == size
        keys += [timer["key"] for timer in page["timers"]]
        after(gateway, f"meanwhile {size}")  # newer than any page to come
        query = f"gateway={name}&limit=10&before={page['next']}"
    assert page["next"] is None
    assert keys == [f"n{n}" for n in reversed(range(25))]


@pytest.mark.parametrize("key", ODD_KEYS)
def test_a_key_of_any_characters_is_found_shown_and_cancelled(
    sidecar: Sidecar, gateway: Client, name: str, key: str
) -> None:
    after(gateway, key, ext=key)
    (timer,) = listed(sidecar, gateway=name, key=key, ext=key)
    assert (timer["key"], timer["ext"]) == (key, key)
    status, cancelled = order(sidecar, "cancel", name, key)
    assert (status, cancelled["key"], cancelled["state"]) == (200, key, "cancelled")


@pytest.mark.parametrize("door", DOORS)
def test_of_a_key_the_newest_timer_of_each_gateway_is_told(
    sidecar: Sidecar, name: str, door: str
) -> None:
    for gateway in ("x", "y"):
        after(sidecar.gateway(f"{name}-{gateway}"), name, name)

    def newest(**query: str) -> list[tuple[str, str]]:
        query = {"key": name, **query}
        path = f"/v1/timers/newest?{urlencode(query)}"
        response, body = sidecar.ask(door, "GET", path)
        assert response.status == 200
        timers = json.loads(body)["timers"]
        return [(timer["gateway"], timer["state"]) for timer in timers]

    both = [(f"{name}-x", "pending"), (f"{name}-y", "pending")]
    assert sorted(newest()) == both
    assert newest(gateway=f"{name}-y") == both[1:]
    assert len(newest(limit="1")) == 1
    assert newest(gateway="nobody") == []


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("limit=0", "limit is '0' in the query; it must be a whole number, 1 to 1000"),
        ("limit=1001", "limit is '1001'"),
        ("limit=ten", "limit is 'ten'"),
        ("limit=%D9%A3", "limit is '٣'"),
        ("limit=" + "9" * 5_000, "it must be a whole number"),
        ("before=-1", "before is '-1'"),
        ("before=9223372036854775808", "1 to 9223372036854775807"),
        ("before=", "before is ''"),
        (
            "state=gone",
            "state is 'gone' in the query; it must be one of pending, fired,",
        ),
        ("key=", "key is '' in the query; it must be a string of 1 to 255 bytes"),
        ("key=" + "k" * 256, "without control characters"),
        ("ext=%00", r"ext is '\x00'"),
        ("gateway=" + "g" * 65, "1 to 64 bytes"),
        ("key=%FF", "the query cannot be read; write name=value"),
        ("key", "the query cannot be read"),
        ("state=done&state=done", "the query has state twice; give it once"),
        (
            "kye=1",
            "the query has 'kye'; it may have gateway, state, ext, key, id, before,",
        ),
        ("after=1", "the query has 'after'"),
    ],
)
def test_a_query_that_cannot_be_is_refused_and_says_what_would_be_right(
    sidecar: Sidecar, door: str, query: str, why: str
) -> None:
    status, line = told(sidecar.ask(door, "GET", f"/v1/timers?{query}"))
    assert status == 400
    assert why in line
    assert len(line) < 300


def test_the_newest_of_no_key_is_refused(sidecar: Sidecar) -> None:
    status, line = told(sidecar.ask("http", "GET", "/v1/timers/newest"))
    assert (status, line[:20]) == (400, "the query has no key")


# --- changes -----------------------------------------------------------------------


def test_a_timer_that_was_cancelled_does_not_fire(
    sidecar: Sidecar, gateway: Client, name: str
) -> None:
    after(gateway, "never", seconds=1.5)
    status, timer = order(sidecar, "cancel", name, "never")
    assert (status, timer["state"]) == (200, "cancelled")
    ((state,),) = sidecar.timer_rows("select state from timers where gateway = ?", name)
    assert state == "cancelled"  # on disk, when it was answered
    after(gateway, "later", seconds=2)
    assert [record["key"] for record in gateway.take(1)] == ["later"]


def test_a_pending_timer_that_is_retried_fires_now(
    sidecar: Sidecar, gateway: Client, name: str
) -> None:
    after(gateway, "due tomorrow", seconds=86_400, payload="p")
    status, timer = order(sidecar, "retry", name, "due tomorrow")
    assert status == 200
    assert timer["state"] in ("pending", "fired")
    (record,) = gateway.take(1)
    assert (record["key"], record["attempt"]) == ("due tomorrow", 1)


def test_a_failed_timer_that_is_retried_begins_anew_and_can_be_done(
    sidecar: Sidecar, gateway: Client, name: str
) -> None:
    fired(gateway, "again")
    gateway.send("fail", "again", "no route", {"final": True})
    gateway.settle()
    assert order(sidecar, "retry", name, "again")[0] == 200
    (record,) = gateway.take(1)
    assert (record["key"], record["attempt"]) == ("again", 1)
    gateway.send("done", "again")
    gateway.settle()
    assert [timer["state"] for timer in listed(sidecar, gateway=name)] == ["done"]


@pytest.mark.parametrize("what", ["cancel", "retry"])
def test_what_has_ended_or_runs_is_refused_and_stays_as_it_is(
    sidecar: Sidecar, gateway: Client, name: str, what: str
) -> None:
    fired(gateway, "done")
    gateway.send("done", "done")
    after(gateway, "cancelled")
    gateway.send("cancel", {"key": "cancelled"})
    fired(gateway, "fired")
    gateway.settle()
    # Of the third the table need not have heard yet. To refuse its retry it has to.
    ended = [
        timer for timer in listed(sidecar, gateway=name) if timer["key"] != "fired"
    ]
    keys = ["done", "cancelled"] + ["fired"] * (what == "retry")
    for key in keys:
        status, answer = order(sidecar, what, name, key)
        assert status == 409
        assert f"the timer '{key}' of '{name}' is {key}; only one that is" in str(
            answer
        )
    third, *rest = listed(sidecar, gateway=name)
    assert rest == ended
    if what == "retry":
        assert (third["key"], third["state"], third["attempts"]) == (
            "fired",
            "fired",
            1,
        )


def test_of_a_key_that_two_gateways_have_only_the_one_that_is_named_is_changed(
    sidecar: Sidecar, gateway: Client, name: str
) -> None:
    after(gateway, "shared")
    after(sidecar.gateway(f"{name}-other"), "shared")
    assert order(sidecar, "cancel", name, "shared")[0] == 200
    states = [
        listed(sidecar, gateway=one)[0]["state"] for one in (name, f"{name}-other")
    ]
    assert states == ["cancelled", "pending"]


@pytest.mark.parametrize("what", ["cancel", "retry"])
def test_a_timer_that_is_not_there_is_not_found(sidecar: Sidecar, what: str) -> None:
    status, answer = order(sidecar, what, "nobody", "nothing")
    assert status == 404
    assert answer == {
        "error": "'nobody' has no timer 'nothing': `liveness timers list` shows those that there are"
    }


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"{",
        b"[]",
        b"[" * 16_000,
        b'{"gateway": "g"}',
        b'{"gateway": "g", "key": "k", "state": "done"}',
        b'{"gateway": "g", "key": 7}',
        b'{"gateway": "g", "key": null}',
        b'{"gateway": "g", "key": "\\ud800"}',
        b'{"gateway": "g", "key": "a\\nb"}',
        b'{"gateway": "", "key": "k"}',
    ],
)
def test_a_body_that_cannot_be_is_refused(sidecar: Sidecar, body: bytes) -> None:
    status, line = told(sidecar.ask("admin", "POST", "/v1/timers/cancel", body))
    assert status == 400
    assert "must be" in line


def test_a_body_without_end_is_refused_before_its_end(sidecar: Sidecar) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(SOON_S)
        sock.connect(str(sidecar.admin))
        head = "POST /v1/timers/cancel HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999"
        sock.sendall(f"{head}\r\n\r\n".encode() + b" " * 20_000)
        assert sock.recv(4_096).startswith(b"HTTP/1.1 413")


def test_a_client_that_goes_in_the_middle_of_its_body_harms_nobody(
    sidecar: Sidecar,
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(str(sidecar.admin))
        head = "POST /v1/timers/cancel HTTP/1.1\r\nhost: x\r\ncontent-length: 99"
        sock.sendall(f"{head}\r\n\r\n{{".encode())
    assert sidecar.ask("admin", "GET", "/healthz")[0].status == 200


@pytest.mark.parametrize("what", ["cancel", "retry"])
def test_the_tcp_door_changes_nothing(
    sidecar: Sidecar, gateway: Client, name: str, what: str
) -> None:
    after(gateway, "safe")
    body = json.dumps({"gateway": name, "key": "safe"}).encode()
    path = f"/v1/timers/{what}"
    assert sidecar.ask("http", "POST", path, body)[0].status == 405
    assert sidecar.ask("http", "POST", "/v1/timers", body)[0].status == 405
    assert sidecar.ask("admin", "GET", path)[0].status == 405
    assert sidecar.ask("admin", "POST", "/v1/timers", body)[0].status == 405
    assert [timer["state"] for timer in listed(sidecar, gateway=name)] == ["pending"]


def test_a_foreign_host_sees_no_timers(sidecar: Sidecar) -> None:
    response, body = sidecar.ask("http", "GET", "/v1/timers", host="evil.example")
    assert (response.status, b"timers" in body) == (421, False)


def test_what_an_operator_changed_is_so_after_a_crash(start: Start) -> None:
    sidecar = start()
    gateway = sidecar.gateway("g")
    after(gateway, "cancelled", "kept")
    assert order(sidecar, "cancel", "g", "cancelled")[0] == 200
    sidecar.kill()
    sidecar.start()
    states = {timer["key"]: timer["state"] for timer in listed(sidecar)}
    assert states == {"cancelled": "cancelled", "kept": "pending"}


def test_a_change_that_the_disk_does_not_take_is_told_and_made_once_it_does(
    start: Start,
) -> None:
    sidecar = start()
    after(sidecar.gateway("g"), "k")
    with closing(sqlite3.connect(sidecar.timers, isolation_level=None)) as other:
        other.execute("begin immediate")
        status, answer = order(sidecar, "cancel", "g", "k")
        assert status == 503
        assert (
            "the timers' table cannot be written: database is locked" in answer["error"]
        )
        assert (
            "the timer 'k' of 'g' will be cancelled when it can be" in answer["error"]
        )
        # What is read needs no writer.
        assert [timer["state"] for timer in listed(sidecar)] == ["pending"]
        status, answer = order(sidecar, "cancel", "g", "k")
        assert (status, answer["error"].endswith("nothing was changed, ask again")) == (
            503,
            True,
        )
    eventually(lambda: listed(sidecar)[0]["state"] == "cancelled")
