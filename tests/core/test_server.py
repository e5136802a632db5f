"""The server of links: what goes in, and which effects come out, in which order."""

from dataclasses import replace
from typing import Any, Final

import pytest

from liveness.core.access import Allowed, Peer
from liveness.core.changes import Commit
from liveness.core.effects import (
    Close,
    Deliver,
    Effect,
    LogLine,
    ReadFirst,
    SearchSkipped,
    WakeWriter,
)
from liveness.core.links.link import Link
from liveness.core.records import SESSION_KINDS, Subscription
from liveness.core.server import MayRead
from liveness.core.wire.framing import Reader, encode
from tests.core.server_shell import Shell, hello


def kinds(effects: list[Effect]) -> list[type]:
    return [type(effect) for effect in effects]


def answers(link: Link) -> list[Any]:
    """The replies that a link may be sent now."""
    reader = Reader(max_frame_bytes=100_000, max_batch=4_000)
    return [*reader.feed(link.outbox.take_frames())]


@pytest.fixture
def shell() -> Shell:
    return Shell()


def test_a_reply_waits_for_the_commit_that_it_depends_on(shell: Shell) -> None:
    link = shell.gateway()
    assert shell.says(link, ["ping", 1]) == [WakeWriter(link.number)]
    assert link.outbox.take_frames() == encode(["pong", 1])
    effects = shell.says(link, ["login", "u"], ["ping", 2], ["where", "v"], ["list"])
    assert kinds(effects) == [Commit, *[WakeWriter] * 3]
    assert link.outbox.take_frames() == b""
    assert not link.outbox.take_up_list()
    shell.write()
    assert answers(link) == [("pong", 2), ("where", ())]
    assert link.outbox.take_up_list()
    assert shell.says(link, ["keepalive", "u"], ["keepalive", ["u"]]) == []


def test_welcome_waits_for_the_cursor_of_its_name(shell: Shell) -> None:
    link = shell.connect()
    effects = shell.says(link, hello())
    assert kinds(effects) == [Commit, WakeWriter, Deliver]
    assert link.outbox.room == 0
    assert link.outbox.take_frames() == b""
    shell.write()
    assert shell.disk.cursors["gateway", "g"].seq == 0
    assert [frame[0] for frame in answers(link)] == ["welcome"]


def test_a_replaced_link_is_read_before_its_successor_is_welcomed(shell: Shell) -> None:
    older, newer = shell.gateway(), shell.connect()
    # What follows the hello is kept until then.
    effects = shell.says(newer, hello(), ["login", "n"])
    assert effects == [ReadFirst(older.number)]
    assert shell.server.may_read(newer) is MayRead.NO
    assert shell.says(older, ["login", "o"]) == []
    shell.server.replace(older)
    effects = shell.effects()
    assert kinds(effects) == [Close, Commit, WakeWriter, Deliver]
    commit = effects[1]
    assert isinstance(commit, Commit)
    assert [record.uid for record in commit.changes.records] == ["o"]
    assert newer.outbox.take_frames() == b""
    assert not older.is_open
    assert older.outbox.last_frame
    uids = [record.uid for record in shell.decided.changes.records]
    assert uids == ["n"]


def test_a_successor_that_ends_meanwhile_takes_no_name(shell: Shell) -> None:
    older, newer = shell.gateway(), shell.connect()
    assert shell.says(newer, hello()) == [ReadFirst(older.number)]
    shell.server.received(newer, b"", shell.at, None)
    shell.server.replace(older)
    assert kinds(shell.effects()) == [Close, Close]
    assert shell.parts.registry.named == {}


def test_a_fresh_gateway_is_welcomed_once_its_old_sessions_have_ended(
    shell: Shell,
) -> None:
    older = shell.gateway()
    shell.says(older, ["login", ["a", "b"]], ["ping", 1])
    shell.server.closed(older)
    newer = shell.connect()
    assert kinds(shell.says(newer, hello(fresh=True), ["login", "c"])) == []
    assert shell.server.has_resets
    assert shell.server.may_read(newer) is MayRead.NO
    assert shell.server.reset_sessions(shell.at) == [newer]
    effects = shell.effects()
    assert kinds(effects) == [SearchSkipped, Commit, WakeWriter, Deliver]
    commit = effects[1]
    assert isinstance(commit, Commit)
    ended = [(record.uid, record.kind) for record in commit.changes.records]
    assert sorted(ended) == [("a", "offline"), ("b", "offline")]
    assert [record.uid for record in shell.decided.changes.records] == ["c"]
    assert not shell.server.has_resets


def test_a_cursor_follows_only_what_is_written(shell: Shell) -> None:
    link = shell.gateway(kinds=["online"], ack=False)
    shell.says(link, ["login", ["a", "b", "c"]], ["ping", 1])
    shell.write()
    shell.reading_of(link).seq = 3
    link.outbox.records_begin([1, 2, 3], 0)
    shell.server.note_cursors(shell.at)
    assert shell.cursors["gateway", "g"].seq == 0
    link.outbox.records_sent(0)
    assert shell.cursors["gateway", "g"].seq == 3


def test_a_fault_of_a_request_ends_its_link_and_no_other(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlucky, other = shell.gateway("unlucky"), shell.gateway("other")
    with monkeypatch.context() as broken:
        broken.delattr(type(shell.parts.presence), "login")
        effects = shell.says(unlucky, ["login", "u"])
    assert effects == [Close(unlucky.number)]
    assert shell.counts.refused == {"internal": 1}
    assert kinds(shell.says(other, ["ping", 1])) == [WakeWriter]


def test_a_fault_of_a_welcome_ends_its_link_and_no_other(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("planted")

    other = shell.gateway("other")
    older, newer = shell.gateway(), shell.connect()
    assert shell.says(newer, hello(), ["ping", 1]) == [ReadFirst(older.number)]
    with monkeypatch.context() as patch:
        patch.setattr(shell.parts.gateways, "set_timeout", broken)
        shell.server.replace(older)
    assert shell.effects() == [Close(older.number), Close(newer.number)]
    fresh = shell.connect()
    shell.says(fresh, hello(fresh=True), ["ping", 1])
    with monkeypatch.context() as patch:
        patch.setattr(shell.parts.registry, "send", broken)
        assert shell.server.reset_sessions(shell.at) == [fresh]
    assert Close(fresh.number) in shell.effects()
    assert shell.counts.refused["internal"] == 2
    assert kinds(shell.says(other, ["ping", 1]))[-1] is WakeWriter


@pytest.mark.parametrize(
    ("limit", "largest", "too_large"),
    [
        ("max_batch", ["login", [7] * 100], ["login", [7] * 101]),
        ("max_batch", ["ping", [0] * 398], ["ping", [0] * 399]),
        ("max_frame_bytes", ["ping", "x" * 8_991], ["ping", "x" * 8_992]),
    ],
    ids=["uids", "values", "bytes"],
)
def test_a_frame_above_a_limit_is_counted(
    limit: str, largest: object, too_large: object
) -> None:
    shell = Shell(max_batch=100, max_frame_bytes=9_000)
    link = shell.gateway()
    shell.says(link, largest)
    assert +shell.counts.limits_met == {}
    shell.says(link, too_large)
    assert +shell.counts.limits_met == {f"limits.{limit}": 1}


def test_a_closed_link_leaves_nothing_behind(shell: Shell) -> None:
    link = shell.gateway()
    shell.says(link, ["login", "u"], ["ping", "x" * 1_000])
    assert shell.parts.unread.memory > 1_000
    shell.server.closed(link)
    registry = shell.parts.registry
    assert (registry.links, registry.named, shell.parts.unread.memory) == ({}, {}, 0)
    assert replace(shell.parts.gateways.by_name["g"], users=0).is_linked is False


def test_a_question_about_a_user_is_one_about_each_device() -> None:
    shell = Shell(device_separator="/", max_where_rows=5)
    link = shell.connect()
    shell.says(link, hello(), ["login", ["ada/a", "ada/b", "ada", "eve/a", 7]])
    shell.says(link, ["where", ["ada", "eve/a", "eve/b", 7]], ["where", "eve"])
    shell.write()
    welcome, *found = answers(link)
    assert welcome[1]["device_separator"] == "/"
    rows = [["ada/a", 1], ["ada/b", 2], ["ada", 3], ["eve/a", 4], [7, 5]]
    where, eve = (frame[1] for frame in found)
    assert [[uid, session] for uid, _, session, _ in where] == rows
    assert [[uid, session] for uid, _, session, _ in eve] == [["eve/a", 4]]


def test_a_question_about_more_devices_than_an_answer_has_is_refused() -> None:
    shell = Shell(device_separator="/", max_where_rows=3)
    link = shell.gateway()
    shell.says(link, ["login", [f"ada/{n}" for n in range(4)]])
    shell.says(link, ["where", "ada"], ["where", ["ada/0", "ada/1", "ada/2", "ada/3"]])
    shell.write()
    (error, where) = answers(link)
    assert (error[1]["code"], error[1]["frame"]) == ("bad-option", "where")
    assert "limits.max_where_rows" in error[1]["message"]
    assert shell.counts.limits_met == {"limits.max_where_rows": 1}
    assert len(where[1]) == 4


def test_a_refusal_behind_a_hello_has_the_number_of_its_frame() -> None:
    shell = Shell(device_separator="/", max_where_rows=1, max_users=2)
    older, newer = shell.gateway(), shell.connect()
    shell.says(older, ["login", ["ada/a", "ada/b"]])
    frames = (["where", "ada"], ["login", "eve"], ["ack", 9], ["ping", 1])
    shell.says(newer, hello(), *frames)
    shell.server.replace(older)
    shell.effects()
    shell.write()
    errors = [frame[1] for frame in answers(newer) if frame[0] == "error"]
    assert [(error["frame"], error["n"]) for error in errors] == [
        *(("where", 2), ("login", 3), ("ack", 4))
    ]


@pytest.mark.parametrize(
    ("separator", "wanted"),
    [("/", ["ada/a", 7, "ada/b", 7]), ("", ["ada/a", "ada/b", 7, "ada/a", "ada/b", 7])],
)
def test_a_reader_of_users_gets_their_first_devices_and_their_last(
    separator: str, wanted: list[object]
) -> None:
    shell = Shell(device_separator=separator)
    link, other = shell.gateway(), shell.gateway("h")
    shell.says(link, ["login", ["ada/a", "ada/b", 7], {"conn": [1, 2, 3]}])
    shell.says(other, ["login", "ada/a", {"conn": 1}])
    shell.says(other, ["logout", "ada/a"])
    shell.says(link, ["logout", ["ada/b", 7]])
    records = shell.decided.changes.records
    reader = Subscription(None, frozenset(SESSION_KINDS), users=True)
    found = [record.uid for record in records if reader.wants(record)]
    assert found == wanted
    of_ada = reader._replace(uid="ada", users=False)
    found = [record.uid for record in records if of_ada.wants(record)]
    assert found == (["ada/a", "ada/b", "ada/a", "ada/a", "ada/b"] if separator else [])


OLDER: Final = Peer(11, 1_001, frozenset())
NEWER: Final = Peer(12, 1_002, frozenset())


def troubles(shell: Shell) -> list[tuple[Any, ...]]:
    rows = shell.parts.registry.troubles.recent(shell.at.wall_ms)
    return [(row.role, row.name, row.code, row.pid, row.unix_user) for row in rows]


@pytest.mark.parametrize("role", ["gateway", "watcher"])
def test_a_replacement_is_logged_with_both_processes_and_kept_for_the_operator(
    role: str,
) -> None:
    shell = Shell()
    older = shell.connect(OLDER)
    shell.says(older, hello("g", role=role))
    shell.server.effects.clear()
    shell.lets_pass(5)
    newer = shell.connect(NEWER)
    shell.server.received(newer, encode(hello("g", role=role)), shell.at, None)
    if role == "gateway":
        shell.server.replace(older)
    (line,) = (
        effect
        for effect in shell.server.effects
        if isinstance(effect, LogLine) and effect.message == "link replaced"
    )
    who = [line.fields[key] for key in ("pid", "unix_user", "older_pid")]
    assert (line.level, who) == ("warning", [12, 1_002, 11])
    assert troubles(shell) == [(role, "g", "replaced", 11, 1_001)]


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (hello("g", timeout=0), ("gateway", "g", "bad-hello")),
        (hello("w", role="watcher", fresh=True), ("watcher", "w", "bad-hello")),
        (hello("new"), ("gateway", "new", "overloaded")),
        (hello(""), None),
        (["login", "ada"], None),
    ],
)
def test_a_name_whose_hello_is_refused_is_kept_for_the_operator(
    frame: object, expected: tuple[str, str, str] | None
) -> None:
    shell = Shell(max_gateways=1)
    shell.gateway("first")
    link = shell.connect(OLDER)
    shell.says(link, frame)
    assert not link.is_open
    assert troubles(shell) == ([] if expected is None else [(*expected, 11, 1_001)])


def test_what_access_refuses_is_kept_for_the_operator_with_or_without_a_name() -> None:
    shell = Shell()
    registry = shell.parts.registry
    only_ada = Allowed(users=frozenset({OLDER.unix_user}))
    registry.access = replace(
        registry.access, gateways=only_ada, watchers=only_ada, names={"g": 7}
    )
    shell.says(shell.connect(OLDER), hello("g"))
    assert not shell.connect(NEWER).is_open  # before its hello
    assert troubles(shell) == [
        (None, None, "not-allowed", 12, 1_002),
        ("gateway", "g", "not-allowed", 11, 1_001),
    ]
