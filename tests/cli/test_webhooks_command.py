"""`liveness webhooks` against a scripted `admin.sock`: requests, output and exit codes."""

import json
import re
from typing import Any

import pytest

from tests.helpers.admin_server import Admin

GROUP = "webhooks"
RECORD = {
    "seq": 81, "kind": "offline", "uid": "int:9007199254740993", "gateway": "gw-1",
    "session": 3, "reason": "logout", "at": 1_795_647_412_254,
}  # fmt: skip
LETTER = {
    "id": 17, "webhook": "mail", "log": "0123456789abcdef", "seq": 81,
    "webhook_id": "lw_1", "attempts": 1, "at": 1_795_647_412_254, "status": 400,
    "answer": "no\n" + "x" * 100, "record": RECORD,
}  # fmt: skip
ACCEPTED = {
    "webhook": "mail", "accepted": True, "status": 204, "answer": "", "seconds": 0.0125
}  # fmt: skip


def answer(**found: Any) -> tuple[int, bytes]:
    return 200, json.dumps(found).encode()


def test_a_test_shows_what_the_receiver_answered(admin: Admin, run: Any) -> None:
    admin.pages["/v1/webhooks/test"] = answer(**ACCEPTED)
    assert run("test", "mail") == (0, "mail: accepted: status 204 after 0.013 s\n", "")
    assert json.loads(run("test", "mail", "--json")[1]) == ACCEPTED
    assert {body for _, body in admin.asked} == {b'{"webhook": "mail"}'}


def test_a_dead_letter_is_a_line_with_its_record(admin: Admin, run: Any) -> None:
    admin.pages["/v1/webhooks/dead?limit=100"] = answer(dead=[LETTER], next=None)
    code, shown, said = run("dead")
    assert (code, said) == (0, "")
    assert re.fullmatch(
        r"17  2026-\S+Z  mail  400 after attempt 1  no\\nx{77}…  "
        r"\S+ \S+  offline  9007199254740993  gw-1  logout  seq 81\n",
        shown,
    )
    assert json.loads(run("dead", "--json")[1]) == LETTER


def letter(id: int, status: int | None, text: str = "") -> dict[str, Any]:
    is_refused = status is not None and 400 <= status < 500
    return {
        "id": id, "accepted": status == 204, "refused": is_refused, "status": status,
        "answer": text, "seconds": 0.01,
    }  # fmt: skip


class Pages(dict[str, tuple[int, bytes]]):
    """The answers to `retry`, one after the other."""

    def __init__(self, *answers: tuple[dict[str, Any] | None, int]) -> None:
        self._answers = iter(answers)

    def __getitem__(self, page: str) -> tuple[int, bytes]:
        assert page == "/v1/webhooks/retry"
        found, left = next(self._answers)
        return answer(webhook="mail", letter=found, left=left)


def test_letters_are_sent_again_until_there_is_no_more(admin: Admin, run: Any) -> None:
    admin.pages = Pages((letter(7, 204), 1), (letter(9, 422), 1), (None, 1))
    assert run("retry", "mail") == (1, "mail: 1 accepted, 1 refused, 1 left\n", "")
    assert [body for _, body in admin.asked] == [
        b'{"webhook": "mail"}',
        b'{"webhook": "mail", "after": "7"}',
        b'{"webhook": "mail", "after": "9"}',
    ]
    admin.pages = Pages((letter(7, 204), 0), (None, 0))
    assert run("retry", "mail")[0] == 0


def test_a_retry_ends_when_the_receiver_fails(admin: Admin, run: Any) -> None:
    failed = letter(17, None, "it did not\x1b answer within 10 s")
    admin.pages = Pages((letter(7, 204), 5), (failed, 5))
    assert run("retry", "mail") == (
        1,
        "mail: 1 accepted, 0 refused, 5 left\n"
        "dead letter 17 was not accepted: no answer after 0.010 s  "
        "it did not\\x1b answer within 10 s\n",
        "",
    )
    admin.pages = Pages((failed, 5))
    assert json.loads(run("retry", "mail", "--json")[1]) == {
        "webhook": "mail", "accepted": 0, "refused": 0, "left": 5, "failed": failed,
    }  # fmt: skip


def test_all_are_dropped_only_with_yes(admin: Admin, run: Any) -> None:
    admin.pages["/v1/webhooks/drop"] = answer(webhook="mail", deleted=1_200)
    code, shown, said = run("drop", "mail")
    assert (code, shown, admin.asked) == (2, "", [])
    assert said.startswith(
        "liveness: all dead letters of 'mail' would be lost for good"
    )
    assert run("drop", "mail", "--yes") == (0, "mail: 1,200 deleted\n", "")
    assert admin.asked == [("/v1/webhooks/drop", b'{"webhook": "mail"}')]


@pytest.mark.parametrize("body", [b"ok", b"{}"])
def test_another_program_is_no_liveness_sidecar(
    admin: Admin, run: Any, body: bytes
) -> None:
    pages = ("/test", "/dead?limit=100", "/retry", "/drop")
    admin.pages = {f"/v1/webhooks{page}": (200, body) for page in pages}
    for line in ("test a", "dead", "retry a", "drop a --yes"):
        code, shown, said = run(*line.split())
        assert (code, shown) == (1, ""), line
        assert "is not a liveness sidecar: name the right socket with" in said
