"""`liveness watch` against a scripted sidecar on a real Unix socket.

The sidecar here knows `proto/README.md` and nothing of the command: it refuses a hello that
the contract does not allow, and delivers what the contract promises.
"""

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from math import inf
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest
import trio
import trio.lowlevel

from liveness.cli.watch import watch
from liveness.console.admin_client import CommandError, unreachable
from liveness.console.record_feed import RecordFeed, WatcherLink, jittered
from liveness.console.record_lines import in_colours, json_line, text_line
from tests.helpers.peer import WELCOME, Endpoint, timer
from tests.helpers.wire import Frame, Record, packed

MINUTE_MS = 60_000
SOON_S = 5  # long after everything here has happened
KINDS = {"online", "offline", "moved"}


def record(seq: int, kind: str = "online", **more: object) -> Record:
    """A record as the contract has it; of a user who came and went."""
    common = {"seq": seq, "kind": kind, "uid": f"user-{seq}", "gateway": "chat-1"}
    common |= {"session": seq, "at": 1_800_000_000_000 + seq}
    if kind == "offline":
        silence = {"reason": "silence", "silence": 30.0012, "last": "keepalive"}
        return {**common, **silence, "seen": common["at"] - 30_001, **more}  # type: ignore[operator]
    if kind == "moved":
        common |= {"from": "chat-0", "from_session": 1}
    return {**common, "reason": "login", **more}


class ScriptedSidecar:
    """A log that others can watch, for as long as it is `open`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = "log-a"
        self.kept: list[Record] = []
        self.next = 1
        self.repeats = 0  # records delivered once more, as "at least once" allows
        self.hellos: list[Record] = []
        self.greeting: bytes | None = None  # in place of `welcome`
        self._watched = trio.Event()
        self._links: dict[Endpoint, Record] = {}  # with their hellos
        self._open = trio.CancelScope()

    async def open(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with await anyio.create_unix_listener(self.path) as listener:
            with trio.CancelScope() as self._open:
                task_status.started()
                await listener.serve(self._link)
        self.path.unlink()

    async def close(self, *frame: object) -> None:
        """Ends every connection, each with *frame* if there is one, and listens no more."""
        if frame:
            await self.tell(*frame)
        self._open.cancel()
        self._links.clear()
        self._watched = trio.Event()
        while self.path.exists():
            await trio.lowlevel.checkpoint()

    async def tell(self, *frame: object) -> None:
        """Sends *frame* to everyone who watches."""
        for link in list(self._links):
            await link.send([*frame])

    async def is_watched(self) -> None:
        """Waits until somebody watches."""
        with trio.fail_after(SOON_S):
            await self._watched.wait()

    async def append(self, *kinds: str, **more: object) -> None:
        """Writes a record of each kind, then shows them to those who watch."""
        for kind in kinds:
            self.kept.append(record(self.next, kind, **more))
            self.next += 1
        for link, hello in list(self._links.items()):  # some end meanwhile
            await self._deliver(link, hello, self.kept[-len(kinds) :])

    def trim(self, until: int) -> None:
        self.kept = [one for one in self.kept if one["seq"] >= until]

    async def _link(self, stream: anyio.abc.SocketStream) -> None:
        async with stream:
            link = Endpoint(stream)
            link.within_s = inf
            while (frame := await link.receive()) is not None:
                await self._greet(link, frame)
            self._links.pop(link, None)

    async def _greet(self, link: Endpoint, frame: list[Any]) -> None:
        name, hello = frame
        assert (name, hello["protocol"], hello["role"]) == ("hello", 1, "watcher")
        assert 1 <= len(hello["name"].encode()) <= 64
        assert hello["scope"] == "all"
        assert hello["ack"] is False
        assert set(hello.get("kinds", [])) <= KINDS
        assert not hello.get("after") or "log" in hello
        self.hellos.append(hello)
        if self.greeting is not None:
            await link.send_bytes(self.greeting)
            return
        welcome = WELCOME | {"features": [], "log": self.log, "next": self.next}
        await link.send(["welcome", welcome])
        self._links[link] = hello
        await self._deliver(link, hello, self._due(hello))
        self._watched.set()

    def _due(self, hello: Record) -> list[Record]:
        if "after" not in hello:
            return []
        oldest = self.kept[0]["seq"] if self.kept else self.next
        after = hello["after"]
        if hello.get("log", self.log) != self.log or after >= self.next:
            after = oldest - 1
        due = [one for one in self.kept if one["seq"] > after - self.repeats]
        if after + 1 < oldest:
            gap = {"seq": oldest - 1, "kind": "gap", "at": MINUTE_MS}
            due.insert(0, {**gap, "first": after + 1, "until": oldest})
        return due

    async def _deliver(
        self, link: Endpoint, hello: Record, records: list[Record]
    ) -> None:
        wanted = {*hello.get("kinds", KINDS), "gap"}
        shown = [one for one in records if one["kind"] in wanted]
        if shown:
            await link.send(["notices", shown])


@pytest.fixture
async def sidecar(
    tmp_path: Path, nursery: trio.Nursery
) -> AsyncIterator[ScriptedSidecar]:
    sidecar = ScriptedSidecar(tmp_path / "gateway.sock")
    await nursery.start(sidecar.open)
    yield sidecar
    nursery.cancel_scope.cancel()


class Watch:
    """A running feed, and all that came of it."""

    def __init__(self, path: Path, **options: Any) -> None:
        options = {"after": None, "kinds": (), **options}
        self.records: list[Record] = []
        self.told: list[str] = []
        self._wanted, self._reached = 0, trio.Event()
        self.feed = RecordFeed(
            path, report_line=self.told.append, pause_s=lambda: 0, **options
        )

    async def run(self) -> None:
        with trio.fail_after(2 * SOON_S):
            await self.feed.follow(self._show)

    def _show(self, records: list[Record]) -> bool:
        self.records += records
        if len(self.records) >= self._wanted:
            self._reached.set()
        return False

    async def seqs(self, count: int) -> list[int]:
        """The `seq` of every record so far, once there are *count*."""
        self._wanted, self._reached = count, trio.Event()
        if len(self.records) < count:
            with trio.fail_after(SOON_S):
                await self._reached.wait()
        return [one["seq"] for one in self.records]


@pytest.fixture
async def watching(sidecar: ScriptedSidecar, nursery: trio.Nursery) -> Watch:
    """A watch that has been welcomed, and shows new records."""
    watch = Watch(sidecar.path)
    nursery.start_soon(watch.run)
    await sidecar.is_watched()
    return watch


async def lines(sidecar: ScriptedSidecar, count: int, **options: Any) -> list[str]:
    """What `watch --after 0 --count` writes."""
    out = io.StringIO()
    options = {"after": 0, "kinds": (), "as_json": False, **options}
    with trio.fail_after(SOON_S):
        await watch(
            sidecar.path, count=count, out=out, report_line=lambda _: None, **options
        )
    return out.getvalue().splitlines()


# --- what is shown --------------------------------------------------------------------


async def test_without_after_only_new_records_are_shown(
    sidecar: ScriptedSidecar, nursery: trio.Nursery
) -> None:
    await sidecar.append("online")
    watching = Watch(sidecar.path)
    nursery.start_soon(watching.run)
    await sidecar.is_watched()
    await sidecar.close("bye", {"reason": "restart"})  # before the first record
    await sidecar.append("offline", "online")
    await nursery.start(sidecar.open)
    assert await watching.seqs(2) == [2, 3]
    assert watching.told[0] == f"watching {sidecar.path} from seq 2 on"


async def test_after_zero_shows_all_that_is_kept(sidecar: ScriptedSidecar) -> None:
    await sidecar.append("online", "offline", "moved")
    shown = await lines(sidecar, 3, as_json=True)
    assert [json.loads(line) for line in shown] == sidecar.kept
    assert "log" not in sidecar.hellos[0]


async def test_after_a_seq_asks_first_which_log_it_is(sidecar: ScriptedSidecar) -> None:
    await sidecar.append("online", "online", "online")
    (shown,) = await lines(sidecar, 1, after=2, as_json=True)
    assert json.loads(shown)["seq"] == 3
    first, second = sidecar.hellos
    assert "after" not in first
    assert (second["after"], second["log"]) == (2, "log-a")


async def test_after_the_newest_seq_waits_for_the_next(
    sidecar: ScriptedSidecar, nursery: trio.Nursery
) -> None:
    await sidecar.append("online")
    watching = Watch(sidecar.path, after=1)
    nursery.start_soon(watching.run)
    while len(sidecar.hellos) < 2:
        await trio.lowlevel.checkpoint()
    await sidecar.append("online")
    assert await watching.seqs(1) == [2]


async def test_after_a_seq_above_the_newest_is_a_mistake(
    sidecar: ScriptedSidecar,
) -> None:
    await sidecar.append("online")
    with pytest.raises(CommandError, match=r"--after 2: .* the newest is 1$"):
        await Watch(sidecar.path, after=2).run()


async def test_only_the_kinds_asked_for_are_shown_and_every_gap(
    sidecar: ScriptedSidecar,
) -> None:
    await sidecar.append("online", "online", "offline", "moved", "offline")
    sidecar.trim(2)
    shown = await lines(sidecar, 3, kinds=("offline",), as_json=True)
    kinds = [json.loads(line)["kind"] for line in shown]
    assert kinds == ["gap", "offline", "offline"]
    assert sidecar.hellos[-1]["kinds"] == ["offline"]


async def test_count_ends_it_in_the_middle_of_a_frame(sidecar: ScriptedSidecar) -> None:
    await sidecar.append("online", "online", "online")
    assert len(await lines(sidecar, 2)) == 2


def test_two_watchers_never_have_the_same_name(tmp_path: Path) -> None:
    names = {Watch(tmp_path).feed._hello()["name"] for _ in range(100)}
    assert len(names) == 100


# --- lines for a person ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (record(4), "online   user-4  chat-1  login  seq 4"),
        (
            record(5, "offline"),
            "offline  user-5  chat-1  silence  30.001 s since keepalive  seq 5",
        ),
        (
            {**record(5, "offline", restored=True), "last": None},
            "offline  user-5  chat-1  silence  30.001 s since the restart  seq 5",
        ),
        (record(6, "moved"), "moved    user-6  chat-1 from chat-0  login  seq 6"),
        (
            record(6, "moved", from_session=None),
            "moved    user-6  chat-1, older connection at chat-0  login  seq 6",
        ),
        (record(7, uid=7), "online   int:7  chat-1  login  seq 7"),
        (record(7, uid="7"), "online   7  chat-1  login  seq 7"),
        (
            record(8, uid="a\nb\x1b[2J\u202e"),
            r"online   a\nb\x1b[2J\u202e  chat-1  login  seq 8",
        ),
        (
            {"seq": 9, "kind": "gap", "first": 3, "until": 10, "at": MINUTE_MS},
            "gap      records 3 to 9 are no longer kept  seq 9",
        ),
        (
            timer(
                9, "order:17\n", "chat\x1b", attempt=2, due=MINUTE_MS - 7, at=MINUTE_MS
            ),
            r"timer    order:17\n  chat\x1b  attempt 2  0.007 s late  seq 9",
        ),
    ],
)
def test_a_record_is_one_line_for_a_person(shown: Record, expected: str) -> None:
    when, _, what = text_line(shown).partition("  ")
    assert what == expected
    assert len(when) == len("2026-11-20 10:47:03.123")


@pytest.mark.parametrize("kind", ["online", "offline", "moved"])
def test_colours_are_all_that_they_add_to_a_line(kind: str) -> None:
    shown = record(1, kind, uid="\x1b[31mu\x9b", gateway="\x1b]0;g\x07")
    painted = text_line(shown, paint=in_colours)
    colours = re.compile(r"\x1b\[(2|3[0-7])m([^\x1b]*)\x1b\[0m")
    assert colours.sub(r"\2", painted) == text_line(shown)
    assert text_line(shown).isprintable()
    pieces = [piece for _, piece in colours.findall(painted)]
    assert f"{kind:<7}" in pieces
    assert pieces[0] == text_line(shown).partition("  ")[0]


def test_a_record_as_json_keeps_large_integers_and_terminals_whole() -> None:
    line = json_line(record(1, uid=2**63 - 1, gateway="\x9b\u202eé"))
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["uid"] == "int:9223372036854775807"
    assert json.loads(line)["gateway"] == "\x9b\u202eé"


# --- over restarts --------------------------------------------------------------------


def error(code: str, *, fatal: bool = True) -> Frame:
    return ["error", {"code": code, "message": "for\nnow", "fatal": fatal, "n": 1}]


@pytest.mark.parametrize(
    ("farewell", "why"),
    [
        ((), "the connection was closed"),
        (("bye", {"reason": "restart"}), "it says bye: restart"),
        (error("overloaded"), r"it says overloaded: for\nnow"),
        (error("internal"), r"it says internal: for\nnow"),
        (error("too-slow"), r"it says too-slow: for\nnow"),
    ],
    ids=["killed", "bye", "overloaded", "internal", "too slow"],
)
async def test_when_its_link_ends_it_goes_on_without_a_gap_or_a_repeat(
    sidecar: ScriptedSidecar,
    nursery: trio.Nursery,
    watching: Watch,
    farewell: tuple[object, ...],
    why: str,
) -> None:
    await sidecar.append("online", "online")
    await watching.seqs(2)
    await sidecar.close(*farewell)
    await sidecar.append("offline", "online")  # while nobody can listen
    sidecar.repeats = 2
    sidecar.greeting = packed(error("overloaded"))  # not over at once
    await nursery.start(sidecar.open)
    while len(sidecar.hellos) < 3:
        await trio.lowlevel.checkpoint()
    sidecar.greeting = None
    await sidecar.is_watched()
    await sidecar.append("online")
    assert await watching.seqs(5) == [1, 2, 3, 4, 5]
    assert watching.told[1:] == [
        f"lost {sidecar.path} ({why}): connecting again",
        "connected again, continuing after seq 2",
    ]
    assert sidecar.hellos[0]["name"] == sidecar.hellos[-1]["name"]


async def test_an_error_that_passes_ends_a_watch_that_has_not_begun(
    sidecar: ScriptedSidecar,
) -> None:
    sidecar.greeting = packed(error("overloaded"))
    with pytest.raises(
        CommandError, match=r"it says overloaded: .*; see the sidecar's"
    ):
        await Watch(sidecar.path).run()


async def test_an_error_that_is_not_fatal_is_reported_and_passed_over(
    sidecar: ScriptedSidecar, watching: Watch
) -> None:
    await sidecar.tell(*error("bad-option", fatal=False))
    await sidecar.append("online")
    assert await watching.seqs(1) == [1]
    assert watching.told[1:] == [
        rf"{sidecar.path} refused a frame: for\nnow (bad-option); going on"
    ]


def nothing_else(_sidecar: ScriptedSidecar) -> None:
    pass


def log_is_new(sidecar: ScriptedSidecar) -> None:
    sidecar.log, sidecar.kept, sidecar.next = "log-b", [], 1


def log_loses_its_end(sidecar: ScriptedSidecar) -> None:
    sidecar.kept, sidecar.next = sidecar.kept[:1], 2


def retention_passes_it(sidecar: ScriptedSidecar) -> None:
    sidecar.kept, sidecar.next = [], 6


@pytest.mark.parametrize(
    ("happens", "seqs"),
    [
        (nothing_else, [4]),
        (log_is_new, [1]),
        (log_loses_its_end, [1, 2]),
        (retention_passes_it, [5, 6]),
    ],
)
async def test_after_a_restart_it_shows_what_is_new_of_the_log_that_it_finds(
    sidecar: ScriptedSidecar,
    nursery: trio.Nursery,
    watching: Watch,
    happens: Callable[[ScriptedSidecar], None],
    seqs: list[int],
) -> None:
    await sidecar.append("online", "online", "online")
    await watching.seqs(3)
    await sidecar.close()
    happens(sidecar)
    await sidecar.append("online")
    await nursery.start(sidecar.open)
    assert await watching.seqs(3 + len(seqs)) == [1, 2, 3, *seqs]
    is_gap = happens is retention_passes_it
    assert (watching.records[3]["kind"] == "gap") == is_gap
    said = "the log is a new one: all its records follow" in watching.told
    assert said == (happens in (log_is_new, log_loses_its_end))


def test_the_pause_before_a_new_attempt_is_under_a_second_and_never_none() -> None:
    pauses = [jittered() for _ in range(1_000)]
    assert min(pauses) >= 0.05
    assert max(pauses) <= 1
    assert len(set(pauses)) > 900


# --- what ends it ---------------------------------------------------------------------


@pytest.mark.parametrize("code", ["replaced", "not-allowed", "bad-hello", "not-known"])
async def test_being_replaced_or_refused_ends_it_with_one_line(
    sidecar: ScriptedSidecar, code: str
) -> None:
    watching = Watch(sidecar.path)
    async with trio.open_nursery() as ending:
        ending.start_soon(ended_by, code, watching)
        await sidecar.is_watched()
        await sidecar.close(*error(code))


async def ended_by(code: str, watching: Watch) -> None:
    with pytest.raises(CommandError, match=rf"ended this watch: for\\nnow \({code}\)"):
        await watching.run()


async def test_a_refused_hello_ends_it_with_the_sidecars_own_words(
    sidecar: ScriptedSidecar,
) -> None:
    sidecar.greeting = packed(error("unsupported-protocol"))
    await ended_by("unsupported-protocol", Watch(sidecar.path))


async def test_a_refusal_before_the_hello_is_shown_in_the_sidecars_words() -> None:
    ours, theirs = trio.socket.socketpair()
    await theirs.send(packed(error("not-allowed")))
    theirs.close()
    async with WatcherLink(
        trio.SocketStream(ours), Path("/s"), report_line=print
    ) as link:
        with pytest.raises(CommandError, match=r"for\\nnow \(not-allowed"):
            await link.greet({})


ENDLESS = b"\xdc\xff\xff" + bytes(1_001)


@pytest.mark.parametrize(
    "greeting",
    [b"HTTP/1.1 400 Bad\r\n\r\n", b"\x80", b"\x90", b"\x91\xa1\xff", b"\xc1", ENDLESS],
)
async def test_a_server_that_is_no_sidecar_is_reported_as_such(
    sidecar: ScriptedSidecar, monkeypatch: pytest.MonkeyPatch, greeting: bytes
) -> None:
    monkeypatch.setattr("liveness.console.record_feed.MAX_UNREAD_BYTES", 1_000)
    sidecar.greeting = greeting
    with pytest.raises(
        CommandError, match="is not a liveness sidecar: name the right socket"
    ):
        await Watch(sidecar.path).run()


async def test_a_sidecar_that_does_not_answer_is_reported(
    sidecar: ScriptedSidecar, mock_clock: trio.testing.MockClock
) -> None:
    sidecar.greeting = b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(does_not_answer, Watch(sidecar.path))
        while not sidecar.hellos:
            await trio.lowlevel.checkpoint()
        mock_clock.jump(5)


async def does_not_answer(watching: Watch) -> None:
    with pytest.raises(CommandError, match="it does not answer; see the sidecar's log"):
        await watching.run()


async def test_without_a_sidecar_from_the_start_it_does_not_wait(
    tmp_path: Path,
) -> None:
    path = tmp_path / "none.sock"
    told = f"no sidecar at {path}: start it with `liveness serve`, or name another"
    with pytest.raises(CommandError, match=told):
        await Watch(path).run()


def test_a_socket_without_permission_is_reported() -> None:
    # As root everything may be opened, so the error is made here.
    told = str(unreachable(Path("/s"), PermissionError(13, "Permission denied")))
    assert told == "not allowed to connect to /s: run this as its user, or in its group"


# --- as a process ---------------------------------------------------------------------


async def started(path: Path, stdout: int) -> trio.Process:
    """`liveness watch` in a process of its own, once it says that it watches."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "liveness", "watch", "--socket", str(path)],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    )
    assert process.stderr
    with trio.fail_after(2 * SOON_S):
        assert b"watching" in await process.stderr.receive_some()
    return process


async def ending(process: trio.Process) -> tuple[int, bytes]:
    assert process.stderr
    with trio.fail_after(2 * SOON_S):
        rest = b"".join([data async for data in process.stderr])
        return await process.wait(), rest


async def test_ctrl_c_ends_it_silently(sidecar: ScriptedSidecar) -> None:
    process = await started(sidecar.path, subprocess.DEVNULL)
    process.send_signal(signal.SIGINT)
    assert await ending(process) == (130, b"")


async def test_it_ends_silently_when_its_output_is_closed(
    sidecar: ScriptedSidecar,
) -> None:
    reader, writer = os.pipe()
    process = await started(sidecar.path, writer)
    os.close(writer)
    os.close(reader)
    await sidecar.is_watched()
    await sidecar.append("online")
    assert await ending(process) == (141, b"")
