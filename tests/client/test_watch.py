"""`liveness.watch`: records over restarts, acknowledged, and questions beside them."""

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio
from anyio.from_thread import start_blocking_portal
from trio.testing import MockClock

import liveness
from liveness.client.dialer import LinkLost
from liveness.client.inbox import RecordMap
from liveness.client.watcher import Watch
from liveness.testing import ScriptedSidecar, scripted_sidecar
from tests.helpers.log_peer import SOON_S, LogPeer
from tests.helpers.peer import Link, listening
from tests.helpers.wire import Frame, packed

Linked = tuple[ScriptedSidecar, liveness.Sidecar]


@pytest.fixture
async def linked() -> AsyncIterator[Linked]:
    """A sidecar whose users have devices, and its gateway."""
    async with (
        scripted_sidecar(within=SOON_S, device_separator="/") as script,
        liveness.connect(script.path, name="gw") as gateway,
    ):
        with anyio.fail_after(SOON_S):
            await gateway.connected()
            yield script, gateway


def read_by(script: ScriptedSidecar | LogPeer, **options: Any) -> Watch:
    """A watch that does not wait before it connects again."""
    return Watch(str(script.path), pause_between=lambda *_: 0, **options)


async def report(gateway: liveness.Sidecar, *uids: str) -> None:
    for uid in uids:
        gateway.login(uid, conn=gateway.new_conn())
    await gateway.flush()


@pytest.fixture
async def peer(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[LogPeer]:
    peer = LogPeer(tmp_path / "gateway.sock")
    await nursery.start(peer.open)
    yield peer
    nursery.cancel_scope.cancel()


@asynccontextmanager
async def reading(peer: LogPeer, **options: Any) -> AsyncIterator[Watch]:
    """A watch of new records that is linked, and closed in the end."""
    async with read_by(peer, **options) as watch:
        with trio.fail_after(SOON_S):
            await watch.connected()
        await peer.is_watched()
        yield watch


async def seqs(watch: Watch, count: int) -> list[int]:
    """The seqs of the next *count* records; all but the last are finished."""
    with trio.fail_after(SOON_S):
        return [(await anext(watch))["seq"] for _ in range(count)]


async def soon(watch: Watch) -> RecordMap:
    """The next record."""
    with trio.fail_after(SOON_S):
        return await anext(watch)


# --- records ---------------------------------------------------------------------------


async def test_a_program_that_starts_again_goes_on_behind_the_last_finished_record(
    linked: Linked,
) -> None:
    script, gateway = linked
    async with read_by(script, name="mailer") as watch:
        await watch.connected()
        await report(gateway, "ada", "bob", "eve")
        assert [(await anext(watch))["uid"] for _ in "ab"] == ["ada", "bob"]
    async with read_by(script, name="mailer", after=0) as watch:
        # Not finished: the loop had not come back. `after` is for a new name.
        assert [(await anext(watch))["uid"] for _ in "be"] == ["bob", "eve"]


async def test_an_offline_comes_once_all_that_was_decided_before_has_arrived(
    peer: LogPeer, autojump_clock: MockClock
) -> None:
    async def answer(ping: int) -> None:
        while peer.pings != [*range(1, ping + 1)]:
            assert len(found) == 0
            await trio.sleep(0.1)
        if ping == 3:  # decided early, written late
            await peer.append("online", uid="user-1", at=peer.kept[0]["at"] + 1)
        await peer.tell("pong", ping)

    def wall_s() -> float:
        return 1_800_000_000 + trio.current_time()

    found = list[RecordMap]()
    async with reading(peer, kinds=["offline"], settle_s=5, wall_s=wall_s) as watch:
        await peer.append("offline", "offline")
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                found.append(await anext(watch))

            nursery.start_soon(read)
            await answer(1)
            assert trio.current_time() >= 5
            await peer.append("online")  # so it asks again
            for ping in (2, 3, 4, 5):
                await answer(ping)
        assert [record["uid"] for record in found] == ["user-2"]
        assert watch.damping.left_out == 2


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_a_wait_that_is_cancelled_loses_no_record(backend: str) -> None:
    async def main() -> None:
        async with (
            scripted_sidecar(within=SOON_S) as script,
            liveness.connect(script.path, name="gw") as gateway,
            read_by(script, name="mailer") as watch,
        ):
            await watch.connected()
            for n in range(20):
                with anyio.move_on_after(n / 10_000):
                    await anext(watch)
                    raise AssertionError("there was no record yet")
            await report(gateway, "ada", "bob")
            with anyio.CancelScope() as scope:
                scope.cancel()
                await anext(watch)
            assert scope.cancelled_caught
            assert [(await anext(watch))["uid"] for _ in "ab"] == ["ada", "bob"]

    anyio.run(main, backend=backend)


async def test_leaving_ends_a_loop_that_waits(linked: Linked) -> None:
    script, _ = linked
    watch, absent = read_by(script), Watch(f"{script.path}-none")
    ended: list[Watch] = []

    async def read(watch: Watch) -> None:
        async for _ in watch:
            raise AssertionError("nothing happened")
        ended.append(watch)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read, watch)
        tasks.start_soon(read, absent)
        while watch.log is None:
            await anyio.lowlevel.checkpoint()
        await absent.aclose()
        await watch.aclose()
    assert {*ended} == {watch, absent}
    assert [record async for record in watch] == []
    with pytest.raises(anyio.ClosedResourceError):
        await watch.where("ada")


# --- questions ------------------------------------------------------------------------


async def test_questions_are_answered_beside_unread_records_and_over_restarts(
    linked: Linked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("liveness.client.question_link.MOST_UIDS", 1)
    script, gateway = linked
    async with read_by(script, after=0) as watch:
        gateway.login("ada", conn=5)
        gateway.login(7, conn=6)
        await gateway.flush()
        uids: list[str | int] = ["eve", 7, "bob", "ada", "7", "ada"]
        for _ in range(2):
            found = await watch.where(uids)
            assert found == [(7, "gw", 2, 6), ("ada", "gw", 1, 5)]
            assert await watch.online(uids) == {7, "7", "ada"}
            assert await watch.online("7") == {"7"}
            assert await watch.where([]) == []
            listing = await watch.list()
            assert listing.seq == 2
            assert {*listing.sessions} == {*found}
            script.stop()
            script.start()
        assert [(await anext(watch))["seq"] for _ in range(2)] == [1, 2]
        follower = read_by(script, after=listing.seq, log=listing.log)
        await report(gateway, "new")
        assert (await anext(follower))["uid"] == "new"
        await follower.aclose()


async def test_questions_that_wait_are_asked_together(linked: Linked) -> None:
    script, gateway = linked
    found: dict[str, object] = {}

    async def ask(watch: Watch, *uids: str) -> None:
        rows = await watch.where(uids)
        found[",".join(uids)] = [row.uid for row in rows]

    async def ask_for_too_many(watch: Watch) -> None:
        with pytest.raises(liveness.ReportError, match="user 'many' has too many"):
            await watch.where(["ada", "many"])

    await report(
        gateway, "ada/a", "ada/b", "eve", *(f"many/{n}" for n in range(10_001))
    )
    async with read_by(script) as watch, anyio.create_task_group() as tasks:
        tasks.start_soon(ask, watch, "bob", "eve", "ada")
        tasks.start_soon(ask_for_too_many, watch)
        tasks.start_soon(ask, watch, "ada/b", "ada")
        tasks.start_soon(ask, watch, "ada/b")
    assert found == {
        "bob,eve,ada": ["eve", "ada/a", "ada/b"],
        "ada/b,ada": ["ada/b", "ada/a"],
        "ada/b": ["ada/b"],
    }


async def test_users_with_many_devices_are_asked_for_in_parts(linked: Linked) -> None:
    script, gateway = linked
    users = [f"user {n}" for n in range(2_003)]
    uids = [f"{user}/{n}" for user in users for n in range(11)]
    await report(gateway, *uids)
    async with read_by(script) as watch:
        assert [row.uid for row in await watch.where(users)] == uids
        assert await watch.online(["user 1", "bob"]) == {"user 1"}


async def test_the_answer_to_a_cancelled_question_is_not_taken_for_another(
    linked: Linked,
) -> None:
    script, gateway = linked
    await report(gateway, "ada", "bob")
    async with read_by(script) as watch:
        assert await watch.online("ada") == {"ada"}
        with script.disk_full():  # it answers once it can write
            gateway.login("eve")
            await script.online("eve")
            with anyio.move_on_after(0.1) as asking:
                await watch.online("ada")
            assert asking.cancelled_caught
        assert await watch.online("bob") == {"bob"}


async def test_what_is_no_uid_is_refused_at_the_question(tmp_path: Path) -> None:
    async with Watch(str(tmp_path / "none")) as watch:
        for bad in ("", [True], ["ada", ""], -1, [None]):
            with pytest.raises(liveness.ReportError, match="is no uid"):
                await watch.where(bad)  # type: ignore[arg-type]


async def test_a_question_waits_for_a_sidecar_and_may_be_cancelled(
    peer: LogPeer, autojump_clock: MockClock
) -> None:
    await peer.close()
    async with Watch(str(peer.path)) as watch:
        with trio.move_on_after(100) as waiting:
            await watch.online("ada")
        assert waiting.cancelled_caught


# --- where it begins ------------------------------------------------------------------


async def test_without_after_it_begins_with_the_next_record(peer: LogPeer) -> None:
    await peer.append("online")
    async with reading(peer) as watch:
        await peer.append("offline")
        assert await seqs(watch, 1) == [2]
        assert watch.log == "log-a"
        assert peer.hellos[0]["ack"] is False


async def test_after_a_seq_it_asks_first_which_log_that_is(peer: LogPeer) -> None:
    await peer.append("online", "online", "online")
    async with read_by(peer, after=2) as watch:
        assert await seqs(watch, 1) == [3]
    first, second = peer.hellos
    assert "after" not in first
    assert (second["after"], second["log"]) == (2, "log-a")


async def test_after_is_where_a_new_name_begins(peer: LogPeer) -> None:
    await peer.append("online", "online")
    for expected in ([1, 2], [2]):  # the last was not finished
        async with read_by(peer, name="mailer", after=0) as watch:
            assert await seqs(watch, len(expected)) == expected
    assert [hello.get("after") for hello in peer.hellos] == [0, 0, None]


async def test_kinds_and_users_are_asked_for_and_a_gap_comes_in_any_case(
    peer: LogPeer,
) -> None:
    await peer.append("online", "online", "offline", "moved", "offline")
    peer.trim(2)
    async with read_by(peer, after=0, kinds=["offline"], users=True) as watch:
        kinds = [(await anext(watch))["kind"] for _ in range(3)]
    assert kinds == ["gap", "offline", "offline"]
    assert peer.hellos[0]["kinds"] == ["offline"]
    assert peer.hellos[0]["users"] is True


@pytest.mark.parametrize(
    "options",
    [
        *({"name": "a\n"}, {"after": -1}, {"after": 1.0}, {"log": "log-a"}),
        *({"scope": "mine"}, {"kinds": "offline"}, {"kinds": ["log"]}),
    ],
    ids=str,
)
def test_an_argument_that_cannot_be_raises_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(liveness.ReportError):
        liveness.watch("/s", **options)
    with pytest.raises(liveness.ReportError), liveness.watch_sync("/s", **options):
        pass


# --- acknowledging --------------------------------------------------------------------


@pytest.fixture
def _no_acks_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a slow machine from having records acknowledged early."""
    monkeypatch.setattr("liveness.client.watcher.ACK_EVERY_S", inf)


@pytest.mark.usefixtures("_no_acks_by_time")
async def test_what_is_finished_is_acknowledged_before_it_waits_and_at_the_end(
    peer: LogPeer, nursery: trio.Nursery
) -> None:
    async with reading(peer, name="mailer") as watch:
        await peer.append(*["online"] * 100)
        assert await seqs(watch, 100) == [*range(1, 101)]
        await trio.testing.wait_all_tasks_blocked()
        assert peer.acks == [], "not one for each record"
        nursery.start_soon(anext, watch)
        await peer.acked(100)
        await peer.append("online", "online", "online")
        await trio.testing.wait_all_tasks_blocked()
        assert await seqs(watch, 1) == [102]
        await trio.testing.wait_all_tasks_blocked()
        assert peer.acks == []
    await peer.acked(101)


@pytest.mark.usefixtures("_no_acks_by_time")
async def test_a_new_link_acknowledges_again_what_the_one_before_may_have_lost(
    peer: LogPeer, nursery: trio.Nursery
) -> None:
    async with reading(peer, name="mailer") as watch:
        await peer.append("online", "online")
        assert await seqs(watch, 2) == [1, 2]
        await peer.close()
        peer.cursors["mailer"] = 0  # as after a crash
        await peer.append("online")
        await nursery.start(peer.open)
        assert await seqs(watch, 1) == [3]
        await peer.acked(2)
        assert (peer.hellos[-1]["after"], peer.hellos[-1]["log"]) == (2, "log-a")


@pytest.mark.usefixtures("_no_acks_by_time")
async def test_no_ack_of_an_old_log_reaches_a_new_one(
    peer: LogPeer, nursery: trio.Nursery
) -> None:
    async with reading(peer, name="mailer") as watch:
        await peer.append("online", "online", "online")
        assert await seqs(watch, 3) == [1, 2, 3]
        await peer.close()
        log_is_new(peer)
        await peer.append("online", "online", "online")
        await nursery.start(peer.open)
        assert await seqs(watch, 4) == [0, 1, 2, 3]
    await peer.acked(2)


async def test_it_reads_no_more_than_the_loop_asks_for(
    peer: LogPeer, autojump_clock: MockClock
) -> None:
    async with reading(peer) as watch:
        with trio.move_on_after(1) as blocked:
            while True:
                await peer.append(*["online"] * 1_000)
        assert blocked.cancelled_caught, "the socket's buffers are full"
        assert await seqs(watch, 1_000) == [*range(1, 1_001)]


# --- over restarts --------------------------------------------------------------------


def error(code: str, *, fatal: bool = True) -> Frame:
    return ["error", {"code": code, "message": "for\nnow", "fatal": fatal, "n": 1}]


@pytest.mark.parametrize(
    ("farewell", "why"),
    [
        ((), "the connection was closed"),
        (("bye", {"reason": "restart"}), "it says bye: restart"),
        (error("overloaded"), r"it says for\nnow (overloaded)"),
    ],
    ids=["killed", "bye", "overloaded"],
)
async def test_when_its_link_ends_it_goes_on_without_a_gap_or_a_repeat(
    peer: LogPeer, nursery: trio.Nursery, farewell: tuple[object, ...], why: str
) -> None:
    told: list[str] = []
    async with reading(peer, strict=True, report_line=told.append) as watch:
        await peer.append("online", "online")
        assert await seqs(watch, 2) == [1, 2]
        await peer.close(*farewell)
        await peer.append("offline", "online")  # while nobody can listen
        peer.repeats = 2
        peer.greeting = packed(error("overloaded"))  # not over at once
        await nursery.start(peer.open)
        nursery.start_soon(let_in, peer)
        assert await seqs(watch, 2) == [3, 4]
        await peer.append("online")
        assert await seqs(watch, 1) == [5]
        assert told[:2] == [
            f"linked to the sidecar at {peer.path}",
            f"no link to the sidecar at {peer.path}: {why}",
        ]
        assert told[-1] == told[0]
        assert len(told) <= 4
        assert peer.hellos[0]["name"] == peer.hellos[-1]["name"]


async def let_in(peer: LogPeer) -> None:
    """Ends the greeting that others are refused by, once it was met twice."""
    while len(peer.hellos) < 3:
        await trio.lowlevel.checkpoint()
    peer.greeting = None


def log_is_new(peer: LogPeer) -> None:
    peer.log, peer.kept, peer.next = "log-b", [], 1
    peer.cursors.clear()


def log_loses_its_end(peer: LogPeer) -> None:
    peer.kept, peer.next = peer.kept[:1], 2


def retention_passes_it(peer: LogPeer) -> None:
    peer.kept, peer.next = [], 6


@pytest.mark.parametrize("name", [None, "mailer"])
@pytest.mark.parametrize(
    ("happens", "expected"),
    [
        (log_is_new, [0, 1]),
        (log_loses_its_end, [0, 1, 2]),
        (retention_passes_it, [5, 6]),
    ],
)
async def test_after_a_restart_come_the_records_of_the_log_that_it_finds(
    peer: LogPeer,
    nursery: trio.Nursery,
    happens: Callable[[LogPeer], None],
    expected: list[int],
    name: str | None,
) -> None:
    async with reading(peer, name=name) as watch:
        await peer.append("online", "online", "online")
        assert await seqs(watch, 3) == [1, 2, 3]
        await peer.close()
        happens(peer)
        await peer.append("online")
        await nursery.start(peer.open)
        first = await soon(watch)
        assert [first["seq"], *await seqs(watch, len(expected) - 1)] == expected
        assert (first["kind"] == "gap") == (happens is retention_passes_it)
        if happens in (log_is_new, log_loses_its_end):
            new = {"kind": "log", "log": peer.log, "was": "log-a", "seq": 0}
            assert first == new
        await peer.close()
        await nursery.start(peer.open)
        await peer.append("online")
        assert await seqs(watch, 1) == [peer.next - 1], "it is said once"


async def test_a_name_without_a_position_yet_misses_nothing_of_a_new_log(
    peer: LogPeer, nursery: trio.Nursery
) -> None:
    peer.cursors["mailer"] = 0
    async with reading(peer, name="mailer") as watch:
        await peer.close()
        log_is_new(peer)
        await peer.append("online", "online")
        await nursery.start(peer.open)
        assert await seqs(watch, 3) == [0, 1, 2]


async def test_its_pauses_are_random_and_grow_while_it_is_refused(
    peer: LogPeer, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    peer.greeting = packed(error("not-allowed"))
    async with Watch(str(peer.path)) as watch:
        with trio.move_on_after(600):
            await anext(watch)
    assert 20 <= len(peer.hellos) <= 60
    (line,) = {*caplog.messages}
    assert r"refuses this reader: for\nnow (not-allowed). What to do: allow" in line
    assert caplog.records[0].levelno == logging.ERROR


# --- what ends it ---------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
async def test_another_reader_of_its_name_ends_it(peer: LogPeer, strict: bool) -> None:
    async with reading(peer, name="mailer", strict=strict) as watch:
        await peer.append("online")
        await peer.close(*error("replaced"))
        assert await seqs(watch, 1) == [1], "what came before is given first"
        for _ in range(2):
            with pytest.raises(liveness.Replaced, match="another process said hello"):
                await soon(watch)
    assert len(peer.hellos) == 1


async def test_a_sidecar_that_does_not_answer_ends_a_strict_one_and_no_other(
    peer: LogPeer, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    peer.greeting = b""
    async with read_by(peer, strict=True) as watch:
        with pytest.raises(LinkLost, match="it does not answer"):
            await anext(watch)
    async with read_by(peer) as watch:
        with trio.move_on_after(600):
            await anext(watch)
    assert len(peer.hellos) == 2, "it keeps the link: the sidecar may read it later"
    assert "no welcome" in caplog.text


async def test_an_error_that_is_not_fatal_is_reported_and_passed_over(
    peer: LogPeer,
) -> None:
    told: list[str] = []
    async with reading(peer, report_line=told.append) as watch:
        await peer.tell(*error("bad-option", fatal=False))
        await peer.append("online")
        assert await seqs(watch, 1) == [1]
    assert told[1:] == [
        rf"{peer.path} refused a frame: for\nnow (bad-option); going on"
    ]


# --- without an event loop ------------------------------------------------------------


@pytest.fixture
def threaded() -> Iterator[tuple[ScriptedSidecar, liveness.SyncSidecar]]:
    """A sidecar in a thread of its own, and a gateway of threads."""
    with (
        start_blocking_portal("trio") as portal,
        portal.wrap_async_context_manager(scripted_sidecar(within=SOON_S)) as script,
        liveness.connect_sync(script.path, name="gw") as gateway,
    ):
        yield script, gateway


def test_a_program_of_threads_reads_asks_and_goes_on_where_it_was(
    threaded: tuple[ScriptedSidecar, liveness.SyncSidecar],
) -> None:
    script, gateway = threaded
    with liveness.watch_sync(script.path, name="mailer") as watch:
        watch.connected()
        for uid in ("ada", "bob", "eve"):
            gateway.login(uid)
        gateway.flush()
        for record, uid in zip(watch, ("ada", "bob"), strict=False):
            assert record["uid"] == uid
        assert watch.log == watch.list().log
        assert watch.online(["ada", "nobody"]) == {"ada"}
        assert watch.where("bob")[0].gateway == "gw"
    with liveness.watch_sync(script.path, name="mailer") as watch:
        assert watch.name == "mailer"
        batch = next(watch.batches())
        assert [record["uid"] for record in batch] == ["eve"]
    with liveness.watch_sync(script.path, after=0, settle_s=5) as watch:
        assert [record["seq"] for record in next(watch.batches())] == [1, 2, 3]
        assert (watch.position, watch.damping.left_out) == (3, 0)
    with pytest.raises(anyio.ClosedResourceError):
        watch.where("ada")
    assert [*watch] == []


# --- on any host ----------------------------------------------------------------------


async def answer(link: Link, uid: str, host: str, partial: str) -> None:
    """Answers the next question by a session of one user, without the other hosts."""
    await link.next("where")
    row = [uid, "gw", 1, 5, host, None]
    await link.send(["where", [row], {"cluster": True, "partial": partial}])


async def test_a_user_is_not_called_offline_while_other_hosts_are_not_known(
    tmp_path: Path,
) -> None:
    async with (
        listening(tmp_path / "s") as peer,
        Watch(str(peer.path)) as watch,
        trio.open_nursery() as nursery,
    ):

        async def serve() -> None:
            link = await peer.link(features=["cluster"])
            while True:
                await answer(link, "ada", "a", "away")

        nursery.start_soon(serve)
        assert await watch.online("ada", anywhere=True) == {"ada"}
        with pytest.raises(liveness.ReportError, match=r"not known now \(away\)"):
            await watch.online(["ada", "bob"], anywhere=True)
        found = await watch.anywhere(["ada", "bob"])
        assert [row.host for row in found] == ["a"]
        assert found.partial == "away"
        nursery.cancel_scope.cancel()
