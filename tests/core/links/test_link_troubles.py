"""The table of the names that were refused or replaced."""

from typing import Final

from liveness.core.access import Peer
from liveness.core.links.link_troubles import (
    KEPT_MS,
    MOST_ROWS,
    LinkTrouble,
    LinkTroubles,
)
from liveness.errors import Code

T: Final = 1_795_168_800_000
ADA: Final = Peer(11, 1_001, frozenset())
EVE: Final = Peer(12, 1_002, frozenset())


def names(troubles: LinkTroubles, at: int = T) -> list[str | None]:
    return [row.name for row in troubles.recent(at)]


def test_a_row_counts_and_has_the_latest_time_and_process() -> None:
    troubles = LinkTroubles()
    troubles.note("gateway", "gw", Code.REPLACED, ADA, T)
    troubles.note("gateway", "other", Code.BAD_HELLO, ADA, T + 1)
    troubles.note("gateway", "gw", Code.REPLACED, EVE, T + 2)
    troubles.note("gateway", "gw", Code.NOT_ALLOWED, EVE, T + 3)
    troubles.note("watcher", "gw", Code.NOT_ALLOWED, ADA, T + 4)
    rows = [(row.role, row.what, row.code, row.times) for row in troubles.recent(T + 5)]
    assert rows == [
        ("watcher", "refused", "not-allowed", 1),
        ("gateway", "refused", "not-allowed", 1),
        ("gateway", "replaced", "replaced", 2),
        ("gateway", "refused", "bad-hello", 1),
    ]
    assert troubles.recent(T + 5)[2].as_map(100) == {
        "role": "gateway", "name": "gw", "what": "replaced", "code": "replaced",
        "since": T + 100, "at": T + 102, "times": 2, "pid": 12, "unix_user": 1_002,
    }  # fmt: skip


def test_links_without_a_hello_have_a_row_for_each_user() -> None:
    troubles = LinkTroubles()
    for peer in (ADA, EVE, ADA):
        troubles.note(None, None, Code.NOT_ALLOWED, peer, T)
    found = [(row.name, row.unix_user, row.times) for row in troubles.recent(T)]
    assert found == [(None, 1_001, 2), (None, 1_002, 1)]


def test_a_row_is_gone_an_hour_after_its_latest_time_and_then_begins_anew() -> None:
    troubles = LinkTroubles()
    troubles.note("gateway", "gw", Code.REPLACED, ADA, T)
    troubles.note("gateway", "gw", Code.REPLACED, ADA, T + 1_000)
    assert names(troubles, T + 1_000 + KEPT_MS - 1) == ["gw"]
    assert names(troubles, T + 1_000 + KEPT_MS) == []
    troubles.note("gateway", "gw", Code.REPLACED, ADA, T + 2 * KEPT_MS)
    (row,) = troubles.recent(T + 2 * KEPT_MS)
    assert (row.times, row.since) == (1, T + 2 * KEPT_MS)


def test_any_number_of_names_leaves_the_latest_hundred() -> None:
    troubles = LinkTroubles()
    for n in range(MOST_ROWS):
        troubles.note("gateway", f"gw-{n}", Code.NOT_ALLOWED, ADA, T + n)
    troubles.note("gateway", "gw-0", Code.NOT_ALLOWED, ADA, T + MOST_ROWS)
    troubles.note("gateway", "new", Code.NOT_ALLOWED, ADA, T + MOST_ROWS)
    found: list[LinkTrouble] = troubles.recent(T + MOST_ROWS)
    assert len(found) == MOST_ROWS
    assert [row.name for row in found[:2]] == ["new", "gw-0"]
    assert found[-1].name == "gw-2"
