"""Where a link begins to read the log, and what its welcome says."""

from typing import Any

import pytest

from liveness.core.cursors import CursorRow
from liveness.core.effects import SearchSkipped
from liveness.core.links.handshake import SkippedRanges
from liveness.core.links.link import Link
from liveness.core.records import SAME_CLOCK_S, HostReading, HostTime, Subscription
from liveness.core.wire.framing import decode, encode
from tests.core.server_shell import Shell, hello

KEY = ("gateway", "g")
NEWEST = 10


@pytest.fixture
def shell() -> Shell:
    """A log of ten records, of which the first two were trimmed; it continues another."""
    made = Shell()
    made.decided.next_seq = NEWEST + 1
    made.disk.first = 3
    made.disk.log, made.disk.ancestors = "this", {"before": 5}
    return made


def joined(shell: Shell, **options: Any) -> tuple[Link, dict[str, Any]]:
    """A link whose hello has these options; the terms of its welcome."""
    link = shell.connect()
    effects = shell.says(link, hello("g", **options))
    shell.server.reset_sessions(shell.at)  # nobody is online: it is welcomed at once
    effects += shell.effects()
    shell.write()
    (_, terms) = decode(link.outbox.take_frames())
    terms["searches"] = any(isinstance(it, SearchSkipped) for it in effects)
    return link, terms


@pytest.mark.parametrize(
    ("options", "position"),
    [
        ({}, NEWEST),
        ({"after": 0}, 0),
        ({"after": 7, "log": "this"}, 7),
        ({"after": NEWEST, "log": "this"}, NEWEST),
        ({"after": NEWEST + 1, "log": "this"}, 2),  # the log has lost records
        ({"after": 7, "log": "before"}, 5),
        ({"after": 4, "log": "before"}, 4),
        ({"after": 7, "log": "unknown"}, 2),
    ],
    ids=lambda it: "-".join(map(str, it.values())) if isinstance(it, dict) else str(it),
)
def test_a_reader_begins_where_it_asks_if_the_log_is_this_one_or_a_former(
    shell: Shell, options: dict[str, Any], position: int
) -> None:
    link, terms = joined(shell, role="watcher", ack=False, **options)
    assert shell.reading_of(link).seq == position
    assert (terms["log"], terms["next"]) == ("this", NEWEST + 1)
    assert "known" not in terms
    assert shell.cursors == {}


@pytest.mark.parametrize("role", ["gateway", "watcher"])
def test_a_known_name_goes_on_at_its_cursor_and_a_new_one_at_the_end(
    shell: Shell, role: str
) -> None:
    link, terms = joined(shell, role=role)
    assert (shell.reading_of(link).seq, terms["known"]) == (NEWEST, False)
    assert shell.cursors[role, "g"].seq == NEWEST
    shell.server.closed(link)
    shell.cursors[role, "g"] = CursorRow(4, 0, None)
    link, terms = joined(shell, role=role)
    assert (shell.reading_of(link).seq, terms["known"]) == (4, True)
    shell.server.closed(link)
    link, _ = joined(shell, role=role, after=6, log="this")
    assert (shell.reading_of(link).seq, shell.cursors[role, "g"].seq) == (6, 4)


def test_a_cursor_keeps_the_timeouts_of_its_gateway(shell: Shell) -> None:
    _, terms = joined(shell, timeout=45)
    assert terms["timeout"] == 45
    row = shell.cursors[KEY]
    assert (row.timeout, row.in_force) == (45, 45)
    shell = Shell()
    _, terms = joined(shell)
    assert (terms["timeout"], shell.cursors[KEY].timeout) == (30, None)


@pytest.mark.parametrize(
    ("cursor", "sent", "fresh", "skipped"),
    [
        (4, None, True, (4, NEWEST)),
        # It was sent some more, and did not acknowledge them.
        (4, 6, True, (6, NEWEST)),
        (4, None, False, None),
        (NEWEST, None, True, None),
        (None, None, False, (None, NEWEST)),  # its name was forgotten
    ],
)
def test_what_a_gateway_skips_of_the_log_is_searched_for_its_timers(
    shell: Shell,
    cursor: int | None,
    sent: int | None,
    fresh: bool,
    skipped: tuple[int | None, int] | None,
) -> None:
    if cursor is not None:
        shell.cursors[KEY] = CursorRow(cursor, 0, None)
        shell.cursors.note_sent("g", sent)
    link, terms = joined(shell, fresh=fresh)
    if fresh:
        assert shell.cursors[KEY].seq == shell.reading_of(link).seq == NEWEST
    assert shell.parts.skipped.get("g") == skipped
    assert terms["searches"] is (skipped is not None)


def test_a_gateway_reads_its_timers_and_what_it_asks_for(shell: Shell) -> None:
    link, _ = joined(shell, kinds=["online"])
    wanted = shell.reading_of(link).wanted
    assert wanted == Subscription("g", frozenset({"online"}), runs="g")
    link, _ = joined(shell, role="watcher", users=True)
    wanted = shell.reading_of(link).wanted
    assert (wanted.gateway, wanted.runs, wanted.users) == (None, None, True)
    for role, scope, gateway in (("gateway", "all", None), ("watcher", "own", "g")):
        other = Shell()
        link, _ = joined(other, role=role, scope=scope)
        assert other.reading_of(link).wanted.gateway == gateway


@pytest.mark.parametrize(
    "shift", [0.0, SAME_CLOCK_S - 0.001, SAME_CLOCK_S + 0.001, -3_600.0, None]
)
def test_a_welcome_says_whether_the_beginnings_of_logins_are_used(
    shell: Shell, shift: float | None
) -> None:
    theirs = [500.0, 1_000.0]
    ours = None
    if shift is not None:
        ours = HostReading(HostTime(700.0 + shift, 1_200.0), offset=30.0)
    link = shell.connect()
    data = encode(hello("g", clock=theirs))
    shell.server.received(link, data, shell.at, ours)
    shell.effects()
    shell.write()
    (_, terms) = decode(link.outbox.take_frames())
    is_ours = shift is not None and 0 <= shift < SAME_CLOCK_S
    assert terms["began"] is is_ours
    assert link.gateway is not None
    assert link.gateway.clock_offset == (-30.0 if is_ours else None)


def test_what_was_skipped_twice_is_one_range_until_it_was_searched() -> None:
    skipped = SkippedRanges()
    assert not skipped.add("g", after=5, until=5)
    assert skipped.add("g", after=2, until=5)
    assert skipped.add("g", after=7, until=9)
    assert skipped == {"g": (2, 9)}
    skipped.searched("g", 6)
    assert skipped == {"g": (6, 9)}
    skipped.searched("g", 9)
    assert skipped == {}


def test_what_was_skipped_was_not_delivered() -> None:
    skipped = SkippedRanges({"g": (2, 9), "forgotten": (None, 9)})
    names = ("g", "forgotten", "other")
    assert [skipped.delivered(name, 7) for name in names] == [2, 0, 7]
    assert skipped.delivered("g", 1) == 1
