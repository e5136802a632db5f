"""Batches of records: the compiled one against its reference, and that against records."""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liveness.core.records import (
    GATEWAY_LOST,
    KINDS,
    LOGIN,
    LOGOUT,
    MOVED,
    OFFLINE,
    ONLINE,
    SILENCE,
    TIMER,
    Instant,
    Logged,
    Record,
    Subscription,
    TimerRecord,
    Uid,
)
from liveness.core.wheel.record_batch import Endings, Logins, Opening, RecordBatch
from liveness.core.wheel.wheel import Wheel
from liveness.core.wire.framing import decode, encode
from liveness.core.wire.uids import names_of
from tests.core.conftest import BATCHES, is_compiled, twin_of
from tests.helpers.strategies import BOUNDED, conns, uids

GATEWAYS: Final = ("g", "h", "é" * 100, "a gateway with a name of more than 31 bytes")
FIRST: Final = 40  # the seq of the first record

Entry = tuple[Logged, float, Opening | None]

stamps = st.integers(-5, 5) | st.integers(2**40, 2**41)
seconds = st.floats(allow_nan=False, width=64)


@pytest.fixture(scope="session", params=BATCHES, ids=is_compiled)
def make(request: pytest.FixtureRequest) -> Callable[[], RecordBatch]:
    """Each implementation of the batch."""
    made: Callable[[], RecordBatch] = request.param.RecordBatch
    return made


@st.composite
def entries(draw: st.DrawFn, *, first: int = FIRST, most: int = 12) -> list[Entry]:
    """Records, with what `append` takes beside each."""
    return [
        draw(entry(seq)) for seq in range(first, first + draw(st.integers(1, most)))
    ]


@st.composite
def entry(draw: st.DrawFn, seq: int) -> Entry:
    kind = draw(st.sampled_from([*KINDS, OFFLINE]))
    gateway = draw(st.sampled_from(GATEWAYS))
    due = draw(st.just(0.0) | st.floats(0.5, 1e6))
    if kind == TIMER:
        texts = st.none() | st.text(max_size=300)
        timer = TimerRecord(
            seq, TIMER, gateway, draw(st.text(max_size=40)), draw(texts), draw(texts),
            draw(stamps), draw(st.integers(1, 99)), draw(stamps),
        )  # fmt: skip
        return timer, due, None
    uid = draw(uids)
    session = draw(st.integers(0, seq - 1))  # a session is opened before it is closed
    seen = last = silence = None
    restored = False
    origin: tuple[str | None, int | None, int | None] = (None, None, None)
    reason = LOGIN
    opening = None
    if kind == OFFLINE:
        reason = draw(st.sampled_from([SILENCE, LOGOUT, GATEWAY_LOST]))
        silence = draw(st.none() | seconds)
        restored = draw(st.booleans())
        if not restored:
            seen, last = draw(stamps), draw(st.sampled_from(["keepalive", None]))
    elif kind == MOVED:
        sessions = st.none() | st.integers(FIRST - 3, seq - 1)
        origin = draw(st.sampled_from(GATEWAYS)), draw(sessions), draw(conns)
    if kind in (ONLINE, MOVED) and draw(st.booleans()):
        session = seq
        opening = Opening(draw(stamps), draw(st.none() | st.floats(0.5, 1e5)))
    sizes: tuple[int | None, int | None] = (None, None)
    if draw(st.booleans()):
        # A number has no separator, so all of it is its user.
        length = len(uid) if isinstance(uid, str) and len(names_of(uid)) == 1 else 0
        sizes = draw(st.integers(0, length)), draw(st.integers(0, 3))
    record = Record(
        seq, kind, uid, gateway, session, draw(conns), reason, draw(stamps), seen, last,
        silence, restored, *origin, *sizes,
    )  # fmt: skip
    return record, due, opening


names = st.none() | st.sampled_from([*GATEWAYS, "of none"])
subscriptions = st.builds(
    Subscription,
    names,
    st.frozensets(st.sampled_from([*KINDS, "gap"])),
    runs=names,
    uid=st.none() | uids,
    users=st.booleans(),
)


def filled(make: Callable[[], RecordBatch], given: Sequence[Entry]) -> RecordBatch:
    batch = make()
    for record, due, opening in given:
        batch.append(record, due=due, opening=opening)
    return batch


def seen_of(batch: RecordBatch) -> Iterator[Any]:
    """All that a batch says, but for readers."""
    yield [*batch]
    yield len(batch), batch[0], batch[-1], batch[1:3]
    yield batch.first, batch.last, batch.gateways, batch.due
    yield batch.packed(0, len(batch))
    yield batch.packed(len(batch) // 2, len(batch) + 5)
    yield batch.closed, batch.opened(), batch.timers


@BOUNDED
@given(entries(), subscriptions, st.integers(FIRST - 2, FIRST + 12), st.integers(1, 12))
def test_a_reader_gets_the_records_that_concern_it(
    make: Callable[[], RecordBatch],
    given: list[Entry],
    wanted: Subscription,
    after: int,
    limit: int,
) -> None:
    found = filled(make, given).encoded(after, wanted, limit=limit, own="g")
    concern = [
        (record, due)
        for record, due, _ in given
        if record.seq > after and wanted.wants(record)
    ][:limit]
    batch = filled(make, given)
    places = batch.places(after, wanted, limit=limit)
    assert [batch[place] for place in places] == [record for record, _ in concern]
    assert found.seqs == [record.seq for record, _ in concern]
    maps = [record.as_map() for record, _ in concern]
    assert found.maps == b"".join(map(encode, maps))
    assert found.deadlines == [
        due
        for record, due in concern
        if due and isinstance(record, Record) and record.gateway == "g"
    ]


@BOUNDED
@given(entries(most=9), st.data())
def test_batches_that_are_joined_are_like_one_and_give_their_records_back(
    make: Callable[[], RecordBatch], given: list[Entry], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(given)))
    joined = filled(make, given[:at])
    joined.encoded(0, Subscription("g", frozenset(KINDS)), limit=9)  # then it grows
    joined.extend(filled(make, given[at:]))
    whole = filled(RecordBatch, given)
    assert [*seen_of(joined)] == [*seen_of(whole)]
    records = [record for record, _, _ in given]
    newest = max(record.at for record in records)
    assert joined == records
    assert joined.packed(0, len(joined)) == (newest, encode(records))
    with pytest.raises(IndexError):
        joined[len(records)]
    wanted = data.draw(subscriptions)
    for most_bytes in (0, 200, inf):
        assert joined.encoded(
            0, wanted, limit=9, most_bytes=most_bytes
        ) == whole.encoded(0, wanted, limit=9, most_bytes=most_bytes)


def online(seq: int, uid: Uid = "ada") -> tuple[Record, float, Opening]:
    record = Record(seq, ONLINE, uid, "g", seq, None, LOGIN, 9)
    return record, 0.0, Opening(8, None)


def offline(seq: int, session: int, uid: str = "ada") -> Entry:
    record = Record(seq, OFFLINE, uid, "g", session, None, LOGOUT, 9, 9, LOGIN, 0.0)
    return record, 0.0, None


def timer(seq: int) -> TimerRecord:
    return TimerRecord(seq, TIMER, "g", "key", None, None, 9, 1, 9)


def test_a_session_that_opens_and_ends_in_a_batch_is_not_stored(
    make: Callable[[], RecordBatch],
) -> None:
    batch = filled(make, [online(7), offline(8, 7), online(9), offline(10, 3, "bob")])
    assert batch.opened() == [9, "ada", 8, None, "g", None]
    assert batch.closed == [7, 3]


def test_a_move_closes_one_session_and_opens_another(
    make: Callable[[], RecordBatch],
) -> None:
    move = Record(
        7, MOVED, "ada", "h", 7, 5, LOGIN, 9,
        from_gateway="g", from_session=3, from_conn=4,
    )  # fmt: skip
    batch = filled(make, [(move, 0.0, Opening(8, 2.5))])
    assert (batch.opened(), batch.closed) == ([7, "ada", 8, 5, "h", 2.5], [3])
    assert batch.gateways == {"g", "h"}


@pytest.mark.parametrize(
    ("uid", "expected"),
    [
        ("né/1", [0]),
        ("né", [0, 1, 2]),
        ("né/", []),
        (7, [3, 4, 5, 6]),
        ("7", [3, 4, 5, 6]),
        ("7/a", [5]),
        ("07", [7]),
        ("\ud800", []),
        (None, [*range(9)]),
    ],
)
def test_a_reader_of_a_user_gets_the_records_of_its_devices(
    make: Callable[[], RecordBatch], uid: Uid | None, expected: list[int]
) -> None:
    batch = make()
    devices: tuple[Uid, ...] = ("né/1", "né/2", "né", 7, "7", "7/a", 7, "07")
    sizes = (2, 2, 0, 0, None, 1, None, 0)
    for place, (device, size) in enumerate(zip(devices, sizes, strict=True)):
        record = online(FIRST + place, device)[0]
        batch.append(record._replace(user_size=size, devices=1), due=place + 0.5)
    batch.append(timer(FIRST + 8))
    wanted = Subscription(None, frozenset(KINDS), uid=uid)
    found = batch.encoded(0, wanted, limit=9, own="g")
    assert found.seqs == [FIRST + place for place in expected]
    assert found.deadlines == [place + 0.5 for place in expected if place < 8]


def test_a_page_of_many_records_is_whole(make: Callable[[], RecordBatch]) -> None:
    batch = filled(make, [online(seq, f"user-{seq}") for seq in range(1, 2**16 + 1)])
    _, page = batch.packed(0, 2**16)
    uids = [fields[2] for fields in decode(page)]
    assert uids == [f"user-{seq}" for seq in range(1, 2**16 + 1)]


def began(wheel_class: type[Wheel], at: Instant) -> tuple[Wheel, RecordBatch]:
    """A wheel with ada of gateway g, and the batch that has her login."""
    wheel = wheel_class(timeout=30.0, slots=30)
    batch: RecordBatch = twin_of(BATCHES, wheel_class).RecordBatch()
    number = wheel.add_gateway()
    logins = Logins(number, "g", ["ada"], [None], [None], 0.0, None, 1)
    wheel.begin(batch, logins, 0, limit=1, seq=1, at=at)
    return wheel, batch


def test_a_name_without_records_is_added_to_a_batch_that_was_read(
    wheel_class: type[Wheel],
) -> None:
    at = Instant(0.0, mono=0.0, wall_ms=0, state_s=0.0)
    wheel, batch = began(wheel_class, at)
    for name in ("g", *map(str, range(300))):
        endings = Endings(0, name, SILENCE, 0.0, 1, renewed=False)
        assert wheel.end(batch, endings, seq=2, at=at) == (0, 0, 0)
        found = batch.encoded(0, Subscription(name, frozenset(KINDS)), limit=1)
        assert found.seqs == ([1] if name == "g" else [])


def test_a_silence_of_a_rounding_below_zero_is_zero(wheel_class: type[Wheel]) -> None:
    at = Instant(0.0, mono=1.0, wall_ms=0, state_s=0.0)
    wheel, batch = began(wheel_class, at)
    wheel.advance(40.0, 10**6)
    endings = Endings(0, "g", SILENCE, 40.0, 1, renewed=False)
    wheel.end(batch, endings, seq=2, at=at._replace(mono=0.9997))
    assert repr(batch[1]).count("silence=0.0,") == 1
