"""The lines of another detector: valid ones, and the messages about others."""

import json
import re
from io import BytesIO

import pytest

from liveness.lab.compare.comparison import Line
from liveness.lab.compare.offline_lines import MAX_LINE_BYTES, LineReader, offline_in
from tests.helpers.strategies import NO_UIDS

AT = 1_789_000_030_004


@pytest.mark.parametrize(
    ("at", "found"),
    [
        ("1789000030004.4", AT),
        ("1789000030.004", AT),
        ('"2026-09-10 02:27:10.004+02:00"', AT),
        ("1000000000", 10**12),
        ("9999999999999", 10**13 - 1),
    ],
)
def test_a_time_is_understood_in_each_of_its_forms(at: str, found: int) -> None:
    line = f'{{"at": {at}, "level": "info", "uid": "ada"}}\r'
    for mark in ("", "\ufeff"):  # the first line may begin with the mark of UTF-8
        assert offline_in(f"{mark}{line}".encode()) == ("ada", found)


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        ('["ada", 1789000030004]', "it is not a JSON object"),
        ("[" * 50_000, "it is not a JSON object"),
        ('{"uid": "\udcff", "at": 1789000030004}', "it is not a JSON object"),  # no UTF-8
        ('{"at": 1789000030004}', 'it has no "uid"'),
        ('{"uid": "ada"}', 'it has no "at"'),
        ('{"uid": 1.5, "at": 1789000030004}', '"uid" is 1.5: it must be'),
        *((f'{{"uid": "ada", "at": {at}}}', f'"at" is {at}: it must be Unix milliseconds')
          for at in ("true", "NaN", "999999999", "10000000000", '"2026-09-10T00:27:10"', '"9999-12-31T23:59:59+00:00"')),
        *((json.dumps({"uid": value, "at": AT}), "uid") for value in NO_UIDS if not isinstance(value, bytes)),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_line_is_said(line: str, warning: str) -> None:
    with pytest.raises(ValueError, match=re.escape(warning)):
        offline_in(line.encode(errors="surrogateescape"))


class Pieces(BytesIO):
    """A file that is read in pieces of at most that many bytes."""

    def readline(self, size: int | None = -1, /) -> bytes:
        assert size == MAX_LINE_BYTES
        return super().readline(size)


def test_a_line_that_is_too_long_is_one_bad_line_and_never_in_memory() -> None:
    reader, good = LineReader(lambda _: None), b'{"uid": "ada", "at": %d}\n' % AT
    file = Pieces(b"x" * 3 * MAX_LINE_BYTES + good + good)
    assert [*reader.read(file)] == [Line(2, AT, "ada")]
    assert (reader.lines, reader.bad) == (2, 1)


def test_ten_wrong_lines_are_reported_and_the_others_counted() -> None:
    warnings, good = list[str](), f'{{"uid": "ada", "at": {AT}}}'.encode()
    reader = LineReader(warnings.append)
    found = [*reader.read(BytesIO(b"\n" + b"x\n" * 11 + good))]
    assert found == [Line(13, AT, "ada")]
    assert warnings[0].startswith("line 2 is left out: it is not a JSON object such as")
    assert warnings[10:] == ["further lines that are left out are only counted"]
    assert (reader.lines, reader.bad) == (13, 11)
