"""Commands for timers: the compiled code behaves like its reference in Python.

That the reference is right is for the tests of timers' states and of their scheduler,
which run with both.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.core.timer_states import (
    FIRED,
    LIVE,
    PENDING,
    SHORT_CHARACTERS,
    STATES,
    CancelTimer,
    CompleteTimer,
    CreateTimer,
    Fire,
    GiveUp,
    LookLater,
    RetryPolicy,
    RetryTimer,
    TimerCommand,
    TimerState,
    Undelivered,
)
from liveness.core.timers import timer_commands
from liveness.core.wire.link_requests import After, Answer, Cancel
from tests.helpers.strategies import BOUNDED

_compiled: Any = pytest.importorskip(
    "liveness.core.timers._timer_commands", exc_type=ImportError
)

POLICY: Final = RetryPolicy(2_000, (500, 70_000))
FIRST_NEW: Final = 100  # the id of the first timer that is not in the table yet

# Few names and small numbers, so that commands meet the same timers.
gateways = st.sampled_from("gh")
keys = st.sampled_from("abc")
exts = st.sampled_from("xyz")
seqs = st.integers(1, 6)
moments = st.integers(-3, 2**45)
texts = st.none() | st.sampled_from(
    ["", "é", "é" * (SHORT_CHARACTERS - 1), "é" * SHORT_CHARACTERS, "é" * 3_000]
)


@st.composite
def rows(draw: st.DrawFn) -> list[list[Any]]:
    """Rows as the table may have them: the newest of a key, and others of an ext."""
    found = []
    for number in range(1, draw(st.integers(0, 6)) + 1):
        state = draw(st.sampled_from(STATES))
        has_attempt = state == FIRED or draw(st.booleans())
        attempts = draw(st.integers(1, 4)) if has_attempt else 0
        timer = TimerState(
            number, draw(gateways), draw(keys), draw(st.none() | exts), state,
            draw(moments), draw(moments) if state in LIVE else None, attempts,
            draw(st.just(0) | seqs) if has_attempt else None, draw(seqs), draw(texts),
            draw(moments), draw(moments) if has_attempt else None, draw(moments),
        )  # fmt: skip
        found.append([*timer])
    return found


@st.composite
def commands(draw: st.DrawFn, *, most: int = 12) -> list[TimerCommand]:
    return [draw(command(FIRST_NEW + at)) for at in range(draw(st.integers(0, most)))]


@st.composite
def command(draw: st.DrawFn, number: int) -> TimerCommand:
    kind = draw(
        st.sampled_from(
            [
                *(CreateTimer, CancelTimer, CompleteTimer, Fire),
                *(GiveUp, LookLater, Undelivered, RetryTimer),
            ]
        )
    )
    gateway, key, at = draw(gateways), draw(keys), draw(moments)
    if kind is CreateTimer:
        timer = TimerState(
            number, gateway, key, draw(st.none() | exts), PENDING, at + 5, at + 5, 0,
            None, draw(seqs), None, at, None, at,
        )  # fmt: skip
        return CreateTimer(timer, draw(texts))
    if kind is CancelTimer:
        below = draw(st.sampled_from([4, number, 10**9]))
        if draw(st.booleans()):
            return CancelTimer(gateway, key, None, below, at)
        return CancelTimer(gateway, None, draw(exts), below, at)
    if kind is CompleteTimer:
        return CompleteTimer(
            gateway, key, draw(st.none() | seqs), draw(st.booleans()), draw(texts),
            draw(st.booleans()), at,
        )  # fmt: skip
    if kind is Fire:
        return Fire(gateway, key, draw(st.integers(1, 5)), draw(seqs), at)
    if kind is RetryTimer:
        return RetryTimer(gateway, key, at)
    other: Callable[..., TimerCommand] = kind
    return other(gateway, key, draw(seqs), at)


@dataclass
class Pair:
    """Both of a class, which must answer alike."""

    reference: Any
    compiled: Any

    def same(self, method: str, *args: Any, **options: Any) -> Any:
        """Call a method of both."""
        answer = getattr(self.reference, method)(*args, **options)
        # As text, in which 1 and True differ, and two kinds of named tuples.
        assert repr(getattr(self.compiled, method)(*args, **options)) == repr(answer)
        return answer


MODULES: Final = Pair(timer_commands, _compiled)


@BOUNDED
@given(commands=commands(), found=rows())
def test_transactions_are_the_same(
    commands: list[TimerCommand], found: list[list[Any]]
) -> None:
    reference = timer_commands.TimerTransaction(commands, found, POLICY)
    compiled = _compiled.TimerTransaction(commands, found, POLICY)
    for name in (
        *("changed", "payloads", "added_values", "changed_values", "ended_values"),
        *("results", "states"),
    ):
        mine, of_reference = getattr(compiled, name), getattr(reference, name)
        assert mine == of_reference, name
        assert type(mine) is type(of_reference), name
        if isinstance(mine, list):
            assert repr(mine) == repr(of_reference), name


@BOUNDED
@given(commands=commands())
def test_groups_and_what_they_name_are_the_same(commands: list[TimerCommand]) -> None:
    MODULES.same("by_gateway", commands)
    MODULES.same("named_by", commands)


requests = st.lists(
    st.builds(After, keys, st.floats(0.1, 4e7), texts, st.none() | exts)
    | st.builds(Cancel, keys, st.none())
    | st.builds(Cancel, st.none(), exts)
    | st.builds(
        Answer, keys, st.booleans(), texts, st.booleans(), st.none() | st.integers(1)
    ),
    max_size=12,
)


@BOUNDED
@given(
    at_s=st.floats(0, 1e10),
    batches=st.lists(st.tuples(gateways, requests, st.integers(0, 12)), max_size=4),
    others=commands(most=4),
    settled=st.integers(0, 60),
)
def test_commands_under_way_are_the_same(
    at_s: float,
    batches: list[tuple[str, list[After | Cancel | Answer], int]],
    others: list[TimerCommand],
    settled: int,
) -> None:
    both = Pair(timer_commands.CommandsUnderWay(), _compiled.CommandsUnderWay())
    issued = [*others]
    for other in others:
        both.same("issue", other)
    for gateway, requested, most_new in batches:
        issued += both.same(
            "requested",
            gateway,
            requested,
            min(1, len(requested)),
            at_s=at_s,
            next_id=FIRST_NEW + len(issued),
            next_seq=len(issued),
            most_new=most_new - 1,
        )
    both.same("settle", issued[:settled])
    assert both.compiled.new == both.reference.new
    for gateway in "ghi":
        for key in "abcd":
            for ext in (None, *"xyzw"):
                both.same("has", gateway, key, ext)
    both.same("settle", issued[settled:])
    assert both.compiled.new == both.reference.new == 0
    with pytest.raises(KeyError):
        both.compiled.settle([CancelTimer("g", "a", None, 1, 1)])
