"""`liveness webhooks` against a scripted `admin.sock`: requests, output and exit codes."""

import json
import re
from typing import Any

import pytest

from tests.helpers.admin_server import Admin

GROUP = "webhooks"
WEBHOOK = {
    "webhook": "mail", "url": "https://example.org/hook", "kinds": ["online", "offline"],
    "gateways": [], "users_only": False, "settle_s": 0.0, "batch": 500,
    "outlet": "webhooks.mail", "state": "retrying", "since": 1_795_647_412_254,
    "detail": "status 500: \x1b", "lag_records": 1_203, "lag_s": 30.25, "sent": 81_204,
    "retries": 3, "dead": 2, "dead_kept": 1, "dead_deleted": 0, "damped": 0,
    "settling_overflows": 0, "settling": 0, "missed": 0,
}  # fmt: skip
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
REFUSED = {
    "webhook": "mail", "id": 17, "accepted": False, "status": None,
    "answer": "it did not\x1b answer within 10 s", "seconds": 10.0,
}  # fmt: skip


def answer(**found: Any) -> tuple[int, bytes]:
    return 200, json.dumps(found).encode()


def test_a_list_has_a_line_for_each_webhook(admin: Admin, run: Any) -> None:
    admin.pages["/v1/webhooks"] = answer(webhooks=[WEBHOOK])
    assert run("list") == (
        0,
        "mail          retrying   lag 1,203 (30.2 s)  sent 81,204  retries 3  "
        "dead letters 1  https://example.org/hook  status 500: \\x1b\n",
        "",
    )
    assert json.loads(run("list", "--json")[1]) == WEBHOOK
    counted = {**WEBHOOK, "missed": 1_000, "damped": 640, "settling": 12}
    admin.pages["/v1/webhooks"] = answer(webhooks=[counted])
    counts = "dead letters 1  missed 1,000  left out 640  settling 12  https://"
    assert counts in run("list")[1]


def test_without_webhooks_the_list_says_so(admin: Admin, run: Any) -> None:
    admin.pages["/v1/webhooks"] = answer(webhooks=[])
    assert run("list") == (0, "", "liveness: the settings have no [webhooks.NAME]\n")


def test_a_test_shows_what_the_receiver_answered(admin: Admin, run: Any) -> None:
    admin.pages["/v1/webhooks/test"] = answer(**ACCEPTED)
    assert run("test", "mail") == (0, "mail: accepted: status 204 after 0.013 s\n", "")
    assert json.loads(run("test", "mail", "--json")[1]) == ACCEPTED
    assert {body for _, body in admin.asked} == {b'{"webhook": "mail"}'}


def test_a_refused_test_is_exit_code_1(admin: Admin, run: Any) -> None:
    admin.pages["/v1/webhooks/test"] = answer(**REFUSED)
    assert run("test", "mail") == (
        1,
        "mail: not accepted: no answer after 10.000 s  "
        "it did not\\x1b answer within 10 s\n",
        "",
    )


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


def test_dead_letters_are_read_page_by_page_up_to_the_limit(
    admin: Admin, run: Any
) -> None:
    dead = "/v1/webhooks/dead?webhook=mail"
    admin.pages |= {
        f"{dead}&limit=100": answer(dead=[LETTER] * 100, next="900"),
        f"{dead}&limit=50&before=900": answer(dead=[LETTER] * 50, next="800"),
    }
    code, shown, said = run("dead", "mail", "--limit", "150")
    assert (code, shown.count("\n")) == (0, 150)
    assert said == (
        "liveness: there may be more than these 150: see them with a larger --limit\n"
    )


def test_a_dead_letter_is_retried_by_its_number(admin: Admin, run: Any) -> None:
    admin.pages["/v1/webhooks/retry"] = answer(**ACCEPTED, id=17)
    assert run("retry", "17") == (0, "mail: accepted: status 204 after 0.013 s\n", "")
    assert admin.asked == [("/v1/webhooks/retry", b'{"id": "17"}')]
    admin.pages["/v1/webhooks/retry"] = answer(**REFUSED)
    assert run("retry", "17")[0] == 1


def test_all_are_retried_until_none_is_left(admin: Admin, run: Any) -> None:
    """The sidecar ends each answer after a while."""
    pages = iter([(200, 1, 40, "217"), (39, 0, 1, None)])

    class Pages(dict[str, tuple[int, bytes]]):
        def __getitem__(self, page: str) -> tuple[int, bytes]:
            assert page == "/v1/webhooks/retry-all"
            accepted, refused, left, after = next(pages)
            return answer(
                webhook="mail", accepted=accepted, refused=refused, left=left,
                failed=None, next=after,
            )  # fmt: skip

    admin.pages = Pages()
    shown = "mail: 239 accepted, 1 refused, 1 left\n"
    assert run("retry", "--all", "mail") == (1, shown, "")
    assert [body for _, body in admin.asked] == [
        b'{"webhook": "mail"}',
        b'{"webhook": "mail", "after": "217"}',
    ]


def test_a_retry_of_all_says_at_which_the_receiver_failed(
    admin: Admin, run: Any
) -> None:
    failed = {name: REFUSED[name] for name in REFUSED if name != "webhook"}
    found = {
        "webhook": "mail", "accepted": 2, "refused": 1, "left": 5, "failed": failed,
        "next": None,
    }  # fmt: skip
    admin.pages["/v1/webhooks/retry-all"] = answer(**found)
    assert run("retry", "--all", "mail") == (
        1,
        "mail: 2 accepted, 1 refused, 5 left\n"
        "dead letter 17 was not accepted: no answer after 10.000 s  "
        "it did not\\x1b answer within 10 s\n",
        "",
    )
    assert json.loads(run("retry", "--all", "mail", "--json")[1]) == found


def test_a_dead_letter_is_dropped_by_its_number(admin: Admin, run: Any) -> None:
    found = {"webhook": "mail", "id": 17, "left": 3}
    admin.pages["/v1/webhooks/drop"] = answer(**found)
    assert run("drop", "17") == (0, "mail: 1 deleted, 3 left\n", "")
    assert json.loads(run("drop", "17", "--json")[1]) == found
    assert admin.asked == [("/v1/webhooks/drop", b'{"id": "17"}')] * 2


def test_all_are_dropped_only_with_yes(admin: Admin, run: Any) -> None:
    found = {"webhook": "mail", "deleted": 1_200, "left": 0}
    admin.pages["/v1/webhooks/drop-all"] = answer(**found)
    code, shown, said = run("drop", "--all", "mail")
    assert (code, shown, admin.asked) == (2, "", [])
    assert said.startswith(
        "liveness: all dead letters of 'mail' would be lost for good"
    )
    shown = "mail: 1,200 deleted, 0 left\n"
    assert run("drop", "--all", "mail", "--yes") == (0, shown, "")
    assert admin.asked == [("/v1/webhooks/drop-all", b'{"webhook": "mail"}')]


@pytest.mark.parametrize("what", ["retry", "drop"])
@pytest.mark.parametrize("given", [[], ["17", "--all", "mail"]], ids=["none", "both"])
def test_either_an_id_or_all_must_be_given(
    run: Any, what: str, given: list[str]
) -> None:
    code, _, said = run(what, *given)
    assert code == 2
    assert said.startswith("liveness: give either ID or --all NAME; see `")


@pytest.mark.parametrize("number", ["0", "x", "9" * 30, "-1"])
def test_a_number_that_no_dead_letter_has_is_refused(run: Any, number: str) -> None:
    code, _, said = run("retry", "--", number)
    assert code == 2
    assert "is not a number that `webhooks dead` shows" in said


def test_a_refusal_is_shown_in_the_sidecars_words(admin: Admin, run: Any) -> None:
    admin.pages["/v1/webhooks/test"] = (404, b'{"error": "there is no \\u001b"}')
    assert run("test", "none") == (1, "", "liveness: there is no \\x1b\n")


@pytest.mark.parametrize(
    "body", [b"ok", b"{}", b'{"webhooks": [7]}', b'{"webhooks": 7}']
)
def test_another_program_is_no_liveness_sidecar(
    admin: Admin, run: Any, body: bytes
) -> None:
    pages = ("", "/test", "/dead?limit=100", "/retry", "/retry-all", "/drop")
    admin.pages = {f"/v1/webhooks{page}": (200, body) for page in pages}
    for line in ("list", "test a", "dead", "retry 1", "retry --all a", "drop 1"):
        code, shown, said = run(*line.split())
        assert (code, shown) == (1, ""), line
        assert "is not a liveness sidecar: name the right socket with" in said
