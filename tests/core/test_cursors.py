"""Cursors never move back, and what changes of them is written."""

import pytest

from liveness.core.cursors import CursorRow, Cursors

G, W = ("gateway", "g"), ("watcher", "w")


@pytest.fixture
def cursors() -> Cursors:
    """One of a gateway and one of a watcher, at seq 5."""
    return Cursors({G: CursorRow(5, 100, 30.0, 30.0), W: CursorRow(5, 100, None)})


def test_a_cursor_moves_on_and_never_back(cursors: Cursors) -> None:
    for seq in (4, 5):
        cursors.move(G, seq, 200)
    assert not cursors.has_moved
    cursors.move(G, 6, 200)
    cursors.move(("gateway", "forgotten"), 6, 200)
    assert cursors.has_moved
    assert cursors.take_moved() == {G: CursorRow(6, 200, 30.0, 30.0)}
    assert not cursors.has_moved


def test_a_name_that_says_hello_again_keeps_its_place(cursors: Cursors) -> None:
    for seq, place in ((3, 5), (8, 8)):
        cursors.introduce(G, seq=seq, timeout=7.0, in_force=9.0, at_ms=200)
        assert cursors[G] == CursorRow(place, 200, 7.0, 9.0)


def test_the_longest_timeout_is_written_when_it_changes(cursors: Cursors) -> None:
    for timeout in (30.0, 60.0):
        cursors.store_longest_timeout("g", timeout)
        cursors.store_longest_timeout("forgotten", timeout)
    assert cursors.take_moved() == {G: CursorRow(5, 100, 30.0, 60.0)}


def test_the_latest_seq_that_was_sent_is_known_of_gateways(cursors: Cursors) -> None:
    for seq in (7, 6, None):
        cursors.note_sent("g", seq)
    cursors.note_sent("forgotten", 7)
    assert cursors.sent == {"g": 7}
    cursors.forget(G)
    assert cursors.sent == {}


def test_a_use_is_written_from_time_to_time(cursors: Cursors) -> None:
    cursors.note_use(G, 200, every_ms=100)
    cursors.note_use(("gateway", "forgotten"), 900, every_ms=100)
    assert not cursors.has_moved
    cursors.note_use(G, 201, every_ms=100)
    assert cursors.take_moved() == {G: CursorRow(5, 201, 30.0, 30.0)}


def test_a_name_that_is_forgotten_is_deleted_on_disk_too(cursors: Cursors) -> None:
    cursors.forget(W)
    cursors.forget(W)
    assert cursors.take_moved() == {W: None}
    assert [*cursors] == [G]


def test_idle_names_that_the_disk_has_deleted_are_forgotten(cursors: Cursors) -> None:
    cursors.forget_idle({W}, 100)
    assert [*cursors] == [G, W]  # used since
    cursors.forget_idle({W}, 101)
    assert [*cursors] == [W]
    assert not cursors.has_moved
