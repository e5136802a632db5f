"""How many links there may be, and which of them end when there are too many."""

from typing import Any, Final

from liveness.core.access import Peer
from liveness.core.effects import Close, LogLine
from liveness.core.links.link import Link
from liveness.core.links.link_troubles import (
    KEPT_MS,
    MOST_ROWS,
    LinkTrouble,
    LinkTroubles,
)
from liveness.core.wire.framing import decode, encode
from liveness.errors import Code
from tests.core.server_shell import Shell, hello


def refusal_of(link: Link) -> Any:
    """The code of a link's last frame; None if it has none."""
    if not link.outbox.last_frame:
        return None
    _, shown = decode(link.outbox.last_frame)
    return shown.get("code") or shown["reason"]


def says(shell: Shell, **options: Any) -> str | None:
    """Say hello on a new link; the limit that refuses it, if any."""
    before = shell.counts.limits_met.copy()
    shell.says(shell.connect(), hello(**options))
    return next(iter(shell.counts.limits_met - before), None)


def test_above_max_links_a_link_is_refused_before_its_hello() -> None:
    shell = Shell(max_links=2)
    links = [shell.connect() for _ in range(3)]
    assert [refusal_of(link) for link in links] == [None, None, "overloaded"]
    assert +shell.counts.limits_met == {"limits.max_links": 1}
    for link in links[1:]:
        shell.server.closed(link)
    assert shell.connect().is_open


def test_above_max_gateways_only_names_that_are_linked_and_watchers_come() -> None:
    shell = Shell(max_gateways=2)
    shell.gateway("g")
    assert says(shell, name="h") is None
    assert says(shell, name="i") == "limits.max_gateways"
    assert says(shell, name="h") is None
    assert says(shell, name="i", role="watcher") is None


def test_above_max_names_only_known_ones_and_those_without_a_cursor_come() -> None:
    shell = Shell(max_names=2)
    shell.server.closed(shell.gateway("g"))
    assert says(shell, name="w", role="watcher") is None
    assert says(shell, name="v", role="watcher", ack=False) is None
    assert says(shell, name="v", role="watcher") == "limits.max_names"
    for options in ({}, {"ack": False}):
        assert says(shell, name="h", **options) == "limits.max_names"
    assert says(shell, name="g") is None


def expire(shell: Shell) -> list[int]:
    """End links without a hello; the numbers of those that are expired."""
    registry, now = shell.parts.registry, shell.attended.now
    expired = registry.expired_handshakes(now)
    for link in expired:
        registry.expire_handshake(link, now)
    return [link.number for link in expired]


def test_a_link_without_a_hello_ends_when_its_time_is_up() -> None:
    shell = Shell(hello_s=5.0)
    said = shell.gateway()
    link = shell.connect()
    shell.lets_pass(5)
    assert expire(shell) == []
    shell.lets_pass(0.1)
    assert expire(shell) == [link.number]
    assert (refusal_of(link), said.is_open) == ("too-slow", True)
    assert +shell.counts.limits_met == {"limits.hello_s": 1}
    assert expire(shell) == []


def test_of_too_many_links_without_a_hello_the_newest_stay() -> None:
    shell = Shell(max_handshakes=4)
    links = [shell.connect() for _ in range(4)]
    assert expire(shell) == []
    links.append(shell.connect())
    assert shell.parts.registry.is_crowded
    assert expire(shell) == [1, 2]
    assert [link.is_open for link in links] == [False, False, True, True, True]
    assert refusal_of(links[0]) == "overloaded"
    assert +shell.counts.limits_met == {"limits.max_handshakes": 2}


def test_the_newest_of_those_without_a_hello_always_stays() -> None:
    shell = Shell(max_handshakes=1)
    links = [shell.connect() for _ in range(2)]
    assert expire(shell) == [1]
    assert links[1].is_open


def test_a_link_that_says_hello_or_ends_in_the_last_moment_is_not_refused() -> None:
    shell = Shell(hello_s=5.0)
    link, other = shell.connect(), shell.connect()
    shell.lets_pass(6)
    expired = shell.parts.registry.expired_handshakes(shell.attended.now)
    assert expired == [link, other]
    shell.says(link, hello())
    shell.server.closed(other)
    for late in expired:
        shell.parts.registry.expire_handshake(late, shell.attended.now)
    assert (link.is_open, other.is_open) == (True, False)
    assert not shell.counts.refused.total()


def test_a_link_that_cannot_be_written_to_is_sent_nothing_more() -> None:
    shell = Shell()
    link = shell.gateway()
    link.outbox.broken()
    shell.parts.registry.send(link, ["pong", "x" * 9_000])
    assert shell.parts.unread.memory == 0


def test_the_log_says_why_a_link_has_ended() -> None:
    shell = Shell()
    link = shell.gateway()
    shell.server.effects.clear()
    shell.parts.registry.end(link, why="a test")
    (line,) = [it for it in shell.server.effects if isinstance(it, LogLine)]
    assert (line.message, line.fields["why"]) == ("link down", "a test")


def test_a_name_is_in_use_while_it_is_linked_or_has_users() -> None:
    shell = Shell()
    registry = shell.parts.registry
    link = shell.gateway()
    shell.says(link, ["login", ["u", "v"]])
    assert registry.names_in_use() == [("gateway", "g")] * 2
    assert registry.why_in_use("gateway", "g") == "is connected; stop it first"
    assert (registry.linked("gateway"), registry.linked("watcher")) == (1, 0)
    shell.server.closed(link)
    assert "has 2 users online" in (registry.why_in_use("gateway", "g") or "")
    assert registry.why_in_use("watcher", "g") is None
    shell.says(shell.gateway(), ["logout", ["u", "v"]])
    registry.end_all("a test")
    assert registry.why_in_use("gateway", "g") is None
    assert registry.names_in_use() == []


def test_at_the_end_links_that_said_hello_are_told_why() -> None:
    shell = Shell()
    links = [shell.gateway(), shell.connect()]
    shell.parts.registry.end_all("a test")
    assert [refusal_of(link) for link in links] == ["a test", None]
    assert shell.effects() == [Close(1), Close(2)]
    shell.parts.registry.end_all("again")
    assert refusal_of(links[0]) == "a test"


def unread(shell: Shell, name: str, size: int) -> Link:
    """A gateway that reads nothing of an answer of this size."""
    link = shell.gateway(name)
    shell.says(link, ["ping", "x" * size])
    link.outbox.blocked(True)
    return link


def test_if_all_leave_too_much_unread_those_with_most_end() -> None:
    shell = Shell(max_unread_bytes=10_000)
    links = [unread(shell, name, 100 * n) for n, name in enumerate("ghi", 50)]
    reads = shell.gateway("j")
    shell.says(reads, ["ping", "x" * 4_500])
    assert [link.is_open for link in (*links, reads)] == [True, True, False, True]
    assert +shell.counts.limits_met == {"limits.max_unread_bytes": 1}
    assert shell.parts.unread.memory <= 20_000


def test_nobody_who_reads_ends_for_what_all_leave_unread() -> None:
    shell = Shell(max_unread_bytes=1_000)
    reads = shell.gateway("g")
    shell.says(reads, ["ping", "x" * 9_000])
    assert reads.is_open


def test_of_too_many_incomplete_frames_the_oldest_ends() -> None:
    shell = Shell(max_unfinished_bytes=100)
    slow, fast, late = (shell.gateway(name) for name in "ghi")
    frame = encode(["login", "u" * 58])

    def send(link: Link, data: bytes) -> None:
        shell.server.received(link, data, shell.at, None)

    send(fast, frame[:41])
    send(slow, frame[:20])
    # Another frame: it is younger than that of `slow`, which stays the same one.
    send(fast, frame[41:] + frame[:20])
    send(slow, frame[20:40])
    assert shell.parts.registry.unfinished_bytes == 60
    send(late, frame[:40])
    assert slow.is_open
    send(late, frame[40:41])
    assert [link.is_open for link in (slow, fast, late)] == [False, True, True]
    assert +shell.counts.limits_met == {"limits.max_unfinished_bytes": 1}
    assert shell.parts.registry.unfinished_bytes == 61
    another = shell.gateway("j")
    send(another, frame[:40])  # what was of `slow` counts no more
    assert [link.is_open for link in (fast, late, another)] == [False, True, True]
    for link in (late, another):
        shell.server.closed(link)
    assert shell.parts.registry.unfinished_bytes == 0


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
