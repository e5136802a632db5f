"""Links over real sockets: the content, order and time of frames, and the ends of links."""

import gc
import socket
import sqlite3
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog
import trio
from trio.testing import MockClock

from liveness.config.settings import TimerSettings
from liveness.core.links.requests import RESET_STEPS
from liveness.core.records import HostReading, HostTime, Uid
from liveness.core.wheel.record_batch import Encoded
from liveness.service.common.clock import Clock
from liveness.service.common.logs import REPEAT_LOG_S
from liveness.service.engine import engine_shell
from liveness.service.links.link_socket import LINGER_S, PIECE_BYTES
from liveness.service.storage import log_store, online_list
from liveness.service.storage.log_tail import TailReader
from liveness.service.storage.log_writer import COMMIT_EVERY_S
from tests.helpers import disk
from tests.helpers.wire import hello, packed
from tests.service.rig import WAITING_PER_S, Caller, Rig, running


def crowd(size: int, prefix: str = "u") -> list[Uid]:
    """Users enough for the database to need new pages."""
    return [f"{prefix}{n:06}" for n in range(size)]


def seqs(records: list[dict[str, Any]]) -> list[int]:
    return [record["seq"] for record in records]


async def fresh(rig: Rig, name: str, *frames: list[Any]) -> Caller:
    """A gateway that starts fresh, with its first frames; it is not welcomed yet."""
    caller = await rig.connect()
    await caller.send(["hello", {"protocol": 1, "name": name, "fresh": True}], *frames)
    return caller


# --- replies ---------------------------------------------------------------------------


async def test_nothing_is_sent_before_what_it_shows_is_on_disk(rig: Rig) -> None:
    gateway, newcomer = await rig.gateway("g"), await rig.connect()
    reader, *askers = [await rig.watcher(f"w{n}") for n in range(3)]
    asked: list[list[Any]] = [["where", ["u000001"]], ["list"]]
    with rig.disk_full():
        await gateway.send(["login", crowd(3_000)], ["ping", "after"])
        await rig.until(lambda: len(rig.presence) == 3_000)
        for asker, question in zip(askers, asked, strict=True):
            await asker.send(question)
        await newcomer.send(["hello", {"protocol": 1, "name": "new"}])
        for caller in (gateway, newcomer, reader, *askers):
            assert await caller.is_told_nothing(5)
    assert await gateway.expect("pong") == ["after"]
    assert len(rig.log()) == 3_000
    assert seqs(await reader.records(3_000)) == list(range(1, 3_001))
    for asker, question in zip(askers, asked, strict=True):
        await asker.records(3_000)
        (rows, *_) = await asker.expect(question[0])
        assert ["u000001", "g", 2, None] in rows
    # The position of a new name is on disk as well.
    (welcome,) = await newcomer.expect("welcome")
    assert welcome["next"] == 3_001
    assert rig.store.cursors()["gateway", "new"].seq == 3_000


async def test_a_new_name_is_on_disk_before_welcome_also_beside_a_timer(
    rig: Rig,
) -> None:
    # Both are in one commit, of which the log would have nothing but the name.
    other, newcomer = await rig.gateway("other"), await rig.connect()
    await trio.sleep(5)
    async with trio.open_nursery() as at_once:
        at_once.start_soon(other.send, ["after", "k", 10_000])
        at_once.start_soon(newcomer.send, ["hello", {"protocol": 1, "name": "new"}])
    await newcomer.expect("welcome")
    assert ("gateway", "new") in rig.store.cursors()


@pytest.mark.parametrize(
    "scope",
    [
        pytest.param("own", marks=pytest.mark.rig(tail=1_000)),  # from disk
        pytest.param("all", marks=pytest.mark.rig(tail=100_000)),
    ],
)
async def test_before_a_second_pong_come_records_that_the_first_one_covers(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, scope: str
) -> None:
    async def slow(*args: Any, **options: Any) -> Encoded:
        await trio.sleep(0.1)
        return await take_encoded(*args, **options)

    take_encoded = TailReader.take_encoded
    monkeypatch.setattr(TailReader, "take_encoded", slow)
    monkeypatch.setattr(log_store, "SCAN_RECORDS", 1_000)
    gateway, other = await rig.gateway("g"), await rig.gateway("h")
    await gateway.apply(["login", "first"])
    await other.apply(["login", crowd(2_500)])
    await gateway.apply(["login", "last"])
    reader = await rig.connect()
    asked = {"after": 0, "log": rig.store.log, "ack": False}
    await reader.send(hello("g", role="watcher", scope=scope, **asked), ["ping", 0])
    await reader.expect("welcome")
    arrived, between = list[Uid](), list[int]()
    while len(between) < 2 or between[-1]:
        between.append(0)
        while (frame := await reader.receive()) is not None and frame[0] == "notices":
            between[-1] += len(frame[1])
            arrived += [record["uid"] for record in frame[1]]
        assert frame == ["pong", len(between) - 1]
        await reader.send(["ping", len(between)])
    assert (arrived[-1], len(arrived)) == ("last", 2 if scope == "own" else 2_502)


async def test_a_commit_that_a_pong_waits_for_is_not_delayed(rig: Rig) -> None:
    gateway = await rig.gateway("g")
    for n in range(5):  # so far apart, commits would be a little later each time
        began = trio.current_time()
        await gateway.send(["login", f"u{n}"], ["ping", n])
        await gateway.expect("pong")
        assert trio.current_time() - began < COMMIT_EVERY_S / 2


async def test_a_session_keeps_its_timeout_over_a_crash(
    tmp_path: Path, jumping: MockClock
) -> None:
    def in_force() -> tuple[float | None, ...]:
        found = [rig.engine.status_of(uid) for uid in ("of the server", "of a hello")]
        return tuple(None if user is None else user.timeout for user in found)

    async with running(tmp_path, timeout_s=40) as rig:
        await rig.gateway_of("of the server", "first")
        await rig.gateway_of("of a hello", timeout=60)
        await rig.gateway("g", timeout=2)
    for _ in range(2):
        async with running(tmp_path, timeout_s=5) as rig:
            assert in_force() == (40, 60)
            await rig.gateway("g", timeout=2)
    async with running(tmp_path, timeout_s=5) as rig:
        await rig.gateway("g", timeout=2)
        await trio.sleep(58)
        assert rig.store.cursors()["gateway", "g"].in_force == 60
        await trio.sleep(15)
        assert in_force() == (None, None)
        assert rig.store.cursors()["gateway", "g"].in_force == 2


def test_a_moment_of_the_host_is_the_same_for_all_links(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offsets = iter([7.0, 7.1])  # as it is measured
    monkeypatch.setattr(
        "liveness.service.common.clock.read_host",
        lambda _: HostReading(HostTime(1.0, 2.0), next(offsets)),
    )
    clock = Clock()
    readings = [clock.host(), clock.host()]
    assert [reading and reading.offset for reading in readings] == [7.0, 7.0]


@pytest.mark.rig(
    timeout_s=15,
    max_batch=100,
    max_frame_bytes=9_000,
    window=50,
    timers=TimerSettings(run_timeout_s=7),
)
async def test_welcome_has_the_limits_and_times_that_are_set(rig: Rig) -> None:
    expected: dict[str, float] = {"max_batch": 100, "max_frame": 9_000, "window": 50}
    expected |= {"timeout": 15, "flush": 0.5, "run_timeout": 7}
    for options in ({}, {"timeout": 45}):
        welcome = await (await rig.connect()).hello("g", **options)
        assert welcome == welcome | expected | options


# --- endings ---------------------------------------------------------------------------


async def test_a_new_link_replaces_the_one_of_its_name_and_role(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, watcher = await rig.gateway("g"), await rig.watcher("g", kinds=[])
    newer = await rig.connect()
    # Both can be read when the hand turns, and for the older one there is no time any
    # more: other gateways took it. What it had sent counts all the same.
    monkeypatch.setattr(engine_shell, "READING_S", -1.0)
    await newer.send(["hello", {"protocol": 1, "name": "g"}])
    await older.send(["login", "u", {"conn": 1}], ["ping", 1])
    (welcome,) = await newer.expect("welcome")
    monkeypatch.undo()
    assert await newer.is_told_nothing(1)
    _, error = await older.last()
    assert (error["code"], error["fatal"]) == ("replaced", True)
    assert welcome["next"] == 2
    await newer.send(["where", ["u"]])
    assert await newer.expect("where") == [[["u", "g", 1, 1]]]
    await watcher.sync()
    assert rig.registry.linked("gateway") == rig.registry.linked("watcher") == 1


async def test_a_link_that_ended_leaves_no_reader_of_the_log(rig: Rig) -> None:
    def readers() -> int:
        gc.collect()
        return sum(isinstance(it, TailReader) for it in gc.get_objects())

    before, first = readers(), await rig.watcher("first")
    await rig.watcher("second")
    assert readers() == before + 2
    first.close()
    await rig.until(lambda: len(rig.registry.links) == 1)
    assert readers() == before + 1


async def test_a_link_that_sends_little_is_read_in_small_pieces(rig: Rig) -> None:
    gateway = await rig.gateway("g")
    for _ in range(8):
        await gateway.sync()
    (socket,) = rig.engine.shell.sockets.values()
    assert socket.piece_bytes == PIECE_BYTES


@pytest.mark.rig(pause_reading=1_200)
async def test_a_link_that_sends_little_is_read_empty_on_a_slow_disk(rig: Rig) -> None:
    # Or its due users would wait for another turn, whenever it acknowledges something.
    gateway, other = await rig.gateway("g"), await rig.gateway("other")
    state = rig.presence.gateways.by_name["g"]
    with rig.disk_full():
        await other.send(["login", crowd(800)])
        await rig.until(lambda: rig.log_writer.failure)
        before = state.heard_at
        await gateway.send(["ack", 0])
        await rig.until(lambda: state.heard_at > before)
        assert state.empty_at == state.heard_at


async def test_a_caller_that_sends_on_after_an_error_is_closed(rig: Rig) -> None:
    caller = await rig.connect()

    async def send_on() -> None:
        with suppress(anyio.BrokenResourceError):
            while True:
                await caller.send(["keepalive", "u"])
                await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_on)
        assert await rig.until(lambda: not rig.registry.links) <= LINGER_S + 0.2
    assert (await caller.last())[1]["code"] == "not-hello"
    assert len(rig.presence) == 0


@pytest.mark.rig(timeout_s=3_600, tail=1_000)
async def test_a_log_that_cannot_be_read_is_logged_once_a_minute(rig: Rig) -> None:
    gateway = await rig.gateway_of(crowd(1_000, "a"))
    for prefix in "bc":
        await gateway.apply(["login", crowd(1_000, prefix)])
    with closing(sqlite3.connect(rig.store.path)) as db:
        db.execute("alter table log rename to gone")
    with structlog.testing.capture_logs() as said:
        for number in range(5):
            await rig.watcher(f"w{number}", after=0)
        await trio.sleep(2.5 * REPEAT_LOG_S)
        await gateway.sync()
    lines = [
        line for line in said if line["event"].startswith("the log cannot be read")
    ]
    assert len(lines) == 3
    # A try a second of each.
    assert 5 * 50 <= lines[1]["suppressed"] <= 5 * 61


async def test_a_fault_of_ours_ends_its_link_and_no_other(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("planted")

    unlucky, other = await rig.gateway("unlucky"), await rig.gateway_of("u", "other")
    with structlog.testing.capture_logs() as said, monkeypatch.context() as patch:
        patch.setattr(online_list, "write_frames", broken)
        await unlucky.send(["login", "v"], ["ping", 1], ["list"])
        assert await unlucky.expect("pong") == [1]
        (error,) = await unlucky.expect("error")
        assert await unlucky.receive() is None
    assert (error["code"], error["fatal"]) == ("internal", True)
    assert "planted" not in error["message"]
    assert [line for line in said if line["event"] == "a fault of the sidecar"]
    assert rig.counts.refused["internal"] == 1
    assert not rig.gateways["unlucky"].is_linked
    await other.send(["where", ["u", "v"]])
    (rows,) = await other.expect("where")
    assert [uid for uid, *_ in rows] == ["u", "v"]


async def test_a_farewell_answers_first_and_accepts_nobody_more(rig: Rig) -> None:
    gateway, watcher = await rig.gateway("g"), await rig.watcher()
    stranger = await rig.connect()
    await rig.until(lambda: len(rig.registry.links) == 3)
    await gateway.send(["login", "u"], ["ping", 1], ["where", ["u"]])
    while not rig.engine.drain():
        await trio.lowlevel.checkpoint()
    await rig.log_writer.flushed()
    rig.engine.close_links("testing")
    assert await gateway.expect("pong") == [1]
    assert await gateway.expect("where") == [[["u", "g", 1, None]]]
    assert await gateway.receive() == ["bye", {"reason": "testing"}]
    assert await gateway.receive() is None
    assert await watcher.last() == ["bye", {"reason": "testing"}]
    assert await stranger.receive() is None
    for caller in (gateway, watcher, stranger):
        caller.close()
    with trio.fail_after(3):
        await rig.engine.all_closed.wait()
    # A caller that comes now waits for the next process, if the socket is kept.
    assert await (await rig.connect()).is_told_nothing(10)


# --- gateways that come back fresh -------------------------------------------------------


@pytest.mark.rig(pause_firing=100)
async def test_a_second_link_goes_on_ending_what_a_fresh_one_lost(rig: Rig) -> None:
    await rig.gateway_of(crowd(3_000))
    other = await rig.gateway_of(crowd(3_000, "other"), "other")
    with rig.disk_full():
        # So much waits for the disk that nothing is ended yet.
        await other.send(["logout", crowd(3_000, "other")])
        await rig.until(lambda: rig.log_writer.failure)
        second = await rig.connect()
        await fresh(rig, "g", ["login", "lost with the first"])
        await trio.sleep(1)
        await second.send(["hello", {"protocol": 1, "name": "g"}], ["login", "kept"])
        assert await second.is_told_nothing(5)
    await second.expect("welcome")
    ended = await second.records(3_000)
    assert {(end["gateway"], end["reason"]) for end in ended} == {("g", "gateway_lost")}
    await second.send(["list"])
    rows, _ = await second.expect("list")
    # It came online after all of them had ended, not before.
    assert rows == [["kept", "g", ended[-1]["seq"] + 1, None]]


async def test_one_walk_over_the_table_serves_many_fresh_gateways(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"g{n}" for n in range(30)]
    looked: Counter[int] = Counter()  # places of the table, by turn
    lose = rig.firing.reset_sessions

    def noted(*args: Any, limit: int) -> int:
        looked[len(rig.turns)] += limit
        return lose(*args, limit=limit)

    monkeypatch.setattr(rig.firing, "reset_sessions", noted)
    for name in names:
        await rig.gateway_of(crowd(200, name), name)
    again = [await fresh(rig, name, ["login", name], ["ping", 1]) for name in names]
    for gateway in again:
        await gateway.expect("welcome")
        assert await gateway.expect("pong") == [1]
    assert len(rig.presence) == len(names)
    assert max(looked.values()) == RESET_STEPS
    # Those that come while one walk is under way may need the next.
    assert len(looked) <= 2 * (200 * len(names) / RESET_STEPS + 1)


# --- what waits for the disk ---------------------------------------------------------------


@pytest.mark.rig(pause_firing=500)
async def test_firing_pauses_while_too_much_waits_for_the_disk(rig: Rig) -> None:
    users = 4_000
    gateway = await rig.gateway("g")
    await gateway.apply(["login", crowd(users)])
    with rig.disk_full():
        await trio.sleep(60)
        assert rig.log_writer.failure
        # It went on as far as its bound, and not further.
        assert 0 < rig.log_writer.pending < 500 + 2_000
        assert len(rig.presence) >= users - rig.log_writer.pending
        assert await gateway.is_told_nothing(1)
    records = await gateway.records(users)
    assert {record["reason"] for record in records} == {"silence"}
    assert len({record["uid"] for record in records}) == users
    assert min(record["silence"] for record in records) >= 30
    assert rig.firing.early == 0


@pytest.mark.rig(pause_firing=500, pause_reading=1_000)
async def test_time_in_which_reading_is_paused_is_no_silence(rig: Rig) -> None:
    gateway = await rig.gateway("g")
    other = await rig.gateway_of("still there", "other")
    with rig.disk_full():
        await gateway.send(["login", crowd(4_000)])
        await rig.until(lambda: rig.log_writer.failure)
        before, turns = rig.attended.now, len(rig.turns)
        for _ in range(60):
            await other.send(["keepalive", "still there"])
            await trio.sleep(1)
        assert len(rig.turns) - turns <= 60 * WAITING_PER_S
        assert rig.presence.events["keepalive"] == 0
        assert rig.attended.now - before <= 1.1
        assert rig.attended.unattended >= 55
        assert rig.engine.hand_lag < 1
    await other.sync()
    assert rig.presence.events["keepalive"] == 60
    assert not rig.firing.ended.total()


@pytest.mark.rig(pause_reading=4_000)
async def test_a_socket_that_was_read_in_part_is_not_empty(rig: Rig) -> None:
    gateway, other = await rig.gateway("g"), await rig.gateway("other")
    await gateway.apply(["login", ["still there", "silent"]])
    with rig.disk_full():
        await other.send(["login", crowd(3_000)])
        await rig.until(lambda: rig.log_writer.failure)
        await trio.sleep(29.8)
        # So much waits for the disk that a link is read a piece a pass: this lasts
        # until both have been due for long, and only its end speaks for one of them.
        await gateway.send(*[["keepalive", "x" * 250]] * 400)
        await gateway.send(["keepalive", "still there"])
        await rig.until(lambda: rig.firing.ended["silence"])
    (record,) = await gateway.records(1)
    assert record["uid"] == "silent"
    assert record["silence"] > 30.2  # it was held until all was read


async def test_a_hello_unread_during_a_long_turn_is_not_too_late(
    tmp_path: Path, jumping: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed_s = 0.0
    monkeypatch.setattr(Clock, "cpu", lambda _clock: computed_s)
    async with running(tmp_path) as rig:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(rig.sidecar.config.socket.path))
            await rig.until(lambda: rig.registry.links)
            sock.sendall(packed(["hello", {"protocol": 1, "name": "g"}]))
            computed_s = 6.0
            jumping.jump(computed_s)
            rig.engine.turn()
            await rig.until(lambda: rig.registry.named)
    assert rig.counts.refused["too-slow"] == 0


# --- peers that are no gateways, or speak as none does --------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"POST /v1 HTTP/1.1\r\nContent-Length: 70000\r\n\r\n" + b"x" * 70_000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32),
    ],
    ids=["HTTP", "TLS"],
)
async def test_a_peer_of_another_protocol_is_refused_with_which_one_is_spoken(
    rig: Rig, data: bytes
) -> None:
    gateway, stranger = await rig.gateway("good"), await rig.connect()
    await stranger.send_bytes(data)
    (refusal,) = await stranger.expect("error")
    assert (refusal["code"], refusal["fatal"]) == ("bad-frame", True)
    expected = "this socket speaks msgpack, not HTTP, TLS or text"
    assert expected in refusal["message"]
    assert await stranger.receive() is None
    await gateway.sync()


async def test_a_gateway_cannot_log_out_list_acknowledge_or_cancel_for_another(
    rig: Rig,
) -> None:
    victim = await rig.gateway("victim", kinds=["online"])
    thief = await rig.gateway("thief")
    await victim.send(["login", ["u"], {"conn": [5]}], ["after", "k", 600])
    assert (await victim.records(1))[0]["seq"] == 1
    await thief.apply(
        ["logout", ["u"]],
        ["keepalive", ["u"], {"conn": [5]}],
        ["cancel", {"key": "k"}],
        ["ack", 1],
    )
    for caller, rows in ((thief, []), (victim, [["u", "victim", 1, 5]])):
        await caller.send(["list"])
        assert (await caller.expect("list"))[0] == rows
    assert rig.presence.ignored["other_gateway"] == 2
    timers = "select gateway, key from timers where next is not null"
    table = rig.log_writer.timers.table.path
    assert disk.rows(table, timers) == [("victim", "k")]
    assert rig.registry.unacked("victim") == 1
