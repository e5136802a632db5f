"""LineSplitter of another detector: what is understood, and what is said of the rest."""

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from liveness.lab.compare.offline_lines import MAX_LINE_BYTES, LineSplitter, offline_in
from liveness.text import json_ready
from tests.helpers.strategies import BOUNDED, NO_UIDS, pieces, uids

AT = 1_789_000_030_004


@pytest.mark.parametrize(
    ("at", "found"),
    [
        ("1789000030004", AT),
        ("1789000030004.4", AT),
        ("1789000030", AT - 4),
        ("1789000030.004", AT),
        ('"2026-09-10T00:27:10.004Z"', AT),
        ('"2026-09-10 02:27:10.004+02:00"', AT),
        ("1000000000", 10**12),
        ("9999999999999", 10**13 - 1),
    ],
)
def test_a_time_is_understood_in_each_of_its_forms(at: str, found: int) -> None:
    line = f'{{"at": {at}, "level": "info", "uid": "ada"}}\r'
    assert offline_in(line.encode()) == ("ada", found)


def test_the_first_line_may_begin_with_the_mark_of_utf_8() -> None:
    line = f'\ufeff{{"at": {AT}, "uid": "ada"}}'
    assert offline_in(line.encode()) == ("ada", AT)


@BOUNDED
@given(uids)
def test_every_user_is_told_apart_as_in_our_own_lines(uid: str | int) -> None:
    line = json.dumps(json_ready({"uid": uid, "at": AT}))
    found, _ = offline_in(line.encode())
    assert (found, type(found)) == (uid, type(uid))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("ada", 'it is not a JSON object such as {"uid": "ada", "at": 1789000030004}'),
        ('["ada", 1789000030004]', "it is not a JSON object"),
        ('{"uid": "ada", "at": 1789000030004', "it is not a JSON object"),
        ("[" * 50_000, "it is not a JSON object"),
        ('{"at": 1789000030004}', 'it has no "uid"'),
        ('{"uid": "ada"}', 'it has no "at"'),
        ('{"uid": null, "at": 1789000030004}', '"uid" is null: it must be a string, or an integer from 0 to 2^63-1'),
        ('{"uid": 9223372036854775808, "at": 1789000030004}', '"uid" is 9223372036854775808: it must be a string, or an integer from 0 to 2^63-1'),
        ('{"uid": 1.5, "at": 1789000030004}', '"uid" is 1.5: it must be'),
        ('{"uid": "", "at": 1789000030004}', "'' is no uid: a string of 1 to 255 bytes"),
        *((f'{{"uid": "ada", "at": {at}}}', f'"at" is {at}: it must be Unix milliseconds (1789000030004), Unix seconds (1789000030.004), or ISO 8601 with a zone (')
          for at in ("true", "null", "[]", "NaN", "Infinity", "0", "-1", "999999999", "10000000000", "1789000030004000", '"1789000030004"', '"2026-09-10T00:27:10"', '"14:03"', '"9999-12-31T23:59:59+00:00"')),
        ('{"uid": "ada", "at": 1e400}', '"at" is Infinity'),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_line_is_said(line: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        offline_in(line.encode())


@pytest.mark.parametrize(
    "value", [value for value in NO_UIDS if not isinstance(value, bytes)]
)
def test_no_uid_is_taken_for_one(value: object) -> None:
    with pytest.raises(ValueError, match="uid"):
        offline_in(json.dumps({"uid": value, "at": AT}).encode())


def test_bytes_that_are_no_text_are_no_line_of_ours() -> None:
    with pytest.raises(ValueError, match="not a JSON object"):
        offline_in(b'{"uid": "\xff", "at": 1789000030004}')


def shortly(lines: list[bytes | None]) -> list[tuple[int, bytes] | None]:
    """How long they are and how they begin: to set long ones side by side takes minutes."""
    return [None if it is None else (len(it), it[:2]) for it in lines]


@BOUNDED
@example([b"y" * (MAX_LINE_BYTES + 1)], b"", [])
@example([], b"z" * (2 * MAX_LINE_BYTES), [])
@given(
    st.lists(st.sampled_from([b"", b"a", b"bc\r", b"x" * MAX_LINE_BYTES, b"y" * (MAX_LINE_BYTES + 1)])),
    st.sampled_from([b"", b"end", b"z" * (2 * MAX_LINE_BYTES)]),
    st.lists(st.integers(0, 8 * MAX_LINE_BYTES)),
)  # fmt: skip
def test_lines_are_the_same_however_they_are_read(
    lines: list[bytes], rest: bytes, at: list[int]
) -> None:
    data = b"".join(line + b"\n" for line in lines) + rest
    reader, found = LineSplitter(), list[bytes | None]()
    for piece in pieces(data, at):
        found += reader.feed(piece)
    found += reader.end()
    told = [*lines, *filter(None, [rest])]
    expected = [it if len(it) <= MAX_LINE_BYTES else None for it in told]
    assert shortly(found) == shortly(expected)
    with pytest.raises(ValueError, match="more than 65536 bytes"):
        offline_in(None)
