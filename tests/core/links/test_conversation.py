"""One link's conversation: hello, numbers, runs of signs, refusals, the end."""

import pytest

from liveness.core.limits import Limits
from liveness.core.links.conversation import HELLO_BYTES, REFUSED_WINDOW_S, Conversation
from liveness.core.wire.frames import MAX_AGE_S
from liveness.core.wire.framing import encode
from liveness.core.wire.link_requests import (
    Ack,
    ActivityBatch,
    Hello,
    Login,
    Ping,
    Refusal,
    Request,
)
from liveness.errors import Code

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


def test_an_age_beyond_all_lives_is_taken_for_the_greatest() -> None:
    for age in (MAX_AGE_S + 1, 1e20, 1.7e308, 2**64 - 1):
        (login,) = asked(link_of(), ["login", "u", {"age": age}])
        assert isinstance(login, Login)
        assert login.age == MAX_AGE_S


def test_a_hello_has_a_bound_of_its_own() -> None:
    link = Conversation(Limits())
    data = encode(["hello", "x" * 2 * HELLO_BYTES])
    assert [*link.receive(data[:HELLO_BYTES], 0.0)] == []
    (refusal,) = link.receive(b"x", 0.0)
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.fatal) == (Code.TOO_LARGE, True)
    assert f"hello, of at most {HELLO_BYTES} bytes" in refusal.message
    # What comes behind it may be larger.
    (ping,) = asked(link_of(), ["ping", "x" * 2 * HELLO_BYTES])
    assert isinstance(ping, Ping)


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
    assert answers[3] == Ack(5)
    assert link.n == 8


def test_an_error_that_no_frame_caused_has_the_number_of_frames_taken() -> None:
    assert Conversation(Limits()).close(Code.TOO_SLOW, "").n == 0
    link = link_of()
    asked(link, ["list"], ["list"])
    assert link.close(Code.REPLACED, "").n == 3


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
        (["after", "a", 0.09], "seconds is 0.09; it must be 0.1 to 31622400"),
        (
            ["after", "a", 5, {"payload": "é" * 2_049}],
            "payload has 4098 bytes; at most",
        ),
        (["cancel", {}], "cancel takes a key or an ext: one, not both"),
        (["done", "a", None, {"seq": 0}], "seq is 0; it must be a record's seq"),
    ],
)
def test_a_refused_timer_frame_says_what_is_right(
    frame: list[object], said: str
) -> None:
    (answer,) = asked(link_of(), frame)
    assert isinstance(answer, Refusal)
    assert said in answer.message


@pytest.mark.parametrize(
    ("uids", "conn", "said"),
    [
        ("a", 1.9e18, "conn is 1.9e+18, a float; it must be an integer. "),
        (["a", "b"], [7, 2.0**40], "conn 1 of the array (from 0) is 1.09951e+12, a "),
    ],
    ids=["one", "array"],
)
def test_a_conn_that_became_a_float_is_refused_with_the_cause(
    uids: object, conn: object, said: str
) -> None:
    (answer,) = asked(link_of(), ["login", uids, {"conn": conn}])
    assert isinstance(answer, Refusal)
    assert (answer.code, answer.index) == (Code.BAD_OPTION, None)
    assert answer.message.startswith(said)
    assert "doubles, which round them: choose conns below 2^53, and" in answer.message


@pytest.mark.parametrize("letters", [63, 65, 100_000])
def test_a_refusal_has_the_first_letters_of_a_long_frames_name(letters: int) -> None:
    (answer,) = asked(link_of(), ["x" * letters])
    assert isinstance(answer, Refusal)
    assert answer.frame == "x" * min(letters, 64)
    assert len(answer.message) < 300


@pytest.mark.parametrize(("name", "what"), [("login", "events"), ("done", "timers")])
def test_a_watcher_is_told_which_frames_it_may_not_send(name: str, what: str) -> None:
    hello = ["hello", {"protocol": 1, "name": "w", "role": "watcher"}]
    (answer,) = asked(link_of(hello), [name, "a"])
    assert isinstance(answer, Refusal)
    said = f"a watcher sends no {what}; say hello with role gateway"
    assert said in answer.message


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
