"""Sessions over a restart: each row and its clock become one entry, or none does."""

from array import array
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liveness.core.records import Instant, OnlineFields, Uid
from liveness.core.wheel.restart import Clocks, SessionRestorer, no_clocks
from liveness.core.wheel.table import Entry
from liveness.core.wheel.wheel import Wheel
from tests.core.conftest import RESTARTS, WHEELS, twin_of
from tests.helpers.strategies import BOUNDED, conns, examples, uids

# The wall clock is not the state's.
AT = Instant(5.0, 1_000.0, wall_ms=1_795_168_800_000, state_s=1_795_168_500.0)
NEXT_SEQ = 100
SOUND: OnlineFields = (7, "ann", AT.state_ms - 9_000, 1, "a", 4.5)
INF, NAN = float("inf"), float("nan")
IN_FORCE = {"a": 30.0, "b": 45.5, "é": 0.25}

seconds = st.floats(0, 90)
own_timeouts = st.sampled_from([None, None, 30.0, 86_400]) | st.floats(1e-3, 90)
starts = st.integers(AT.state_ms - 10**9, AT.state_ms + 10**6)
starts |= st.sampled_from([-(2**63), 2**63 - 1])
rows_of_sessions = st.dictionaries(
    st.integers(1, NEXT_SEQ - 1),
    st.tuples(uids, starts, conns, st.sampled_from([*IN_FORCE]), own_timeouts),
    max_size=30,
)
clocks_of_sessions = st.dictionaries(
    st.integers(1, NEXT_SEQ),
    st.tuples(st.sampled_from(sorted(IN_FORCE.values())), seconds, seconds),
    max_size=30,
)


class Restored:
    """A wheel after a restart, and what became of each gateway."""

    def __init__(
        self, wheel_class: type[Wheel], rows: Sequence[OnlineFields], clocks: Clocks
    ) -> None:
        self.wheel = wheel_class(timeout=30.0, slots=30, now=AT.now)
        self.restorer: SessionRestorer = twin_of(RESTARTS, wheel_class).SessionRestorer(
            clocks, at=AT, next_seq=NEXT_SEQ
        )
        self.stops = list[int]()  # where a gateway was unknown, or a user there before
        self.doubles = list[Entry]()  # of those users
        first, page = 0, [*rows]
        while (first := self.wheel.restore(self.restorer, page, first)) < len(page):
            self.stops.append(first)
            name = page[first][4]
            if name in self.restorer.gateways:
                self.doubles.append(self.wheel.close(page[first][1]))
                continue
            number = self.wheel.add_gateway()
            in_force = IN_FORCE.get(name, 1.0)
            self.restorer.add_gateway(name, number, in_force=in_force)

    def seen(self, who: Sequence[Uid]) -> str:
        """All there is to see; as text, where 1 is not 1.0 and "1"."""
        gateways = [
            (name, it.number, it.in_force, it.until, it.users)
            for name, it in self.restorer.gateways.items()
        ]
        clocks = self.wheel.clocks(AT.now + 1, AT.mono + 1)
        return repr(
            (self.stops, self.doubles, gateways, clocks, [*map(self.wheel.find, who)])
        )


@settings(BOUNDED, max_examples=examples(100))
@given(by_session=rows_of_sessions, of_clocks=clocks_of_sessions, away=seconds)
def test_both_wheels_restore_the_same(
    by_session: dict[int, Any], of_clocks: dict[int, Any], away: float
) -> None:
    rows = {uid: (n, uid, *rest) for n, (uid, *rest) in sorted(by_session.items())}
    in_order = sorted(rows.values(), key=itemgetter(0))
    columns = [*zip(*sorted((n, *c) for n, c in of_clocks.items()), strict=True)]
    sessions, timeouts, remaining, silences = columns or [()] * 4
    clocks = Clocks(
        array("q", sessions),
        array("d", timeouts),
        array("d", remaining),
        array("d", silences),
        array("b", (n % 4 for n in sessions)),
        away,
    )
    first, *others = [
        Restored(module.Wheel, in_order, clocks).seen([*rows]) for module in WHEELS
    ]
    assert all(other == first for other in others)


def test_a_row_without_a_clock_gets_the_timeout_that_was_promised(
    wheel_class: type[Wheel],
) -> None:
    rows = [SOUND, (8, "bob", AT.state_ms, None, "a", None)]
    restored = Restored(wheel_class, rows, no_clocks())
    ann, bob = map(restored.wheel.find, ("ann", "bob"))
    assert ann is not None
    assert bob is not None
    assert (ann.deadline, ann.timeout, ann.start, ann.event) == (9.5, 4.5, 991.0, 0)
    assert (bob.deadline, bob.timeout, bob.seen, bob.conn) == (35.0, 30.0, 1_000, None)
    gateway = restored.restorer.gateways["a"]
    assert (gateway.users, gateway.until) == (2, 35.0)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *[(0, NEXT_SEQ), (0, 0), (0, "7"), (0, 7.5), (0, None)],
        *[(1, ""), (1, b"\0"), (1, "a\x7f"), (2, 1.5), (2, "1"), (2, None)],
        *[(3, -1), (3, 2**63), (3, "1"), (4, ""), (4, "x" * 65), (4, "g\x07")],
        *[(4, b"a"), (4, 7), (4, None), (5, 0.0), (5, -1.0), (5, 86_401.0)],
        *[(5, NAN), (5, INF), (5, "4.5"), (5, b"4.5")],
    ],
)
def test_a_damaged_row_is_refused(
    wheel_class: type[Wheel], column: int, value: object
) -> None:
    damaged: Any = [*SOUND]
    damaged[column] = value
    with pytest.raises(ValueError, match=r"session|uid"):
        Restored(wheel_class, [tuple(damaged)], no_clocks())


def test_a_session_that_comes_twice_is_refused(wheel_class: type[Wheel]) -> None:
    with pytest.raises(ValueError, match="session 7 makes no sense"):
        Restored(wheel_class, [SOUND, (*SOUND[:1], "bob", *SOUND[2:])], no_clocks())
