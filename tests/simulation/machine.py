"""The host that the sidecar runs on: it is started, paused and crashes; its disk fails.

The sidecar is the product's own, wired by it, on real SQLite files and real sockets. In
place of threads its work on the disk is done where it is called, with a delay before and
after it that is drawn: so a run has one order of things, and a seed gives it again.

A crash leaves what a loss of power may leave: of a write that was under way any part, in
the order in which SQLite writes. What was synced before stays. Then the host starts anew,
and the log takes another id; after a crash between two writes it may be the process alone
that was killed.
"""

import os
import resource
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import trio

from liveness.config.settings import AccessSettings, Config
from liveness.core.records import HostReading, HostTime, Instant
from liveness.service.app import load
from liveness.service.common.clock import Clock
from liveness.service.components import SidecarService
from liveness.service.links.credentials import access_to
from liveness.service.links.sockets import listening
from liveness.service.outlets.supervisor import Outlets
from liveness.service.storage.log_store import DATABASE, LogStore
from liveness.service.timers.timer_store import TimerStore
from tests.promises.run_history import History, Process, PutBack
from tests.simulation.hindsight import note_counters
from tests.simulation.plan import STALL_SHARE, Fault
from tests.simulation.situations import reached

# A pass over all links is over after two looks at the clock where the sidecar is slow.
SLOW_STEP_S: Final = 0.001
# From one look at the clock to the next the sidecar computes so long.
STEP_S: Final = 20e-6

PAGE_BYTES: Final = 512  # no file has smaller pages, and all have multiples of it
# At the beginning of a sector, which a disk writes whole or not.
WAL_HEADER_BYTES: Final = 32
# Its commits are not synced, until it is written back, or at some size, all of it is.
UNSYNCED: Final = "outlets.db-wal"
WRITTEN_BACK: Final = UNSYNCED.removesuffix("-wal")
SYNCED_BYTES: Final = 1_000 * 4_096
# The share of starts on a disk with data that are cut off before a start succeeds.
HALF_STARTS: Final = 0.2
# The share of crashes between two writes that the host survives.
KILLS: Final = 0.5
# What a call on the disk takes before it does anything, and before it is known of.
QUICK_S: Final = (0.0002, 0.003)
LOOKS_EVERY_S: Final = 1.0  # for situations
ZERO_MS: Final = 1_700_000_000_000
BOOTED_S: Final = 5_000.0  # CLOCK_MONOTONIC at 0
UPTIME_S: Final = 10.0  # after which a boot has come to its programs
LEAST_MS: Final = 86_400_000  # no clock is before 1970

Files = dict[str, bytes]


class HostClock(Clock):
    """Virtual time; the wall clock is set by hand, and so is the CPU's. The host may sleep.

    Work takes time, too: a little passes from one look at the clock to the next.
    """

    def __init__(self, jump: Callable[[float], None]) -> None:
        self.zero_ms = ZERO_MS
        self.boots = 1
        self.monotonic_zero_s = BOOTED_S
        self.slept_s = 0.0
        self.cpu_s = 0.0
        self.step_s = STEP_S
        self._jump = jump

    def mono(self) -> float:
        self._jump(self.step_s)
        self.cpu_s += self.step_s
        return trio.current_time()

    def wall_ms(self) -> int:
        return self.zero_ms + int(trio.current_time() * 1000)

    def boot_s(self) -> float:
        return self.monotonic_zero_s + trio.current_time() + self.slept_s

    def boot_id(self) -> str:
        return f"boot {self.boots}"

    def boot(self) -> None:
        self.boots += 1
        self.slept_s = 0.0
        self.monotonic_zero_s = UPTIME_S - trio.current_time()

    def host(self) -> HostReading:
        return HostReading(self.host_time(trio.current_time()), self.monotonic_zero_s)

    def host_time(self, now: float) -> HostTime:
        """What any process of the host reads at a moment."""
        return HostTime(self.monotonic_zero_s + now, self.zero_ms / 1000 + now)

    def cpu(self) -> float:
        return self.cpu_s

    def instant(self, now: float, mono: float) -> Instant:
        return Instant(now, mono, self.wall_ms(), self.state_s())


class Machine:
    """Runs one sidecar after the other.

    Args:
        folder: An empty folder.
        config: Makes the settings for a state directory and a socket.
        random: Draws what the disk does.
        jump: Has time pass while nothing runs.
        history: Notes when the sidecar runs.
        nursery: Where it runs.
    """

    def __init__(
        self,
        folder: Path,
        config: Callable[[Path, Path], Config],
        *,
        random: Random,
        jump: Callable[[float], None],
        history: History,
        nursery: trio.Nursery,
    ) -> None:
        self.socket = folder / "gateway.sock"
        self.clock = HostClock(jump)
        self._access = access_to(AccessSettings(), group=os.getegid())
        self.stall_s = 0.0  # what each call on the disk takes at most, if it stalls
        self.is_failing = False  # the disk, at any byte
        self.is_full = False
        self.has_no_threads = False
        self.sidecar: SidecarService | None = None
        self._folder = folder
        self._config = config
        self._random = random
        self._rots = Random("rots")
        self._kills = Random("kills")
        self._losses = Random("losses")
        self._on_disk_wal = b""
        self._history = history
        self._nursery = nursery
        self._life: _Life | None = None
        self._image: Files = {}
        self._copy: tuple[float, Files] = (0.0, {})
        self._folders = 0
        self._right_ms = self.clock.zero_ms  # what a clock has that is right
        history.wall.append((0.0, self.clock.zero_ms))

    # --- what is done to it ---------------------------------------------------

    def host_time(self, now: float) -> HostTime:
        """What CLOCK_MONOTONIC and the wall clock show at a moment."""
        return self.clock.host_time(now)

    @property
    def is_up(self) -> bool:
        """Whether a sidecar runs and was not asked to stop."""
        return self._life is not None and not self._life.is_ending

    def outlets(self) -> Outlets | None:
        """Those of the sidecar that runs; None if none does."""
        return self.sidecar.outlets if self.sidecar is not None and self.is_up else None

    @property
    def is_faulty(self) -> bool:
        """Whether the disk is not what it should be."""
        is_waiting = self.has_no_threads or bool(self.stall_s)
        return self.is_failing or self.is_full or is_waiting

    async def start(self) -> None:
        assert self._life is None
        if self._image and self._random.random() < HALF_STARTS:
            self._image = self._after_half_a_start()
            self._lose_memory()
        self._life = _Life(self._laid_out())
        self._history.processes.append(Process(trio.current_time()))
        await self._nursery.start(self._run, self._life)

    async def stop(self) -> None:
        life = self._life
        assert life is not None
        life.is_ending = True
        self._history.processes[-1].asked_at = trio.current_time()
        life.asked_to_stop.set()
        await life.over.wait()

    async def crash(self, *, in_a_write: bool) -> None:
        """End it with nothing said: now, or within the next call on the disk."""
        life = self._life
        assert life is not None
        if not in_a_write:
            self._die(life, files(life.folder))
            if self._kills.random() < KILLS:
                await life.over.wait()
                return
        else:
            life.dies_in_write = True
            with trio.move_on_after(5):
                await life.over.wait()
            if not life.over.is_set():
                self._die(life, files(life.folder))
        await life.over.wait()
        self._lose_memory()

    def inject(self, fault: Fault) -> Callable[[], None]:
        """Begin a fault; return what ends it."""
        what, seconds = fault.what, fault.lasts_s
        match what:
            case "sidecar slow" | "sidecar busy":
                if what == "sidecar busy":
                    self.clock.cpu_s += seconds
                self.clock.step_s = SLOW_STEP_S
                return partial(setattr, self.clock, "step_s", STEP_S)
            case "disk full":
                self.is_full = True
                return partial(setattr, self, "is_full", False)
            case "disk gets no threads":
                self.has_no_threads = True
                return partial(setattr, self, "has_no_threads", False)
            case "disk fails":
                self.is_failing = True
                return partial(setattr, self, "is_failing", False)
            case "disk stalls":
                self.stall_s = STALL_SHARE * seconds
                return partial(setattr, self, "stall_s", 0.0)
            case "disk rots":
                self._rot()
            case "wall clock stepped":
                self._set_clock(self.clock.zero_ms + round(fault.by_s * 1000))
            case "wall clock set right":
                self._set_clock(self._right_ms)
            case "host sleeps":
                self.clock.slept_s += seconds
                self._right_ms += round(seconds * 1000)
                self._history.sleeps.append((trio.current_time(), seconds))
                self._set_clock(self.clock.zero_ms + round(seconds * 1000))
            case "host boots":
                self.clock.boot()
                self._history.boots.append(trio.current_time())
                self._lose_memory()
                if fault.by_s:
                    self._set_clock(self.clock.zero_ms + round(fault.by_s * 1000))
            case "state put back":
                assert self._life is not None
                self._copy = trio.current_time(), files(self._life.folder)
            case "state is back":
                self._put_back()
            case "socket removed":
                self.socket.unlink(missing_ok=True)  # twice within a second
            case _:
                raise AssertionError(f"{what} is not known here")
        return lambda: None  # nothing has to end

    def _set_clock(self, zero_ms: int) -> None:
        """Have the wall clock show another time, at the same moment of the others."""
        now = trio.current_time()
        self.clock.zero_ms = max(zero_ms, LEAST_MS - int(now * 1000))
        self._history.wall.append((now, self.clock.zero_ms))

    def _put_back(self) -> None:
        """Lay out an earlier state; what came after it is lost."""
        copied_at, self._image = self._copy
        last = 0
        with closing(sqlite3.connect(self._laid_out() / DATABASE)) as db:
            (last,) = db.execute("select coalesce(max(last), 0) from log").fetchone()
        self._history.put_backs.append(PutBack(copied_at, trio.current_time(), last))

    def _rot(self) -> None:
        """Flip a bit in a page of the log whose records somebody was sent.

        Not of the newest: what else it may have had nobody could say. What nobody was sent
        could not be held against the sidecar.
        """
        assert self._life is not None
        delivered = {
            it.record["seq"]
            for link in self._history.links
            for it in link.delivered
            if it.record["kind"] != "gap"
        }
        with closing(sqlite3.connect(self._life.folder / DATABASE)) as db, db:
            pages = db.execute(
                "select last, first, records from log "
                "where last < (select max(last) from log) order by last"
            ).fetchall()
            pages = [it for it in pages if {*range(it[1], it[0] + 1)} <= delivered]
            if not pages:
                return
            last, first, records = self._rots.choice(pages)
            at = self._rots.randrange(len(records))
            damaged = bytearray(records)
            damaged[at] ^= 1 << self._rots.randrange(8)
            db.execute("update log set records = ? where last = ?", [damaged, last])
        self._history.rotten |= {*range(first, last + 1)}

    # --- its life -------------------------------------------------------------

    def _laid_out(self) -> Path:
        self._folders += 1
        folder = self._folder / f"state-{self._folders}"
        folder.mkdir(mode=0o700)
        for name, data in self._image.items():
            (folder / name).write_bytes(data)
        return folder

    def _after_half_a_start(self) -> Files:
        """The files after a start that is cut off at any of its writes."""
        folder = self._laid_out()
        config = self._config(folder, self.socket)
        before = files(folder)
        with self._opened(folder, config) as (store, table):
            load(config, store, table, self.clock, self._access)
            return torn(before, files(folder), self._random)

    def _lose_memory(self) -> None:
        """The host starts anew: its runtime folder is empty, and what nobody synced gone."""
        for mark in self._folder.glob("log-*.next"):
            mark.unlink()
        wal = self._image.get(UNSYNCED, b"")
        if not 0 < len(wal) < SYNCED_BYTES:
            return
        # What an earlier power failure has left is on the disk.
        least = len(self._on_disk_wal) if wal.startswith(self._on_disk_wal) else 0
        cut = self._losses.randint(least, len(wal))
        if cut < WAL_HEADER_BYTES:
            cut = 0
        if cut < len(wal):
            reached("outlets: a power failure takes back commits of outlets.db")
        self._on_disk_wal = self._image[UNSYNCED] = wal[:cut]

    @contextmanager
    def _opened(
        self, folder: Path, config: Config
    ) -> Iterator[tuple[LogStore, TimerStore]]:
        with (
            closing(LogStore(folder, self._folder)) as store,
            closing(
                TimerStore(
                    folder,
                    log=store.log,
                    ancestors=store.ancestors,
                    retry_policy=config.timers.retry_policy,
                )
            ) as table,
        ):
            yield store, table

    async def _run(
        self,
        life: "_Life",
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        process = self._history.processes[-1]
        config = self._config(life.folder, self.socket)
        with ExitStack() as stack:
            store, table = stack.enter_context(self._opened(life.folder, config))
            listener = stack.enter_context(listening(self.socket))
            self.sidecar = load(config, store, table, self.clock, self._access)
            task_status.started()
            with life.scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._note_counters, self.sidecar)
                    await self.sidecar.run(life.asked_to_stop.wait, listener, {})
                    process.is_planned = True
                    nursery.cancel_scope.cancel()
            note_counters(self.sidecar)
            self.sidecar = None
        if process.is_planned:
            self._image = files(life.folder)
        process.ended_at = trio.current_time()
        self._life = None
        life.over.set()

    async def _note_counters(self, sidecar: SidecarService) -> None:
        while True:
            await trio.sleep(LOOKS_EVERY_S)
            note_counters(sidecar)

    def _die(self, life: "_Life", image: Files) -> None:
        if life.scope.cancel_called:
            return
        self._image = image
        life.is_ending = True
        life.scope.cancel()
        for shield in life.at_work:
            shield.cancel()

    # --- its disk -------------------------------------------------------------

    async def run_sync(
        self,
        work: Callable[..., Any],
        *args: object,
        abandon_on_cancel: bool = False,
        limiter: trio.CapacityLimiter | None = None,
    ) -> Any:
        """Do in this thread what the sidecar has a thread do, at a moment of its own.

        Raises:
            RuntimeError: The host starts no thread, as `threading.Thread.start` has it.
        """
        assert not abandon_on_cancel, "nothing that is simulated is abandoned"
        if limiter is None:
            return await self._at_work(work, *args)
        async with limiter:
            return await self._at_work(work, *args)

    async def _at_work(self, work: Callable[..., Any], *args: object) -> Any:
        life = self._life
        assert life is not None
        if self.has_no_threads:
            raise RuntimeError("can't start new thread")
        done = None
        # A thread is not ended by a cancellation, only by the end of the process.
        with trio.CancelScope(shield=True) as shield:
            life.at_work.append(shield)
            if life.scope.cancel_called:
                shield.cancel()
            try:
                await trio.sleep(self._delay())
                done = self._on_disk(life, work, *args)
                if life.dies_in_write:
                    await trio.sleep_forever()
                await trio.sleep(self._delay())
            finally:
                life.at_work.remove(shield)
            return done
        if isinstance(done, sqlite3.Connection):
            done.close()  # as the end of a process does
        await trio.lowlevel.checkpoint_if_cancelled()
        # Only what closes an outlet is here yet, and it does not wait for the disk.
        raise OSError("the process has ended")

    def _delay(self) -> float:
        seconds = self._random.uniform(*QUICK_S)
        if self.stall_s:
            seconds += self._random.uniform(0, self.stall_s)
        return seconds

    def _on_disk(
        self, life: "_Life", work: Callable[..., Any], *args: object
    ) -> object:
        if life.dies_in_write:
            before = files(life.folder)
            done = work(*args)
            image = torn(before, files(life.folder), self._random)
            self._note_synced(before.get(WRITTEN_BACK), image)
            self._die(life, image)
            return done
        database = life.folder / WRITTEN_BACK
        had = database.read_bytes() if database.exists() else None
        try:
            return self._on_this_disk(life, work, *args)
        finally:
            self._note_synced(had, files(life.folder, f"{WRITTEN_BACK}*"))

    def _note_synced(self, had: bytes | None, now: Files) -> None:
        """Before the first page of a WAL is written back, SQLite syncs all of it."""
        if now.get(WRITTEN_BACK) != had:
            self._on_disk_wal = now.get(UNSYNCED, b"")

    def _on_this_disk(
        self, life: "_Life", work: Callable[..., Any], *args: object
    ) -> object:
        if not (self.is_failing or self.is_full):
            return work(*args)
        # The kernel refuses each write behind that byte, to whatever file.
        most = max(len(data) for data in files(life.folder).values())
        limit = 0 if self.is_full else self._random.randrange(2 * most)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            return work(*args)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


class _Life:
    """One process of the sidecar."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scope = trio.CancelScope()
        self.asked_to_stop = trio.Event()
        self.over = trio.Event()
        self.at_work: list[trio.CancelScope] = []
        self.dies_in_write = False
        self.is_ending = False


def files(folder: Path, pattern: str = "*") -> Files:
    """The files on disk, without those that a process shares only with itself."""
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.glob(pattern))
        if path.name != "lock" and not path.name.endswith("-shm")
    }


def torn(before: Files, after: Files, random: Random) -> Files:
    """The possible content, after a power loss, of a file that a call changed.

    SQLite appends to the WAL and syncs it before it writes back to the database, syncs
    that, and only then empties or begins the WAL anew. Other files are renamed into
    place, or removed, whole.
    """
    image = dict(before)
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, b""), after.get(name, b"")
        if old == new:
            continue
        if name.endswith("-wal"):
            database = name.removesuffix("-wal")
            is_written_back = before.get(database) != after.get(database)
            if is_written_back and random.random() < 0.5:
                # In the middle of writing back: the WAL has everything already.
                image[name] = new if len(new) >= len(old) else old
                pages = _some_pages(before[database], after[database], random)
                image[database] = pages
            elif new:
                cut = random.randrange(len(new) + 1)
                if cut < WAL_HEADER_BYTES:
                    cut = 0
                image[name] = new[:cut] + old[cut:]
        elif name.endswith(".db"):
            if f"{name}-wal" not in after or before.get(f"{name}-wal") == after.get(
                f"{name}-wal"
            ):
                image[name] = _some_pages(old, new, random)
        elif random.random() < 0.5:
            if name in after:
                image[name] = new
            else:
                del image[name]
        elif name in after:
            image[f"{name}.new"] = new[: random.randrange(len(new) + 1)]
    return image


def _some_pages(old: bytes, new: bytes, random: Random) -> bytes:
    """A file with some pages written and others not yet."""
    size = max(len(old), len(new))
    pages = []
    for at in range(0, size, PAGE_BYTES):
        one = new if random.random() < 0.5 else old
        other = old if one is new else new
        pages.append(one[at : at + PAGE_BYTES] or other[at : at + PAGE_BYTES])
    return b"".join(pages)
