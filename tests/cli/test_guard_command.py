"""`liveness guard` against an `admin.sock`: its requests, and its use of answers."""

import json
from typing import Any

import pytest

from tests.helpers.admin_server import Admin

GROUP = "guard"
PAGE = "/v1/guard/release"


def released(*users: tuple[str, int], more: int = 0) -> tuple[int, bytes]:
    storms = [{"gateway": name, "users": n, "left_s": 1.5} for name, n in users]
    return 200, json.dumps({"storms": storms, "more": more}).encode()


def test_all_are_released_unless_one_is_named(admin: Admin, run: Any) -> None:
    admin.pages[PAGE] = released(("gw-1", 12_000), ("a\x1b", 1), more=1_234)
    code, shown, told = run("release")
    assert (code, told) == (0, "")
    assert shown.splitlines() == [
        "released 12,000 users of gw-1",
        "released 1 user of a\\x1b",
        "released the users of 1,234 more gateways",
    ]
    assert run("release", "none")[0] == 0
    assert admin.asked == [(PAGE, b"{}"), (PAGE, b'{"gateway": "none"}')]


def test_without_held_users_it_says_so(admin: Admin, run: Any) -> None:
    admin.pages[PAGE] = released()
    assert run("release") == (0, "no users are held by a storm\n", "")


def test_a_refusal_is_shown_in_the_sidecars_words(admin: Admin, run: Any) -> None:
    admin.pages[PAGE] = (404, b'{"error": "no users of g \\u001b"}')
    assert run("release", "g") == (1, "", "liveness: no users of g \\x1b\n")


@pytest.mark.parametrize(
    "answer",
    [
        (200, b"ok"),
        (200, b"{}"),
        (200, b'{"storms": 7, "more": 0}'),
        (200, b'{"storms": [{"gateway": "g", "users": "many"}], "more": 0}'),
        (404, b"Not Found"),
    ],
)
def test_another_program_is_no_liveness_sidecar(
    admin: Admin, run: Any, answer: tuple[int, bytes]
) -> None:
    admin.pages[PAGE] = answer
    code, shown, told = run("release")
    assert (code, shown) == (1, "")
    assert "is not a liveness sidecar: name the right socket with --socket" in told
