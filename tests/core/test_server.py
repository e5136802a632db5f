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
    LogRefusal,
    ReadFirst,
    SearchSkipped,
    WakeWriter,
)
from liveness.core.links.link import Link
from liveness.core.links.outbox import Reply
from liveness.core.records import SESSION_KINDS, Record, Subscription
from liveness.core.server import MayRead
from liveness.core.wire.framing import Reader, decode, encode
from liveness.testing.scripted_disk import FULL
from tests.core.server_shell import Shell, hello


def name_of(frame: bytes) -> object:
    (content, *_) = decode(frame)
    return content


def kinds(effects: list[Effect]) -> list[type]:
    return [type(effect) for effect in effects]


@pytest.fixture
def shell() -> Shell:
    return Shell()


def test_a_keepalive_of_an_online_user_wants_nothing_done(shell: Shell) -> None:
    link = shell.gateway()
    shell.says(link, ["login", "u"], ["ping", 1])
    assert shell.says(link, ["keepalive", "u"], ["keepalive", ["u"]]) == []


def test_a_reply_waits_for_the_commit_that_it_depends_on(shell: Shell) -> None:
    link = shell.gateway()
    effects = shell.says(link, ["login", "u"], ["ping", 1], ["where", ["u"]], ["list"])
    commit, *others = effects
    assert isinstance(commit, Commit)
    assert others == [WakeWriter(link.number)] * 3
    assert [record.seq for record in commit.changes.records] == [1]
    pong, where, listing = link.outbox._replies
    assert {reply.after for reply in (pong, where, listing)} == {commit.ticket}
    assert link.outbox.take_frames() == b""
    assert not link.outbox.take_up_list()
    shell.write()
    assert isinstance(pong, Reply)
    assert isinstance(where, Reply)
    assert link.outbox.take_frames() == pong.frame + where.frame
    assert link.outbox.take_up_list()


def test_a_reply_to_nothing_new_waits_for_nothing(shell: Shell) -> None:
    link = shell.gateway()
    assert shell.says(link, ["ping", 1]) == [WakeWriter(link.number)]
    (pong,) = link.outbox._replies
    assert pong.after == shell.decided.ticket == shell.disk.log_ticket


def test_welcome_waits_for_the_cursor_of_its_name(shell: Shell) -> None:
    link = shell.connect()
    effects = shell.says(link, hello())
    commit, wake, deliver = effects
    assert isinstance(commit, Commit)
    assert wake == WakeWriter(link.number)
    (welcome,) = link.outbox._replies
    assert isinstance(welcome, Reply)
    assert deliver == Deliver(link.number, shell.reading_of(link))
    assert commit.ticket == welcome.after
    assert link.outbox.room == 0
    assert link.outbox.take_frames() == b""
    shell.write()
    assert shell.disk.cursors["gateway", "g"].seq == 0
    assert link.outbox.take_frames() == welcome.frame


def test_a_replaced_link_is_read_before_its_successor_is_welcomed(shell: Shell) -> None:
    older, newer = shell.gateway(), shell.connect()
    # What follows the hello is kept until then.
    effects = shell.says(newer, hello(), ["login", "n"])
    assert effects == [ReadFirst(older.number)]
    assert shell.server.may_read(newer) is MayRead.NO
    assert shell.says(older, ["login", "o"]) == []
    shell.server.replace(older)
    effects = shell.effects()
    close, commit, wake, _ = effects
    assert close == Close(older.number)
    assert isinstance(commit, Commit)
    assert wake == WakeWriter(newer.number)
    (welcome,) = newer.outbox._replies
    assert [record.uid for record in commit.changes.records] == ["o"]
    assert welcome.after == commit.ticket
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


def test_a_replaced_watcher_has_nothing_to_be_read(shell: Shell) -> None:
    older = shell.gateway("w", role="watcher")
    effects = shell.says(shell.connect(), hello("w", role="watcher"))
    assert kinds(effects) == [Close, Commit, WakeWriter, Deliver]
    assert effects[0] == Close(older.number)


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


def test_an_ack_asks_for_more_only_if_there_is_more(shell: Shell) -> None:
    shell = Shell(window=2)
    link = shell.gateway(kinds=["online"])
    shell.says(link, ["login", ["a", "b", "c"]], ["ping", 1])
    shell.write()
    assert link.outbox.room == 2
    link.outbox.records_begin([1, 2], 0)
    shell.reading_of(link).seq = 2
    link.outbox.records_sent(0)
    assert (link.outbox.room, link.outbox.unacked) == (0, 2)
    assert shell.says(link, ["ack", 1]) == [WakeWriter(link.number)]
    assert shell.counts.notices_acked == 1
    assert shell.cursors["gateway", "g"].seq == 1
    assert shell.says(link, ["ack", 0]) == [WakeWriter(link.number)]
    assert shell.cursors["gateway", "g"].seq == 1


def test_a_cursor_stays_behind_what_is_received_and_not_processed(shell: Shell) -> None:
    shell = Shell(window=2)
    link = shell.gateway(kinds=["online"])
    shell.says(link, ["login", ["a", "b", "c"]], ["ping", 1])
    shell.write()
    link.outbox.records_begin([1, 2], 0)
    shell.reading_of(link).seq = 2
    link.outbox.records_sent(0)
    shell.says(link, ["ack", 2, 1])
    assert (link.outbox.room, link.outbox.unacked) == (2, 0)
    shell.server.note_cursors(shell.at)
    assert shell.cursors["gateway", "g"].seq == 1
    shell.reading_of(link).seq = 3  # a record that does not concern it
    for again in (["ack", 2, 1], ["ack", 1], ["ack", 0, 0]):
        shell.says(link, again)
        shell.server.note_cursors(shell.at)
        assert shell.cursors["gateway", "g"].seq == 1
    shell.says(link, ["ack", 2, 2])
    assert shell.cursors["gateway", "g"].seq == 3


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


def test_a_link_that_ends_on_a_failing_disk_is_told_only_why(shell: Shell) -> None:
    link = shell.gateway()
    shell.disk.failure = FULL
    shell.says(link, ["login", "u"], ["ping", "not answered"])
    shell.parts.registry.end_all("a test")
    assert kinds(shell.effects()) == [Close]
    assert not link.outbox.has_replies
    assert shell.parts.unread.memory == 0
    assert name_of(link.outbox.last_frame) == "bye"


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


def test_a_silent_user_is_fired_once_its_gateway_was_read_and_committed(
    shell: Shell,
) -> None:
    link = shell.gateway()
    shell.says(link, ["login", "u"])
    shell.server.commit()
    shell.effects()
    for _ in range(301):
        shell.lets_pass(0.1)
        shell.server.fire(shell.at)
        shell.server.commit()
    (commit,) = shell.effects()
    assert isinstance(commit, Commit)
    ((record,), (due,)) = commit.changes.records, commit.changes.records.due
    assert (record.uid, record.kind, due) == ("u", "offline", 30.0)


def test_a_closed_link_leaves_nothing_behind(shell: Shell) -> None:
    link = shell.gateway()
    shell.says(link, ["login", "u"], ["ping", "x" * 1_000])
    assert shell.parts.unread.memory > 1_000
    shell.server.closed(link)
    registry = shell.parts.registry
    assert (registry.links, registry.named, shell.parts.unread.memory) == ({}, {}, 0)
    assert replace(shell.parts.gateways.by_name["g"], users=0).is_linked is False


def answers(link: Link) -> list[Any]:
    """The replies that a link may be sent now."""
    reader = Reader(max_frame_bytes=100_000, max_batch=4_000)
    return [*reader.feed(link.outbox.take_frames())]


def test_a_question_about_a_user_is_one_about_each_device() -> None:
    shell = Shell(device_separator="/", max_where_rows=5)
    link = shell.gateway()
    shell.says(link, ["login", ["ada/a", "ada/b", "ada", "eve/a", 7]])
    shell.says(link, ["where", ["ada", "eve/a", "eve/b", 7]], ["where", "eve"])
    shell.write()
    rows = [["ada/a", 1], ["ada/b", 2], ["ada", 3], ["eve/a", 4], [7, 5]]
    where, eve = (frame[1] for frame in answers(link))
    assert [[uid, session] for uid, _, session, _ in where] == rows
    assert [[uid, session] for uid, _, session, _ in eve] == [["eve/a", 4]]


def test_a_question_about_more_devices_than_an_answer_has_is_refused() -> None:
    shell = Shell(device_separator="/", max_where_rows=3)
    link = shell.gateway()
    shell.says(link, ["login", [f"ada/{n}" for n in range(4)]])
    shell.says(link, ["where", "ada"], ["where", ["ada/0", "ada/1", "ada/2", "ada/3"]])
    shell.write()
    (error, where) = answers(link)
    assert (error[0], error[1]["code"], error[1]["frame"]) == (
        "error",
        "bad-option",
        "where",
    )
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


@pytest.mark.parametrize(("separator", "shown"), [("", None), ("::", "::")])
def test_a_welcome_has_the_separator_of_devices(
    separator: str, shown: str | None
) -> None:
    shell = Shell(device_separator=separator)
    link = shell.connect()
    shell.says(link, hello("w", role="watcher", users=True))
    shell.write()
    ((_, terms),) = answers(link)
    assert terms.get("device_separator") == shown
    assert shell.reading_of(link).wanted.users


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
    assert [record.uid for record in records if reader.wants(record)] == wanted
    (moved,) = (record for record in records if record.kind == "moved")
    assert isinstance(moved, Record)
    assert (moved.user, moved.devices) == (("ada", 2) if separator else ("ada/a", None))
    of_ada = reader._replace(uid="ada", users=False)
    found = [record.uid for record in records if of_ada.wants(record)]
    assert found == (["ada/a", "ada/b", "ada/a", "ada/a", "ada/b"] if separator else [])


# --- names that are refused or replaced --------------------------------------------------

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
    data = encode(hello("g", role=role))
    shell.server.received(shell.connect(NEWER), data, shell.at, None)
    if role == "gateway":
        shell.server.replace(older)
    (line,) = (
        effect
        for effect in shell.server.effects
        if isinstance(effect, LogLine) and effect.message == "link replaced"
    )
    assert line.level == "warning"
    assert (
        line.fields.items()
        >= {
            "role": role,
            "name": "g",
            "pid": 12,
            "unix_user": 1_002,
            "older_pid": 11,
            "older_unix_user": 1_001,
        }.items()
    )
    (refusal,) = (
        effect.refusal
        for effect in shell.server.effects
        if isinstance(effect, LogRefusal)
    )
    assert refusal.as_frame()[1]["pid"] == 12  # type: ignore[index]
    assert troubles(shell) == [(role, "g", "replaced", 11, 1_001)]


def test_a_process_that_is_unknown_is_not_named_in_the_error() -> None:
    shell = Shell()
    older = shell.connect()
    shell.says(older, hello("g", role="watcher"))
    unknown = shell.connect(Peer(0, 1_000, frozenset()))
    data = encode(hello("g", role="watcher"))
    shell.server.received(unknown, data, shell.at, None)
    (refusal,) = (
        effect.refusal
        for effect in shell.server.effects
        if isinstance(effect, LogRefusal)
    )
    assert "pid" not in refusal.as_frame()[1]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (hello("g", timeout=0), ("gateway", "g", "bad-hello")),
        (hello("w", role="watcher", fresh=True), ("watcher", "w", "bad-hello")),
        (
            ["hello", {"protocol": 2, "name": "g"}],
            ("gateway", "g", "unsupported-protocol"),
        ),
        (hello("new"), ("gateway", "new", "overloaded")),
        (hello(""), None),
        (["hello", 7], None),
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


def test_a_link_that_is_refused_after_its_welcome_is_not_among_the_refused_names() -> (
    None
):
    shell = Shell()
    link = shell.gateway("g")
    shell.server.received(link, b"\xc1", shell.at, None)
    assert not link.is_open
    assert troubles(shell) == []
