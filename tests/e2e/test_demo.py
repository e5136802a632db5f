"""The demo: as a process, end to end, and its parts on real sockets.

Two runs go on at the same time: one as it is, with a guest who joins by TCP, and one
whose gateway loses the keepalives of a user, so that there is something to find.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgpack
import pytest
import trio
import trio.testing

from liveness import cli
from liveness.demo import gateway as gateway_module
from liveness.demo.gateway import MAX_LINE_BYTES, Connection, Gateway
from liveness.demo.referee import FAULTS, Referee
from liveness.demo.screen import Feed, summary
from liveness.demo.sidecar import Frame, Record, Sidecar
from liveness.demo.users import Behaviour, planned

SOON_S = 5  # long after everything here has happened
END_S = 30
USERS, TIMEOUT_S, SECONDS = 60, 2, 6

FAULTY = """
import sys
from liveness import cli
from liveness.demo.sidecar import Sidecar

report = Sidecar.keepalive
Sidecar.keepalive = lambda link, conn, uid: uid == "user-03" or report(link, conn, uid)
sys.exit(cli.main(sys.argv[1:]))
"""


# --- as a process -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shown:
    """What a demo has printed, and its exit code."""

    code: int
    out: str
    err: str

    def table(self) -> dict[str, Counter[str]]:
        """The account: by behaviour, how many there were and what became of them."""
        lines = self.out.split("\n\n")[1].splitlines()
        columns = lines[0].split()
        rows = (re.fullmatch(r"(\D+?)((?: +\d+)+)", line) for line in lines[1:])
        return {
            row[1].strip(): Counter(
                dict(zip(columns, map(int, row[2].split()), strict=True))
            )
            for row in rows
            if row
        }


def started(*command: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )


def doors(out: IO[str]) -> tuple[str, int, Path]:
    """What was printed until it said where the gateway and the sidecar are, and that."""
    text, found = "", None
    while not found and (line := out.readline()):
        text += line
        found = re.search(r"nc 127\.0\.0\.1 (\d+).*--socket (\S+)", text, re.DOTALL)
    assert found, text
    return text, int(found[1]), Path(found[2])


def ended(demo: subprocess.Popen[str], before: str = "") -> Shown:
    out, err = demo.communicate(timeout=END_S)
    return Shown(demo.returncode, before + out, err)


def visit(port: int) -> list[Record]:
    """Joins by TCP, says hi once, and stays silent; all lines that were not others'."""
    with socket.create_connection(("127.0.0.1", port), timeout=SOON_S) as guest:
        guest.sendall(b'{"login": "ada"}\n{"say": "hi"}\n')
        lines = map(json.loads, guest.makefile())
        return [line for line in lines if line.get("uid", "ada") == "ada"]


@pytest.fixture(scope="module")
def runs() -> Iterator[tuple[Shown, list[Record], Shown]]:
    """A demo as it is, what a guest saw of it, and one with a planted fault."""
    options = ["--users", str(USERS), "--timeout", str(TIMEOUT_S)]
    demo = started("-m", "liveness", "demo", *options, "--seconds", str(SECONDS))
    options = ["demo", "--users", "10", "--timeout", "1", "--seconds", "5"]
    faulty = started("-c", FAULTY, *options)
    with demo, faulty:
        assert demo.stdout
        before, port, _ = doors(demo.stdout)
        seen = visit(port)
        yield ended(demo, before), seen, ended(faulty)


def test_the_demo_reports_everyone_when_due_and_ends_with_0(
    runs: tuple[Shown, list[Record], Shown],
) -> None:
    demo, _, _ = runs
    assert (demo.code, demo.err) == (0, "")
    assert "faults: early 0, missed 0, false 0\n" in demo.out


def test_the_first_silence_is_reported_within_5_s_of_the_timeout(
    runs: tuple[Shown, list[Record], Shown],
) -> None:
    demo, _, _ = runs
    status = re.findall(r"(\d+) s   online \d+, said \d+, silence (\d+)", demo.out)
    assert min(int(at) for at, silent in status if int(silent)) <= TIMEOUT_S + 5
    assert re.search(r"  offline  user-\d\d  demo  silence  2\.\d{3} s since", demo.out)


def test_the_account_adds_up(runs: tuple[Shown, list[Record], Shown]) -> None:
    table = runs[0].table()
    everyone = table.pop("all")
    assert set(table) == {*Behaviour, "guest"}
    assert sum(table.values(), Counter()) == +everyone
    for row in (*table.values(), everyone):
        assert row["users"] == sum(row.values()) - row["users"]
    assert everyone["users"] == USERS + 1
    silent, left = table["fall silent"], table["log out"]
    assert silent["silence"] == silent["users"] == USERS * 3 // 10
    assert left["logout"] == left["users"] == USERS * 2 // 10
    for row in (table["chat"], table["keepalive"]):
        assert row["online"] == row["users"]


def test_the_lateness_is_one_of_a_sidecar_that_fires_on_time(
    runs: tuple[Shown, list[Record], Shown],
) -> None:
    found = re.search(r"p50 (\S+) s, p99 (\S+) s, max (\S+) s", runs[0].out)
    assert found
    p50, p99, most = map(float, found.groups())
    assert 0 <= p50 <= p99 <= most < 1.1


def test_who_joins_by_tcp_chats_and_is_reported_when_silent(
    runs: tuple[Shown, list[Record], Shown],
) -> None:
    demo, seen, _ = runs
    assert list(seen[0]) == ["welcome"]
    assert seen[1]["joined"] == "ada"
    assert seen[2:] == [{"uid": "ada", "say": "hi"}, {"bye": "silence"}]
    assert demo.table()["guest"] == Counter(users=1, silence=1)


def test_a_planted_fault_is_named_and_ends_it_with_1(
    runs: tuple[Shown, list[Record], Shown],
) -> None:
    _, _, faulty = runs
    assert faulty.code == 1
    assert "faults: early 0, missed 0, false 1\n" in faulty.out
    assert "    false: user-03 was " in faulty.out


def test_a_signal_ends_it_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with (
        started("-m", "liveness", "demo", TMPDIR=str(tmp_path)) as interrupted,
        started("-m", "liveness", "demo", TMPDIR=str(tmp_path)) as terminated,
    ):
        for demo in (interrupted, terminated):
            assert demo.stdout
            _, _, path = doors(demo.stdout)
            assert path.is_socket()
            assert tmp_path in path.parents
        interrupted.send_signal(signal.SIGINT)
        terminated.send_signal(signal.SIGTERM)
        first, second = ended(interrupted), ended(terminated)
    assert (first.code, first.err) == (130, "")
    assert (second.code, second.err) == (1, "liveness: ended by SIGTERM\n")
    assert list(tmp_path.iterdir()) == []


def test_a_sidecar_that_is_lost_ends_it_with_its_last_lines(tmp_path: Path) -> None:
    with started("-m", "liveness", "demo", TMPDIR=str(tmp_path)) as demo:
        assert demo.stdout
        path = doors(demo.stdout)[2]
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(str(path))
            link.sendall(msgpack.packb(["hello", {"protocol": 1, "name": "demo"}]))
            assert b"welcome" in link.recv(1_000)
        shown = ended(demo)
    *log, last = shown.err.splitlines()
    assert shown.code == 1
    assert last.startswith("liveness: the sidecar refused a frame: ")
    assert last.endswith("(replaced)")
    assert '"event": "ready"' in "".join(log)
    assert list(tmp_path.iterdir()) == []


def test_a_sidecar_that_does_not_start_ends_it_with_its_last_lines(
    tmp_path: Path,
) -> None:
    far = tmp_path / ("too-long-for-a-socket-" * 5)
    far.mkdir()
    shown = ended(started("-m", "liveness", "demo", TMPDIR=str(far)))
    log, last = shown.err.splitlines()
    assert shown.code == 1
    assert "socket.path is" in log
    assert last == "liveness: the sidecar did not start, exit code 78"
    assert list(far.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--seconds 12.9", "12.9 s are too short to show 200 users and a timeout of"),
        ("--seconds 5 --timeout 2.1", "use --seconds 5.1 or more"),
        ("--users 501 --timeout 1", "use --users 500 or less, or a longer --timeout"),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_line_with_2(
    options: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", *options.split()]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert shown.err.startswith("liveness: ")
    assert told in shown.err


# --- the referee --------------------------------------------------------------------------


def referee(**plans: Behaviour) -> Referee:
    """One with a timeout of 10 s and a flush of 0.3 s, that looked at 100 s."""
    referee = Referee(plans, timeout_s=10, flush_s=0.3)
    referee.look([], at=100)
    return referee


def offline(uid: str, reason: str = "silence") -> Record:
    return {"kind": "offline", "uid": uid, "reason": reason}


def look_until(referee: Referee, at: float, **heard: float) -> None:
    """Looks ten times a second, from 100 s on, at a room where these were heard."""
    for tenth in range(1_000, int(at * 10) + 1):
        referee.look(heard.items(), at=tenth / 10)


def kinds(referee: Referee) -> list[tuple[str, str]]:
    assert referee.faults_of == Counter(fault.kind for fault in referee.faults)
    assert referee.faults_of.keys() <= set(FAULTS)
    return [(fault.kind, fault.uid) for fault in referee.faults]


def test_a_silence_reported_at_its_timeout_is_no_fault_and_no_lateness() -> None:
    judge = referee(ann=Behaviour.SILENT)
    look_until(judge, 110, ann=100.0)
    judge.told(offline("ann"), heard=100.0, at=110.0)
    assert kinds(judge) == []
    assert list(judge.lateness_s) == [0.0]
    assert judge.online == {}


def test_a_silence_reported_before_its_timeout_is_early() -> None:
    judge = referee(ann=Behaviour.SILENT)
    look_until(judge, 109.9, ann=100.0)
    judge.told(offline("ann"), heard=100.0, at=109.999)
    assert kinds(judge) == [("early", "ann")]
    assert "after 9.999 s" in judge.faults[0].what


@pytest.mark.parametrize("heard", [100.0, 109.9])
@pytest.mark.parametrize("behaviour", [Behaviour.CHAT, Behaviour.KEEPALIVE])
def test_a_user_who_speaks_and_is_reported_silent_is_false(
    behaviour: Behaviour, heard: float
) -> None:
    judge = referee(bob=behaviour)
    look_until(judge, 110.2, bob=heard)
    judge.told(offline("bob"), heard=heard, at=110.2)
    assert kinds(judge) == [("false", "bob")]


def test_a_silence_not_reported_a_second_after_deadline_and_flush_is_missed() -> None:
    judge = referee(ann=Behaviour.SILENT)
    look_until(judge, 111.3, ann=100.0)
    assert kinds(judge) == []
    look_until(judge, 112, ann=100.0)
    assert kinds(judge) == [("missed", "ann")]
    judge.told(offline("ann"), heard=100.0, at=112.0)
    assert kinds(judge) == [("missed", "ann")], "late is missed, and missed once"
    assert list(judge.lateness_s) == [2.0]


def test_a_silence_that_was_reported_too_late_is_missed() -> None:
    judge = referee(ann=Behaviour.SILENT)
    look_until(judge, 111.3, ann=100.0)
    judge.told(offline("ann"), heard=100.0, at=111.4)
    assert kinds(judge) == [("missed", "ann")]


def test_a_logout_is_to_be_reported_within_a_second() -> None:
    judge = referee(bob=Behaviour.LOGOUT, eve=Behaviour.LOGOUT)
    for uid in ("bob", "eve"):
        judge.left(uid, at=100.0)
    judge.told(offline("bob", "logout"), heard=None, at=100.1)
    look_until(judge, 101.0)
    assert kinds(judge) == []
    look_until(judge, 101.1)
    assert kinds(judge) == [("missed", "eve")]


@pytest.mark.parametrize("reason", ["logout", "gateway_lost"])
def test_an_end_that_nobody_asked_for_is_false(reason: str) -> None:
    judge = referee(bob=Behaviour.KEEPALIVE)
    judge.told(offline("bob", reason), heard=100.0, at=100.2)
    assert kinds(judge) == [("false", "bob")]


def test_a_user_who_is_reported_twice_is_false() -> None:
    judge = referee(ann=Behaviour.SILENT)
    look_until(judge, 110.1, ann=100.0)
    judge.told(offline("ann"), heard=100.0, at=110.1)
    judge.told(offline("ann"), heard=None, at=110.1)
    assert kinds(judge) == [("false", "ann")]


def test_a_guest_is_judged_without_a_plan_unless_a_line_crossed_the_record() -> None:
    judge = referee()
    look_until(judge, 110)
    judge.told(offline("ada"), heard=100.0, at=110.0)
    judge.told(offline("ada"), heard=109.8, at=110.0)
    judge.told(offline("ada"), heard=None, at=110.0)
    assert kinds(judge) == []
    assert judge.ends["guest", "silence"] == 3
    judge.told(offline("ada"), heard=105.0, at=110.0)
    assert kinds(judge) == [("early", "ada")]


def test_what_was_due_while_the_process_stood_still_is_not_measured() -> None:
    judge = referee(ann=Behaviour.SILENT, bob=Behaviour.CHAT)
    heard = {"ann": 100.0, "bob": 100.0}
    judge.look(heard.items(), at=120.0)
    judge.told(offline("ann"), heard=100.0, at=120.1)
    for tenth in range(1_201, 1_300):
        judge.look([("bob", 100.0)], at=tenth / 10)
    judge.told(offline("bob"), heard=100.0, at=130.0)
    assert kinds(judge) == []
    assert (judge.not_measured, list(judge.lateness_s)) == (2, [])


def test_the_summary_names_whoever_was_wronged_and_escapes_the_name() -> None:
    judge = referee(bob=Behaviour.CHAT, **{"e\x1bve": Behaviour.SILENT})
    look_until(judge, 105)
    judge.told(offline("e\x1bve"), heard=100.0, at=105.0)
    lines = list(summary(judge, guests=2))
    assert lines[-2] == "faults: early 1, missed 0, false 0"
    assert lines[-1] == r"    early: e\x1bve was reported after 5.000 s of silence"
    assert "lateness: none was measured" in lines
    assert next(line.split() for line in lines if line.startswith("all")) == [
        "all", "4", "3", "1", "0", "0", "0",
    ]  # fmt: skip


def test_the_feed_shows_a_few_records_and_counts_the_others() -> None:
    feed = Feed()
    for seq in range(9):
        feed.add({**offline("ann"), "gateway": "demo", "at": 0, "seq": seq})
    assert [line.split()[-1] for line in feed.lines()] == ["0", "1", "2", "3", "more"]
    assert feed.lines() == []


# --- the plans ----------------------------------------------------------------------------


def test_silence_is_spread_over_the_run_and_ends_where_it_can_still_be_seen() -> None:
    users = list(planned(200, seconds=40, timeout_s=10, flush_s=1 / 3))
    assert len({user.uid for user in users}) == 200
    assert Counter(user.behaviour for user in users) == {
        Behaviour.SILENT: 60,
        Behaviour.KEEPALIVE: 60,
        Behaviour.CHAT: 40,
        Behaviour.LOGOUT: 40,
    }
    moments = [user.moment_s for user in users if user.behaviour is Behaviour.SILENT]
    assert moments == sorted(moments)
    assert moments[0] == 0
    assert 25 < moments[-1] < 40 - 10 - 1 / 3 - 1
    assert max(user.joins_s for user in users) < 1


def test_a_room_of_many_users_has_few_who_talk() -> None:
    users = planned(5_000, seconds=60, timeout_s=10, flush_s=1)
    talkers = [user for user in users if user.behaviour is Behaviour.CHAT]
    assert len(talkers) == 2


# --- the link -----------------------------------------------------------------------------


async def nothing() -> AsyncIterator[Frame]:
    return
    yield


def link(max_batch: int = 4_000) -> Sidecar:
    """A link that collects and is not run: what it would send can be looked at."""
    stream, _ = trio.testing.memory_stream_pair()
    return Sidecar(stream, nothing(), flush_s=0.1, max_batch=max_batch)


def test_signs_of_life_are_sent_once_a_flush_with_their_conns() -> None:
    sidecar = link()
    for _ in range(3):
        sidecar.keepalive(1, "ann")
        sidecar.keepalive(2, "bob")
        sidecar.message(2, "bob")
    assert list(sidecar.collected()) == [
        ["message", ["bob"], {"conn": [2]}],
        ["keepalive", ["ann"], {"conn": [1]}],
    ]
    assert list(sidecar.collected()) == []


def test_a_logout_forgets_the_signs_of_life_before_it() -> None:
    sidecar = link()
    sidecar.login(1, "ann")
    assert list(sidecar.collected()) == [["login", ["ann"], {"conn": [1]}]]
    sidecar.keepalive(1, "ann")
    sidecar.message(1, "ann")
    sidecar.logout(1, "ann")
    assert list(sidecar.collected()) == [["logout", ["ann"], {"conn": [1]}]]


def test_a_login_that_was_not_sent_is_forgotten_with_its_logout() -> None:
    sidecar = link()
    sidecar.login(1, "ann")
    sidecar.logout(1, "ann")
    assert list(sidecar.collected()) == []


def test_no_frame_has_more_users_than_a_batch() -> None:
    sidecar = link(max_batch=2)
    for conn in range(5):
        sidecar.login(conn, f"user-{conn}")
    assert [frame[2]["conn"] for frame in sidecar.collected()] == [[0, 1], [2, 3], [4]]


async def test_records_are_acknowledged_once_they_were_acted_on() -> None:
    ours, theirs = trio.testing.memory_stream_pair()
    inbox, frames = trio.open_memory_channel[Frame](1)
    told: list[Record] = []
    async with aclosing(received(frames)) as fed, trio.open_nursery() as nursery:
        sidecar = Sidecar(ours, fed, flush_s=0.01, max_batch=4_000)
        nursery.start_soon(sidecar.run, told.append)
        inbox.send_nowait(["notices", [{"seq": 3}, {"seq": 7}]])
        with trio.fail_after(SOON_S):
            sent: list[Any] = []
            unpacker = msgpack.Unpacker()
            while not any(frame[0] == "ack" for frame in sent):
                unpacker.feed(await theirs.receive_some())
                sent += unpacker
        nursery.cancel_scope.cancel()
    assert ["ack", 7] in sent
    assert told == [{"seq": 3}, {"seq": 7}]


async def received(
    frames: trio.MemoryReceiveChannel[Frame],
) -> AsyncGenerator[Frame]:
    async for frame in frames:
        yield frame


# --- the gateway --------------------------------------------------------------------------


class Client:
    """A person at a terminal, one line at a time."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._unread = b""

    async def type(self, *lines: str) -> None:
        await self.stream.send_all("".join(f"{line}\n" for line in lines).encode())

    async def line(self) -> Any:
        """The next line, or None when the gateway has closed the connection."""
        with trio.fail_after(SOON_S):
            while b"\n" not in self._unread:
                try:
                    data = await self.stream.receive_some()
                except trio.BrokenResourceError:  # it did not read our last line
                    return None
                if not data:
                    return None
                self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)


class Room:
    """A gateway that serves, and the frames that it would send."""

    def __init__(self, most: int = 10) -> None:
        self.sidecar = link()
        self.gateway = Gateway(self.sidecar, name="chat", most=most)
        self._clients = AsyncExitStack()

    @asynccontextmanager
    async def open(self) -> "AsyncGenerator[Room]":
        """Serves, and closes in the end what clients have left open."""
        async with trio.open_nursery() as nursery:
            self._port = await nursery.start(self.gateway.serve)
            async with self._clients:
                yield self
            nursery.cancel_scope.cancel()

    async def connect(self) -> Client:
        """Connects; the greeting is not read yet."""
        stream = await trio.open_tcp_stream("127.0.0.1", self._port)
        return Client(await self._clients.enter_async_context(stream))

    async def come(self) -> Client:
        """Connects, and reads the greeting."""
        client = await self.connect()
        assert "welcome" in await client.line()
        return client

    async def enter(self, uid: str) -> tuple[Client, int]:
        """Logs in; the client, and its conn."""
        client = await self.come()
        await client.type(json.dumps({"login": uid}))
        assert (await client.line())["joined"] == uid
        return client, max(self.gateway.room)

    def sent(self) -> list[tuple[str, str, int]]:
        """What was reported since the last call: event, uid and conn."""
        return [
            (event, uid, conn)
            for event, uids, options in self.sidecar.collected()
            for uid, conn in zip(uids, options["conn"], strict=True)
        ]


@pytest.fixture
async def room() -> AsyncIterator[Room]:
    async with Room().open() as room:
        yield room


async def test_what_one_says_everyone_in_the_room_hears(room: Room) -> None:
    ann, a = await room.enter("ann")
    bob, b = await room.enter("bob")
    assert a < b
    assert room.sent() == [("login", "ann", a), ("login", "bob", b)]
    await ann.type('{"say": "\x1b hi"}'.replace("\x1b", "\\u001b"))
    heard = {"uid": "ann", "say": "\x1b hi"}
    assert [await ann.line(), await bob.line()] == [heard, heard]
    assert room.sent() == [("message", "ann", a)]


async def test_who_has_not_logged_in_neither_speaks_nor_lives(room: Room) -> None:
    client = await room.come()
    await client.type('{"say": "hi"}', '{"ping": 1}')
    assert [list(await client.line()) for _ in range(2)] == [["error"], ["pong"]]
    assert room.sent() == []


@pytest.mark.parametrize(
    "line",
    [
        "hello",
        "",
        "[" * 4_000,
        '{"say": 7}',
        '{"login": "ann again"}',
        '{"shout": "hi"}',
        "9" * 4_000,
        "\x00",
    ],
)
async def test_a_bad_line_is_answered_and_a_sign_of_life(room: Room, line: str) -> None:
    ann, conn = await room.enter("ann")
    room.sent()
    await ann.type(line)
    assert list(await ann.line()) == ["error"]
    assert room.sent() == [("keepalive", "ann", conn)]


@pytest.mark.parametrize(
    "name", ["", "x" * 33, "a\u0007b", "\ud800", 7, None, ["ann"], {"a": 1}]
)
async def test_a_login_without_a_good_name_is_answered(room: Room, name: Any) -> None:
    client = await room.come()
    await client.type(json.dumps({"login": name}))
    assert list(await client.line()) == ["error"]
    assert room.sent() == []


@pytest.mark.parametrize("end", ["\n", ""])
async def test_a_line_that_is_too_long_ends_the_connection(
    room: Room, end: str
) -> None:
    ann, conn = await room.enter("ann")
    room.sent()
    await ann.stream.send_all(("x" * (MAX_LINE_BYTES + 1) + end).encode())
    assert await ann.line() == {"bye": f"a line has at most {MAX_LINE_BYTES} bytes"}
    assert await ann.line() is None
    assert room.sent() == [("logout", "ann", conn)]


async def test_logout_and_a_closed_connection_are_both_reported(room: Room) -> None:
    ann, a = await room.enter("ann")
    bob, b = await room.enter("bob")
    room.sent()
    await ann.type('{"logout": 1}')
    assert [await ann.line(), await ann.line()] == [{"bye": "logout"}, None]
    await bob.stream.send_eof()
    assert await bob.line() is None
    assert room.sent() == [("logout", "ann", a), ("logout", "bob", b)]


async def test_a_record_closes_only_the_connection_that_it_names(room: Room) -> None:
    old, first = await room.enter("ann")
    new, second = await room.enter("ann")
    named = {"uid": "ann", "gateway": "chat", "reason": "silence"}
    for other in (
        {**named, "kind": "offline"},
        {**named, "kind": "offline", "conn": first - 1},
        {**named, "kind": "offline", "conn": first, "gateway": "another"},
        {
            **named,
            "kind": "moved",
            "conn": second,
            "from": "another",
            "from_conn": first,
        },
        {"kind": "gap", "first": 1, "until": 2},
    ):
        room.gateway.told(other)
    assert len(room.gateway.room) == 2
    room.gateway.told({**named, "kind": "moved", "from": "chat", "from_conn": first})
    assert [await old.line(), await old.line()] == [{"bye": "moved"}, None]
    room.gateway.told({**named, "kind": "offline", "conn": second})
    assert [await new.line(), await new.line()] == [{"bye": "silence"}, None]
    assert room.gateway.room == {}


async def test_after_a_record_no_line_of_the_connection_is_reported(room: Room) -> None:
    ann, conn = await room.enter("ann")
    await ann.type('{"ping": 1}')
    assert await ann.line() == {"pong": 1}
    room.sent()
    await ann.type('{"ping": 1}')
    room.gateway.told(
        {"kind": "offline", "gateway": "chat", "conn": conn, "reason": "silence"}
    )
    assert await ann.line() == {"bye": "silence"}
    assert await ann.line() is None
    assert room.sent() == [("logout", "ann", conn)]


async def test_a_full_gateway_says_so_until_somebody_leaves() -> None:
    async with Room(most=1).open() as room:
        ann, _ = await room.enter("ann")
        more = await room.connect()
        assert await more.line() == {"bye": "the gateway is full, come back later"}
        assert await more.line() is None
        await ann.stream.send_eof()
        assert await ann.line() is None
        await room.enter("bob")


async def test_a_connection_that_reads_too_slowly_is_told_to_end() -> None:
    outbox, unsent = trio.open_memory_channel[bytes](1)
    connection = Connection(7, outbox, trio.CancelScope())
    connection.send(b"one")
    assert not connection.reading.cancel_called
    connection.send(b"two")
    assert connection.reading.cancel_called
    assert unsent.receive_nowait() == b"one"


async def test_who_does_not_read_is_cut_off_and_the_others_go_on(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "LINE_PAUSE_S", 0.0)
    monkeypatch.setattr(gateway_module, "LAST_LINES_S", 0.01)
    _, conn = await room.enter("slow")
    ann, _ = await room.enter("ann")
    room.sent()
    line = json.dumps({"say": "x" * 4_000})
    with trio.fail_after(END_S):
        while conn in room.gateway.room:
            await ann.type(line)
            assert (await ann.line())["uid"] == "ann"
    assert ("logout", "slow", conn) in room.sent()
    await ann.type('{"ping": 1}')
    assert await ann.line() == {"pong": 1}
