"""`liveness timers` against an `admin.sock`: its requests, and its use of answers."""

import json
import re
from datetime import UTC, datetime, tzinfo
from typing import Any, Self

import pytest

from liveness.cli import timers as commands
from tests.helpers.admin_server import Admin

GROUP = "timers"
NOW_MS = int(datetime.now(UTC).timestamp() * 1_000)
HOUR_MS = 3_600_000
PENDING = {
    "gateway": "gw-1", "key": "order:17", "state": "pending", "due": NOW_MS + 2 * HOUR_MS,
    "attempts": 0, "created": NOW_MS - 50 * HOUR_MS, "changed": NOW_MS - 50 * HOUR_MS,
}  # fmt: skip
FAILED = {
    "gateway": "gw-1", "key": "order:18", "ext": "user-17", "payload": '{"a":"é\x1b\\"}',
    "state": "failed", "due": NOW_MS - 9 * HOUR_MS, "attempts": 16, "message": "no\nroute",
    "seq": 8_123, "created": NOW_MS - 50 * HOUR_MS, "fired": NOW_MS - 9 * HOUR_MS,
    "changed": NOW_MS - 8 * HOUR_MS,
}  # fmt: skip
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def page(*timers: dict[str, Any], **more: object) -> tuple[int, bytes]:
    return 200, json.dumps({"timers": timers, **more}).encode()


@pytest.fixture(autouse=True)
def _standing_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops the clock: the suite takes minutes, and ages count from the import."""

    class Standing(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls.fromtimestamp(NOW_MS / 1_000, tz)

    monkeypatch.setattr(commands, "datetime", Standing)


def test_a_list_has_a_line_for_each_timer(admin: Admin, run: Any) -> None:
    long = {**PENDING, "message": "m" * 4_096}
    admin.pages["/v1/timers?limit=100"] = page(PENDING, FAILED, long, next=None)
    code, shown, told = run("list")
    assert (code, told) == (0, "")
    pending, failed, cut = shown.splitlines()
    assert cut == f"{pending}  {'m' * 60}…"
    assert re.fullmatch(rf"{TIME}  in 2 h      pending    gw-1  order:17", pending)
    assert re.fullmatch(
        rf"{TIME}  8 h ago     failed     gw-1  order:18  ext user-17  attempt 16  "
        r"no\\nroute",
        failed,
    )


def test_a_list_goes_on_until_there_are_no_more(admin: Admin, run: Any) -> None:
    admin.pages |= {
        "/v1/timers?limit=100": page(*[PENDING] * 100, next="900"),
        "/v1/timers?limit=100&before=900": page(next="500"),
        "/v1/timers?limit=100&before=500": page(FAILED, next=None),
    }
    code, shown, told = run("list", "--limit", "1000")
    assert (code, shown.count("\n"), told) == (0, 101, "")


def test_a_list_ends_at_its_limit_and_says_that_there_may_be_more(
    admin: Admin, run: Any
) -> None:
    admin.pages |= {
        "/v1/timers?limit=100": page(*[PENDING] * 100, next="900"),
        "/v1/timers?limit=50&before=900": page(*[PENDING] * 50, next="800"),
    }
    code, shown, told = run("list", "--limit", "150")
    assert (code, shown.count("\n")) == (0, 150)
    assert told == (
        "liveness: there may be more than these 150: see them with a larger --limit\n"
    )


def test_all_that_is_kept_of_a_timer_is_shown(admin: Admin, run: Any) -> None:
    admin.pages["/v1/timers/newest?key=order%3A18"] = page(FAILED)
    code, shown, _ = run("show", "order:18")
    assert code == 0
    rows = {line[:9].strip(): line[10:] for line in shown.splitlines()}
    for name, far in (
        ("created", "2 d"), ("due", "9 h"), ("fired", "9 h"), ("changed", "8 h")
    ):  # fmt: skip
        assert re.fullmatch(rf"{TIME}  {far} ago", rows.pop(name))
    assert rows == {
        "key": "order:18",
        "gateway": "gw-1",
        "ext": "user-17",
        "state": "failed",
        "attempts": "16",
        "record": "seq 8123",
        "message": r"no\nroute",
        "payload": r'{"a":"é\x1b\\"}',
    }
    assert json.loads(run("show", "order:18", "--json")[1]) == FAILED


def test_fields_that_a_timer_does_not_have_are_not_shown(
    admin: Admin, run: Any
) -> None:
    admin.pages["/v1/timers/newest?key=order%3A17&gateway=gw-1"] = page(PENDING)
    _, shown, _ = run("show", "order:17", "--gateway", "gw-1")
    names = [line.split()[0] for line in shown.splitlines()]
    assert names == ["key", "gateway", "state", "attempts", "created", "due", "changed"]


@pytest.mark.parametrize("what", ["cancel", "retry"])
def test_a_change_names_the_only_gateway_that_has_the_key(
    admin: Admin, run: Any, what: str
) -> None:
    admin.pages["/v1/timers/newest?key=order%3A17"] = page(PENDING)
    changed = {**PENDING, "state": "cancelled", "changed": NOW_MS - 3_000}
    admin.pages[f"/v1/timers/{what}"] = (200, json.dumps(changed).encode())
    code, shown, _ = run(what, "order:17")
    assert code == 0
    assert re.fullmatch(rf"{TIME}  \d+ s ago +cancelled  gw-1  order:17\n", shown)
    _, body = admin.asked[-1]
    assert json.loads(body) == {"gateway": "gw-1", "key": "order:17"}


@pytest.mark.parametrize("what", ["show", "cancel"])
def test_a_key_of_several_gateways_needs_the_gateway_named(
    admin: Admin, run: Any, what: str
) -> None:
    others = [{**FAILED, "gateway": f"gw\x1b-{n}"} for n in range(2, 12)]
    admin.pages["/v1/timers/newest?key=order%3A17"] = page(PENDING, *others)
    code, shown, told = run(what, "order:17")
    assert (code, shown) == (1, "")
    assert told == (
        "liveness: several gateways have a timer 'order:17': gw-1 (pending), "
        + ", ".join(rf"gw\x1b-{n} (failed)" for n in range(2, 9))
        + ", and others; name one with --gateway\n"
    )
    assert len(admin.asked) == 1


def test_what_cannot_be_done_is_one_line_and_exit_code_1(
    admin: Admin, run: Any
) -> None:
    admin.pages["/v1/timers/newest?key=-a"] = page()
    admin.pages["/v1/timers/cancel"] = (409, b'{"error": "it is done \\u001b"}')
    code, shown, told = run("retry", "--", "-a")
    assert (code, shown) == (1, "")
    assert told.startswith("liveness: no gateway has a timer '-a': `liveness timers li")
    found = run("cancel", "k", "--gateway", "g")
    assert found == (1, "", "liveness: it is done \\x1b\n")
