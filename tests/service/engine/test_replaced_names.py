"""The sidecar is replaced: stopped in order, or as by a crash, and started on its state.

Gateways of the client library report users who log in, speak, log out and fall silent all
the while. What they reported is compared with the log, and with what they were told.
"""

from contextlib import closing
from pathlib import Path
from random import Random
from time import time_ns
from typing import Any, Final, NamedTuple

import pytest
import structlog
import trio
from trio.testing import MockClock

import liveness
from liveness.core.cursors import CursorRow
from liveness.core.records import MOVED, OnlineRow, Record
from liveness.service.storage.log_store import Batch, LogStore
from tests.helpers import previous_release
from tests.helpers.record_batches import batch_of
from tests.service.rig import running
from tests.service.storage.journals import online, row

TIMEOUT_S: Final = 2.0
SPEAKS_EVERY_S: Final = 0.5
COMES_EVERY_S: Final = 0.05
USERS: Final = 100  # of each gateway
KINDS: Final = ("online", "offline", "moved")
LOGS_OUT: Final = "logout"
FALLS_SILENT: Final = "silence"


class Life(NamedTuple):
    """One connection of a user, and when it spoke."""

    uid: str
    conn: int
    fate: str
    spoke: list[float]


class Gateway:
    """A gateway with its users, and the records that it gets."""

    def __init__(self, sidecar: liveness.Sidecar, random: Random) -> None:
        self.sidecar = sidecar
        self.lives: list[Life] = []
        self.records: list[dict[str, Any]] = []
        self.ended: dict[
            int | None, float
        ] = {}  # when each conn was said to have ended
        self._random = random

    async def serve(self) -> None:
        async with trio.open_nursery() as users:
            for number in range(USERS):
                users.start_soon(self._user, f"{self.sidecar.name}-{number}")
                await trio.sleep(COMES_EVERY_S)

    async def _user(self, uid: str) -> None:
        await self._live(uid, self._random.choice([LOGS_OUT, FALLS_SILENT]))
        if self._random.random() < 0.3:  # is back, on another connection
            await self._live(uid, LOGS_OUT)

    async def _live(self, uid: str, fate: str) -> None:
        life = Life(uid, self.sidecar.new_conn(), fate, [])
        self.lives.append(life)
        life.spoke.append(trio.current_time())
        self.sidecar.login(uid, conn=life.conn)
        await self.sidecar.flush()
        for _ in range(self._random.randrange(6)):
            await trio.sleep(SPEAKS_EVERY_S)
            life.spoke.append(trio.current_time())
            self.sidecar.message(uid, conn=life.conn)
        if fate == LOGS_OUT:
            self.sidecar.logout(uid, conn=life.conn)
        else:
            while life.conn not in self.ended:  # noqa: ASYNC110 - virtual time
                await trio.sleep(COMES_EVERY_S)

    async def read_records(self, watch: liveness.Watch) -> None:
        async for record in watch:
            self.records.append(dict(record))

    async def read_ends(self) -> None:
        async for end in self.sidecar.ended():
            assert end.conn not in self.ended
            self.ended[end.conn] = trio.current_time()


def compare(gateway: Gateway, log: list[Record]) -> None:
    """Compares the reports of a gateway with the log and with its records."""
    mine = [record for record in log if record.gateway == gateway.sidecar.name]
    assert [record["seq"] for record in gateway.records] == [it.seq for it in mine]
    decided: dict[int | None, list[tuple[str, str]]] = {}
    for record in mine:
        # A gateway that has not come back yet is lost, with its silent users.
        reason = record.reason.replace("gateway_lost", FALLS_SILENT)
        # A user that is back before its logout is durable has moved.
        if record.kind == MOVED:
            decided.setdefault(record.from_conn, []).append(("offline", "logout"))
        kind = "online" if record.kind == MOVED else record.kind
        decided.setdefault(record.conn, []).append((kind, reason))
    assert decided == {
        life.conn: [("online", "login"), ("offline", life.fate)]
        for life in gateway.lives
    }
    silent = {life.conn: life for life in gateway.lives if life.fate == FALLS_SILENT}
    assert gateway.ended.keys() == silent.keys()
    for conn, life in silent.items():
        assert gateway.ended[conn] - life.spoke[-1] >= TIMEOUT_S


@pytest.mark.parametrize("is_planned", [True, False], ids=["stop", "crash"])
async def test_replacements_under_load_lose_nothing_and_take_nobody_for_silent(
    tmp_path: Path, jumping: MockClock, is_planned: bool
) -> None:
    path, random = tmp_path / "g.sock", Random(1)
    async with trio.open_nursery() as nursery:

        async def connected(name: str) -> None:
            async with (
                liveness.connect(path, name=name) as sidecar,
                liveness.watch(path, name=name, scope="own", kinds=KINDS) as watch,
                trio.open_nursery() as readers,
            ):
                gateway = Gateway(sidecar, random)
                gateways.append(gateway)
                await watch.connected()
                readers.start_soon(gateway.read_records, watch)
                readers.start_soon(gateway.read_ends)
                await gateway.serve()
                await sidecar.flush()
                over.append(gateway)
                await trio.sleep_forever()

        gateways, over = list[Gateway](), list[Gateway]()
        for name in ("gw-1", "gw-2"):
            nursery.start_soon(connected, name)
        for _ in range(3):
            async with running(tmp_path, timeout_s=TIMEOUT_S) as rig:
                await trio.sleep(2.1)
                assert rig.firing.early == 0
                if is_planned:
                    await rig.stop()
        async with running(tmp_path, timeout_s=TIMEOUT_S) as rig:
            await rig.until(lambda: len(over) == len(gateways) == 2)
            await trio.sleep(1)
            assert rig.firing.early == 0
            log = rig.log()
        assert [record.seq for record in log] == [*range(1, len(log) + 1)]
        for gateway in gateways:
            assert gateway.sidecar.stats().links >= 4
            compare(gateway, log)
        nursery.cancel_scope.cancel()


async def test_a_new_version_goes_on_with_the_users_of_an_old_state(
    tmp_path: Path, jumping: MockClock
) -> None:
    began_ms = time_ns() // 1_000_000 - 60_000
    log = [
        Record(
            seq, "online", f"old-{seq}", f"gw-{seq % 2}", seq, seq, "login", began_ms
        )
        for seq in range(1, 201)
    ]
    online = [
        OnlineRow(it.seq, it.uid, began_ms, it.conn, it.gateway, None) for it in log
    ]
    cursors = {("gateway", f"gw-{n}"): CursorRow(200, began_ms, None) for n in (0, 1)}
    (tmp_path / "state").mkdir(mode=0o700)
    previous_release.schema_2(tmp_path / "state/liveness.db", log, online, cursors)
    speaking = [record for record in log if record.seq % 4 < 2]
    with structlog.testing.capture_logs() as said:
        async with (
            running(tmp_path, timeout_s=TIMEOUT_S) as rig,
            liveness.connect(tmp_path / "g.sock", name="gw-0") as zero,
            liveness.connect(tmp_path / "g.sock", name="gw-1") as one,
        ):
            newcomer = await rig.connect()
            gateways = {"gw-0": zero, "gw-1": one}
            for record in log:
                gateway = gateways[record.gateway]
                gateway.login(record.uid, conn=record.conn, age=60)
            assert (await newcomer.hello("w", role="watcher"))["next"] == 201
            for _ in range(10):
                for record in speaking:
                    gateway = gateways[record.gateway]
                    gateway.keepalive(record.uid, conn=record.conn)
                await trio.sleep(SPEAKS_EVERY_S)
            after = rig.log()
    assert after[:200] == log
    quiet = {record.seq for record in log} - {record.seq for record in speaking}
    assert sorted(it.session for it in after[200:]) == sorted(quiet)
    assert {(it.kind, it.reason) for it in after[200:]} == {("offline", "silence")}
    assert [
        it["was"] for it in said if it["event"] == "an older file was migrated"
    ] == [2]


async def test_two_sessions_of_a_user_in_a_state_of_version_0_2_become_one(
    tmp_path: Path,
) -> None:
    with closing(LogStore(tmp_path / "state")) as store:
        names: tuple[str | int, ...] = ("7", "8", 7)
        records = [online(seq, uid) for seq, uid in enumerate(names, 1)]
        rows = {seq: row(seq, uid, conn=5) for seq, uid in enumerate(names, 1)}
        store.write(Batch(batch_of(records), online=rows))
    async with running(tmp_path) as rig:
        gateway = await rig.gateway("g", ping=None)
        await gateway.apply(["keepalive", "7", {"conn": 5}])
        assert [found[:2] for found in rig.store.online()] == [(2, "8"), (3, 7)]
        moved = rig.log()[-1].as_map()
    assert (moved["kind"], moved["uid"], moved["session"]) == ("moved", 7, 3)
    assert moved["from_session"] == 1
    assert "from_conn" not in moved, "it is the same connection"
