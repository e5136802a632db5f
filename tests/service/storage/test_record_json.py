"""A record as JSON."""

import json

from hypothesis import given
from hypothesis import strategies as st

from liveness.core.records import MOVED, OFFLINE, ONLINE, Gap, Record, TimerRecord
from liveness.service.storage.record_json import record_json
from liveness.text import EXACT_IN_JSON, json_line, json_ready
from tests.helpers.strategies import BOUNDED

NUMBERS = st.sampled_from([0, 7, EXACT_IN_JSON, EXACT_IN_JSON + 1, 2**63 - 1])
# What `str.splitlines` and other readers take for the end of a line.
BREAKS = "Zoë\u2028/ph\u2029one\x85"
TEXTS = st.sampled_from(['a"b\\c', BREAKS, "int:7", "str:int:7"]) | st.text(min_size=1)
UIDS = NUMBERS | TEXTS
RECORDS = st.builds(
    Record,
    seq=st.integers(1, 2**63 - 1),
    kind=st.sampled_from([ONLINE, OFFLINE, MOVED]),
    uid=UIDS,
    gateway=TEXTS,
    session=NUMBERS,
    conn=st.none() | NUMBERS,
    reason=st.sampled_from(["login", "silence"]),
    at=NUMBERS,
    seen=st.none() | NUMBERS,
    last=st.none() | st.just("keepalive"),
    silence=st.none() | st.floats(0, 1e9),
    restored=st.booleans(),
    from_gateway=st.none() | TEXTS,
    from_session=st.none() | NUMBERS,
    from_conn=st.none() | NUMBERS,
    user_size=st.none() | st.integers(0, 1),
    devices=st.none() | st.integers(0, 3),
)


def slow(record: Record | TimerRecord | Gap) -> str:
    return json_line(json_ready(record.as_map()))


@BOUNDED
@given(RECORDS)
def test_a_record_has_the_json_of_its_map(record: Record) -> None:
    if isinstance(record.uid, int):
        record = record._replace(user_size=None)
    text = record_json(record)
    assert text == slow(record)
    assert text.splitlines() == [text]
    assert json.loads(text) == json_ready(record.as_map())


def test_a_timer_and_a_gap_are_written_too() -> None:
    timer = TimerRecord(1, "timer", "g", 'k"', BREAKS, None, 5, 1, 6)
    for record in (timer, Gap(1, 5, 6)):
        assert record_json(record) == slow(record)
