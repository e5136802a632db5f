"""One link's conversation: hello, numbers, runs of signs, refusals, the end."""

from itertools import chain
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from liveness.core.limits import Limits
from liveness.core.links.conversation import REFUSED_WINDOW_S, Conversation
from liveness.core.wire.frames import MAX_AGE_S
from liveness.core.wire.framing import encode
from liveness.core.wire.link_requests import (
    Ack,
    ActivityBatch,
    Hello,
    ListSessions,
    Login,
    Ping,
    Refusal,
    Request,
)
from liveness.errors import NOT_FATAL, Code
from tests.helpers.strategies import BOUNDED, frames, no_uids, singly, uids, values

HELLO = ["hello", {"protocol": 1, "name": "gateway-1"}]


def link_of(hello: object = HELLO, **limits: int) -> Conversation:
    link = Conversation(Limits(**limits))
    (answer,) = link.receive(encode(hello), 0.0)
    assert isinstance(answer, Hello)
    return link


def asked(link: Conversation, *frames: object, now: float = 0.0) -> list[Request]:
    data = b"".join(encode(frame) for frame in frames)
    return list(link.receive(data, now))


def codes(answers: list[Request]) -> list[tuple[str, bool, int]]:
    return [
        (answer.code.value, answer.fatal, answer.n)
        for answer in answers
        if isinstance(answer, Refusal)
    ]


def kinds(answers: list[Request]) -> list[type]:
    """What each of them is; signs of life however they are kept."""
    return [
        ActivityBatch if isinstance(answer, ActivityBatch) else type(answer)
        for answer in answers
    ]


# --- hello ---------------------------------------------------------------------------


def test_a_link_is_introduced_only_by_a_good_hello() -> None:
    link = Conversation(Limits())
    assert codes(asked(link, ["hello", {"protocol": 1}])) == [("bad-hello", True, 1)]
    assert link.hello is None


def test_an_age_beyond_all_lives_is_taken_for_the_greatest() -> None:
    for age in (MAX_AGE_S + 1, 1e20, 1.7e308, 2**64 - 1):
        (login,) = asked(link_of(), ["login", "u", {"age": age}])
        assert isinstance(login, Login)
        assert login.age == MAX_AGE_S


# --- numbers ---------------------------------------------------------------------------


def test_frames_are_numbered_from_1_whatever_becomes_of_them() -> None:
    link = link_of()
    answers = asked(
        link,
        ["keepalive", "a"],
        ["keepalive", ["b", "c"]],
        ["nonsense"],
        ["keepalive", []],
        ["ack", 5],
        [],
        ["login", None],
    )
    refused = [("unknown-frame", False, 4), ("bad-frame", False, 7)]
    assert codes(answers) == [*refused, ("bad-uid", False, 8)]
    assert kinds(answers[:4]) == [
        ActivityBatch, Refusal, ActivityBatch, Ack,
    ]  # fmt: skip
    assert answers[3] == Ack(5)
    assert link.n == 8


def test_a_broken_frame_has_the_number_it_would_have_had() -> None:
    link = link_of()
    data = encode(["keepalive", "a"]) + encode(["list"]) + b"\xc1"
    signs, listed, refused = link.receive(data, 0.0)
    assert isinstance(signs, ActivityBatch)
    assert listed == ListSessions()
    assert codes([refused]) == [("bad-msgpack", True, 4)]


def test_an_error_that_no_frame_caused_has_the_number_of_frames_taken() -> None:
    assert Conversation(Limits()).close(Code.TOO_SLOW, "").n == 0
    link = link_of()
    asked(link, ["list"], ["list"])
    assert link.close(Code.REPLACED, "").n == 3


# --- runs of signs -------------------------------------------------------------------


def test_consecutive_signs_become_one_request_that_others_end() -> None:
    sign = ["keepalive", "a", {"conn": 1}]
    answers = asked(
        link_of(),
        sign,
        ["message", ["b", "c"], {"conn": [2, None]}],
        ["ping", 1],
        sign,
        ["x"],
        sign,
        sign,
    )
    runs = [answer for answer in answers if isinstance(answer, ActivityBatch)]
    assert kinds(answers) == [
        ActivityBatch, Ping, ActivityBatch, Refusal, ActivityBatch,
    ]  # fmt: skip
    assert runs[0].uids == ["a", "b", "c"]
    assert runs[0].conns == [1, 2, None]
    assert bytes(runs[0].events) == b"\x02\x03\x03"
    assert [run.uids for run in runs[1:]] == [["a"], ["a", "a"]]


def test_a_run_does_not_wait_for_the_next_piece() -> None:
    link = link_of()
    answers = [asked(link, ["keepalive", uid]) for uid in "ab"]
    assert [[run.uids for run in runs] for runs in answers] == [[["a"]], [["b"]]]  # type: ignore[union-attr]


def test_a_refused_sign_leaves_nothing_in_the_run() -> None:
    answers = asked(
        link_of(max_batch=2),
        ["keepalive", "a"],
        ["keepalive", ["b", "c", "d"]],
        ["keepalive", ["e", "f"], {"conn": [1]}],
        ["keepalive", "g", {"conn": -1}],
        ["keepalive", "h"],
    )
    runs = [answer.uids for answer in answers if isinstance(answer, ActivityBatch)]
    assert runs == [["a"], ["h"]]
    assert codes(answers) == [
        ("bad-frame", False, 3), ("bad-option", False, 4), ("bad-option", False, 5),
    ]  # fmt: skip


@BOUNDED
@given(st.lists(st.none() | st.integers(0, 4), min_size=1, max_size=40))
def test_a_run_knows_the_frame_of_each_position_and_the_place_in_it(
    lengths: list[int | None],
) -> None:
    """None is a frame of one uid outside an array, a number is an array's length."""
    link = link_of()
    asked(link, ["list"], ["list"])
    answers = asked(
        link, *(["message", "u" if n is None else ["u"] * n] for n in lengths)
    )
    (run,) = answers
    assert isinstance(run, ActivityBatch)
    expected = [
        (4 + at, index)
        for at, length in enumerate(lengths)
        for index in range(1 if length is None else length)
    ]
    assert [run.frame_at(at) for at in range(len(run.uids))] == expected


# --- refusals ------------------------------------------------------------------------


def test_a_link_with_too_many_refused_frames_is_closed() -> None:
    link = link_of(max_refused=3)
    answers = asked(link, *[["x"]] * 5, ["list"], now=1.0)
    assert codes(answers) == [
        ("unknown-frame", False, 2),
        ("unknown-frame", False, 3),
        ("unknown-frame", False, 4),
        ("overloaded", True, 5),
    ]
    assert link.is_closed
    assert len(answers) == 4


def test_a_frame_refused_after_it_was_taken_counts_too() -> None:
    link = link_of(max_refused=2)
    asked(link, ["keepalive", None], ["x"])
    first, second = (
        link.refuse(Code.BAD_UID, "no uid", 1.0, n=2, frame="keepalive", index=0)
        for _ in range(2)
    )
    assert first == Refusal(Code.BAD_UID, "no uid", 2, False, "keepalive", 0)
    assert (second.code, second.fatal, link.is_closed) == (Code.OVERLOADED, True, True)


def test_refused_frames_are_forgotten_after_a_while() -> None:
    link = link_of(max_refused=2)
    for turn in range(5):
        now = turn * (REFUSED_WINDOW_S + 0.1)
        assert codes(asked(link, ["x"], ["x"], now=now))[-1][0] == "unknown-frame"
    assert codes(asked(link, ["x"], now=now + REFUSED_WINDOW_S))[0][0] == "overloaded"


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (["after", "a"], 'a key and the seconds until then: ["after", key, seconds]'),
        (["after", "", 5], "'' is no key: a string of 1 to 255 bytes without control"),
        (["after", "a", 0.09], "seconds is 0.09; it must be 0.1 to 31622400"),
        (["after", "a", 5, 7], "the fourth element is a map of options"),
        (["after", "a", 5, {"ext": 7}], "7 is no ext: a string of 1 to 255 bytes"),
        (["after", "a", 5, {"payload": 7}], "payload is 7; it must be a string"),
        (
            ["after", "a", 5, {"payload": "\N{EURO SIGN}" * 1_366}],
            "payload has 4098 bytes; at most 4096 are taken",
        ),
        (["after", "a", 5, {"payload": "\0"}], "payload holds U+0000; leave it out"),
        (["cancel"], 'cancel takes a map: ["cancel", {key}] or ["cancel", {ext}]'),
        (["cancel", {}], "cancel takes a key or an ext: one, not both"),
        (["done"], 'done takes the key of a timer: ["done", key]'),
        (["done", "a", 7], "message is 7; it must be a string"),
        (
            ["done", "a", None, {"seq": 0}],
            "seq is 0; it must be a record's seq, from 1",
        ),
        (["fail", "a"], 'the key of a timer and why: ["fail", key, message]'),
        (["fail", "a", None], "message is None; it must be a string"),
        (["fail", "a", "m", {"final": 1}], "final is 1; it must be true or false"),
    ],
)
def test_a_refused_timer_frame_says_what_is_right(
    frame: list[object], said: str
) -> None:
    (answer,) = asked(link_of(), frame)
    assert isinstance(answer, Refusal)
    assert said in answer.message


@pytest.mark.parametrize("name", ["keepalive", "login", "logout"])
@pytest.mark.parametrize(
    ("uids", "conn", "said"),
    [
        ("a", 1.9e18, "conn is 1.9e+18, a float; it must be an integer. "),
        (["a", "b"], [7, 2.0**40], "conn 1 of the array (from 0) is 1.09951e+12, a "),
    ],
    ids=["one", "array"],
)
def test_a_conn_that_became_a_float_is_refused_with_the_cause(
    name: str, uids: object, conn: object, said: str
) -> None:
    (answer,) = asked(link_of(), [name, uids, {"conn": conn}])
    assert isinstance(answer, Refusal)
    assert (answer.code, answer.index) == (Code.BAD_OPTION, None)
    assert answer.message.startswith(said)
    assert "doubles, which round them: choose conns below 2^53, and" in answer.message


@pytest.mark.parametrize(("name", "what"), [("login", "events"), ("done", "timers")])
def test_a_watcher_is_told_which_frames_it_may_not_send(name: str, what: str) -> None:
    hello = ["hello", {"protocol": 1, "name": "w", "role": "watcher"}]
    (answer,) = asked(link_of(hello), [name, "a"])
    assert isinstance(answer, Refusal)
    said = f"a watcher sends no {what}; say hello with role gateway"
    assert said in answer.message


# --- the end -------------------------------------------------------------------------


@pytest.mark.parametrize("closing", [Hello, ActivityBatch, Login])
def test_a_link_closed_for_a_request_gives_nothing_behind_it(closing: type) -> None:
    link = Conversation(Limits())
    everything = [
        HELLO,
        ["keepalive", "a"],
        ["login", "b"],
        ["list"],
        ["keepalive", "c"],
    ]
    given_: list[type] = []
    for request in link.receive(b"".join(map(encode, everything)), 0.0):
        given_ += kinds([request])
        if isinstance(request, closing):
            link.close(Code.NOT_ALLOWED, "")
    assert given_ == [Hello, ActivityBatch, Login][: len(given_)]
    assert given_[-1] is closing


def test_a_closed_link_gives_nothing() -> None:
    link = link_of()
    link.close(Code.REPLACED, "")
    assert asked(link, ["list"]) == []


# --- whatever comes ------------------------------------------------------------------


names = st.sampled_from(
    [
        "hello", "login", "logout", "keepalive", "message", "ack", "ping", "where",
        "list", "after", "cancel", "done", "fail",
    ]
)  # fmt: skip
options = st.dictionaries(
    st.sampled_from(
        [
            "conn", "timeout", "age", "protocol", "name", "kinds", "after", "key",
            "payload", "ext", "final", "seq",
        ]
    ),
    values,
    max_size=3,
)  # fmt: skip
likely = st.one_of(
    st.tuples(
        names, st.one_of(values, uids, st.lists(uids | no_uids, max_size=4)), options
    ),
    st.tuples(names, uids, values, options),
).map(list)


@BOUNDED
@given(st.lists(likely | frames | values, max_size=6))
@example([["login", ["a", {}], {"age": []}]])
@example([["x" * 100_000]])
def test_any_frame_becomes_a_request_or_a_readable_refusal(sent: list[Any]) -> None:
    data = b"".join(map(encode, sent))
    link, pieced = link_of(), link_of()
    answers = list(link.receive(data, 0.0))
    for answer in answers:
        if isinstance(answer, Refusal):
            assert answer.fatal or answer.code in NOT_FATAL
            assert 10 < len(answer.message) < 300
            assert answer.message.isprintable()
            assert answer.frame is None or len(answer.frame) <= 64
            assert 2 <= answer.n <= len(sent) + 1
            assert encode(answer.as_frame())
    if len(data) < 5_000:
        refused = (codes(list(pieced.receive(piece, 0.0))) for piece in singly(data))
        assert [*chain.from_iterable(refused)] == codes(answers)
    assert link.is_closed == any(fatal for _, fatal, _ in codes(answers))
