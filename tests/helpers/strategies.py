"""What hypothesis draws for more than one test, and how long it may look."""

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import methodcaller
from typing import Any, Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

# Bounded by examples, never by the clock: a deadline fails on a busy machine.
BOUNDED: Final = settings(
    deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)


def examples(number: int) -> int:
    """Examples in the gate and for a mutant; a quarter of that in tests run by hand."""
    return number if {"CI", "MUTANT"} & os.environ.keys() else number // 4


# Users that a careless table, encoder or length check confuses or loses.
HARD_USERS: Final[tuple[str | int, ...]] = (
    7, "0", 1, 2**63 - 1, "a" * 255, "é" * 127 + "x", "👩‍🚀", " ", "é", "e\u0301",
    "9223372036854775808", "07", "-7", "7.0", "\u0667", "9" * 255,
)  # fmt: skip
# The same, and other names of some of them.
HARD_UIDS: Final = (*HARD_USERS, "7", 0, "9223372036854775807")

# What may stand where a uid is due and is none. Some are equal to a uid in Python.
NO_UIDS: Final[tuple[object, ...]] = (
    None, True, False, 1.0, 7.0, -1, -7, 2**63, "", "a" * 256, "é" * 128, "\0", "a\x1f", "\x7f", "é\x1f", "é\x7f",
    b"7", (), (7,), {}, {"7": 7}, float("nan"),
)  # fmt: skip

uids = st.one_of(
    st.sampled_from(HARD_UIDS),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**64).map(
        str
    ),  # of all but the largest, another name of an integer
    st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=60),
)
no_uids = st.sampled_from(NO_UIDS)
conns = st.none() | st.sampled_from([0, 1, 2, 2**63 - 1])

# Anything msgpack can carry, deeper than a frame may be.
plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=8),
    st.binary(max_size=8),
    uids,
)
values: st.SearchStrategy[Any] = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=12,
)
frames = st.lists(values, max_size=4)


def calls(name: str, *args: Any, **kwargs: Any) -> st.SearchStrategy[Any]:
    """Calls of a method, with arguments that are drawn; each is to be given its object."""
    return st.builds(methodcaller, st.just(name), *args, **kwargs)


def pieces(data: bytes, at: Sequence[int]) -> Iterator[bytes]:
    """Cut *data* at these places; places outside of it are ignored."""
    borders = sorted({0, len(data), *(place for place in at if 0 < place < len(data))})
    for start, stop in pairwise(borders):
        yield data[start:stop]


def singly(data: bytes) -> Iterator[bytes]:
    return pieces(data, range(len(data)))
