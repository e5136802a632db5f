"""A process that uses the project's own Python library, on the simulation's time.

The application around `liveness.connect` reads ends, and works when timers fire. The
library's socket is a `Tap`: it notes what passes, as `parties.Wire` does, so that the
checker sees a link of the library as any other. A frame of several users is noted as one
frame for each. What the library promises its application is checked when it happens.
"""

import logging
import random as shared_random
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from math import inf
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import anyio
import pytest
import trio

import liveness
from liveness.client import reconnecting_link, sidecar
from liveness.core.records import HostReading, HostTime
from liveness.promises.run_history import LinkHistory, Record, Sent, Told
from tests.helpers.wire import Frames
from tests.simulation.parties import ENDED, OF
from tests.simulation.situations import reached

if TYPE_CHECKING:
    from tests.simulation.library import Library

TASK_S: Final = (0.0, 0.0, 0.3, 2.5)
CLOSED_S: Final = 0.01  # from the end of its link until `connect` is left, at most

_process = ContextVar["Process"]("_process")


@contextmanager
def simulated_host(seed: int) -> Iterator[list[str]]:
    """Give the library the world's clocks, sockets and chance; yield its own faults."""
    faults = list[str]()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            line = self.format(record)
            if "fault of this library" in line or "on_state failed" in line:
                faults.append(f"client: {line}")

    logger, handler = reconnecting_link.logger, Handler()
    state, propagates = shared_random.getstate(), logger.propagate
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(anyio, "connect_unix", _connect)
        patched.setattr(
            reconnecting_link, "read_host", lambda _: _process.get().read_host()
        )
        time = SimpleNamespace(time_ns=lambda: _process.get().time_ns())
        patched.setattr(sidecar, "time", time)
        shared_random.seed(seed)
        logger.addHandler(handler)
        logger.propagate = False
        try:
            yield faults
        finally:
            logger.propagate = propagates
            logger.removeHandler(handler)
            shared_random.setstate(state)


async def _connect(_path: str) -> "Tap":
    process = _process.get()
    await process.gateway.may_go_on()
    return process.connect()


class _HandlerFailed(Exception):
    """What the application's handler of an end raises."""


class Process:
    """One process of a gateway: a `connect`, and the application's loops around it."""

    def __init__(
        self, gateway: "Library", *, fresh: bool | None, is_twin: bool = False
    ) -> None:
        self.gateway = gateway
        self.world = gateway.world
        self.life = gateway.life + is_twin
        self.must_close = trio.Event()
        self.sidecar: liveness.Sidecar | None = None
        self.tap: Tap | None = None
        self._fresh = fresh
        self._is_twin = is_twin
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._is_dead = False
        self._is_flushing = False
        self._working: set[str] = set()
        # Of the current log: records that end an open connection, and its conn.
        self._ends: dict[int, int] = {}
        self._newest = 0
        self._log = ""
        self._was_shut_out = False
        self._believed_from = 0
        self._acked = 0
        self._passed_over: set[int] = set()  # seqs of offlines below it
        self._failed: liveness.End | None = None  # the end whose handler raised
        self._handled = 0
        self._ended: set[int] = set()  # conns of which the library knows that
        self._covered: set[int] = set()  # conns whose login a pong has covered

    async def run(self) -> None:
        """Be a gateway until it dies or is to close."""
        _process.set(self)
        gateway = self.gateway
        with self._scope:
            async with (
                liveness.connect(
                    self.world.machine.socket,
                    name=gateway.name,
                    timeout=gateway.plan.timeout,
                    fresh=self._fresh,
                    on_state=self._note_state,
                ) as sidecar,
                trio.open_nursery() as nursery,
            ):
                self.sidecar, self._nursery = sidecar, nursery
                if not self._is_twin:
                    sidecar.task(self._work)
                    gateway.carry_over(sidecar)
                    nursery.start_soon(self._read_ends)
                    if gateway.library.reads_records:
                        nursery.start_soon(self._read_records)
                await self.must_close.wait()
                closing_at, had_link = self.world.now, gateway.has_link()
                nursery.cancel_scope.cancel()
            self._check_last_reports(closing_at, had_link=had_link)
        self._is_dead = True

    def _check_last_reports(self, closing_at: float, *, had_link: bool) -> None:
        """Whoever leaves `connect` has a second in which the last reports are written."""
        now, gateway = self.world.now, self.gateway
        assert self.tap is not None or not had_link
        stood_still = any(
            began <= now and closing_at <= ended
            for began, ended, what in self.world.history.troubles
            if what in ("sidecar paused", "sidecar busy")  # and so was all of trio
        )
        if self.tap is None or not had_link or stood_still:
            return
        if self.tap.ended_at < now - CLOSED_S:
            reached("client: a link is lost while connect is left", rarely=True)
        elif gateway.unwritten:
            gateway.breach(f"it has closed, and not written {gateway.unwritten}")

    # --- what happens to it -----------------------------------------------------

    def die(self) -> None:
        """End with nothing said."""
        self._is_dead = True
        self.lose_link()
        self._scope.cancel()

    def lose_link(self) -> None:
        if self.tap is not None:
            self.tap.cut()

    def connect(self) -> "Tap":
        """Connect to the sidecar, on behalf of the library.

        Raises:
            OSError: There is none, or this host is cut off.
        """
        world, gateway = self.world, self.gateway
        if self._is_dead or world.now < gateway.unreachable_until:
            raise ConnectionRefusedError
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            sock.connect(str(world.machine.socket))
        except OSError:
            sock.close()
            raise
        link = LinkHistory(
            number=len(world.history.links),
            role="gateway",
            name=gateway.name,
            life=self.life,
            opened_at=world.now,
            sidecar=len(world.history.processes) - 1,
            hello={},
        )
        world.history.links.append(link)
        self.tap = Tap(self, sock, link)
        return self.tap

    def read_host(self) -> HostReading | None:
        """The host's clocks, as far as this gateway tells them."""
        gateway, now = self.gateway, self.world.now
        if gateway.plan.clock == "not told":
            return None
        host = HostTime(*gateway.host_time(now))
        return HostReading(host, host[0] - now)

    def time_ns(self) -> int:
        """The wall clock: of a host of its own, as a history knows a conn by its number."""
        gateway = self.gateway
        _, unix_s = self.world.machine.host_time(self.world.now)
        own_s = 1e6 * self.world.gateways.index(gateway)
        return int((max(unix_s, 0) + own_s) * 1e9)

    # --- the application ---------------------------------------------------------

    def _note_state(self, state: liveness.LinkState) -> None:
        if state is liveness.LinkState.REPLACED:
            reached("client: another process takes the library's name")
            if not self.gateway.has_twin and self._nursery is not None:
                reached(
                    "client: the hello of a dead process takes the name", rarely=True
                )
                self._nursery.start_soon(self.resume)

    async def resume(self) -> None:
        """Take the name back, if it was taken."""
        assert self.sidecar is not None
        if self.sidecar.state is liveness.LinkState.REPLACED:
            reached("client: a library takes its name back")
        with suppress(anyio.ClosedResourceError, liveness.Replaced):
            await self.sidecar.resume()

    async def _read_ends(self) -> None:
        assert self.sidecar is not None
        while not self.must_close.is_set():
            try:
                async for end in self.sidecar.ended():
                    await self._handle(end)
            except _HandlerFailed:
                reached("client: a handler of an end raises")

    async def _handle(self, end: liveness.End) -> None:
        gateway, library, draw = self.gateway, self.gateway.library, self.gateway.random
        conn, record = gateway.conn_of(end), end.record
        ended = record[ENDED[record["kind"]]]
        if conn is None or conn.conn != ended or repr(conn.uid) != repr(end.uid):
            gateway.breach(f"it was told {end}, and has {conn}")
            return
        failed, self._failed = self._failed, None
        if failed is not None:
            if failed.record["seq"] == record["seq"]:
                reached("client: an end whose handler raised is told again")
            elif (lost := gateway.conn_of(failed)) is not None and lost.conn != ended:
                gateway.breach(f"the handler of {failed} failed, and {end} came next")
        if record["seq"] < self._handled or record["seq"] in self._passed_over:
            gateway.breach(f"{end} was told after seq {self._handled}")
        self._handled = record["seq"]
        if self.world.now < self.world.plan.lasts_s:
            seconds = draw.choice([0, draw.uniform(0, library.handler_s)])
            # What has come meanwhile may fill the window.
            self.world.note(seconds + 1, "handler slow", whose=gateway.name)
            await trio.sleep(seconds)
            if draw.random() < library.fails:
                self._failed = end
                raise _HandlerFailed
        if ended in gateway.open:
            gateway.forget(ended)
        else:
            reached(
                "client: a connection logs out while the handler has its end",
                rarely=True,
            )
        assert self.sidecar is not None
        if not self.sidecar.is_connected:
            reached("client: a handler returns while there is no link")
        if end.conn is not None and draw.random() < 0.5:
            self.sidecar.logout(end.uid, conn=ended)  # and changes nothing

    async def _read_records(self) -> None:
        """Read all records in a second loop, which is left and begun again."""
        assert self.sidecar is not None
        draw, last = self.gateway.random, 0
        while not self.must_close.is_set():
            async for record in self.sidecar.records():
                if record["seq"] < last:
                    reached(
                        "client: a loop over all records begins anew in another log",
                        rarely=True,
                    )
                last = record["seq"]
                if draw.random() < 0.1:
                    reached("client: a loop over all records is left and begun again")
                    break

    async def _work(self, timer: liveness.Timer) -> str | None:
        """Do the work of a timer that has fired: soon, late, not at all, or for ever."""
        draw = self.gateway.random
        if timer.key in self._working:
            self.gateway.breach(f"{timer} runs twice at once")
        self._working.add(timer.key)
        log = self._log
        try:
            await trio.sleep(draw.choice(TASK_S))
            drawn = draw.random()
            if drawn < 0.7:
                return None
            if drawn < 0.85:
                raise liveness.TaskFailed("not now", final=drawn > 0.82)
            if drawn < 0.93:
                raise ValueError("not now")
            reached("client: a task does not return within the run timeout")
            await trio.sleep_forever()
        finally:
            self._working.discard(timer.key)
            if log != self._log:
                reached("client: the answer to a timer is of another log", rarely=True)
            if self.sidecar is not None and not self.sidecar.is_connected:
                reached("client: a task ends while there is no link")

    def flush_soon(self) -> None:
        """Wait for what was reported, unless somebody does."""
        if not self._is_flushing and self._nursery is not None:
            self._is_flushing = True
            self._nursery.start_soon(self._flush)

    async def _flush(self) -> None:
        assert self.sidecar is not None
        gateway = self.gateway
        opened = [*gateway.open]
        has_link = self.sidecar.is_connected
        try:
            await self.sidecar.flush()
        except liveness.ReportError as error:
            gateway.breach(f"flush: {error}")
        except anyio.ClosedResourceError:
            return
        finally:
            self._is_flushing = False
        if not has_link:
            reached("client: flush waits for a sidecar that is away")
        for number in opened:
            is_settled = number in self._covered or number in self._ended
            if number in gateway.open and not is_settled:
                gateway.breach(f"flush returned, and no pong covers conn {number}")

    # --- what passes on the wire --------------------------------------------------

    def wrote(self, link: LinkHistory, frame: list[Any]) -> None:
        """Note a frame that is in the sidecar's socket whole."""
        now, gateway = self.world.now, self.gateway
        match frame:
            case ["hello", hello]:
                link.hello = hello
                if hello.get("after", 0) > self._acked:
                    reached("client: a hello acknowledges what no link could")
            case [str(kind), [], *_]:
                link.sent.append(Sent(now, [kind, [], {"conn": []}]))
                return
            case [str(kind), list(uids), {"conn": conns} as options]:
                moments = options.get("began", [None] * len(conns))
                for uid, number, began in zip(uids, conns, moments, strict=True):
                    said = {**options, "conn": number, "began": began}
                    if began is None:
                        del said["began"]
                    if kind == "login":
                        said.setdefault("age", 0.0)
                    gateway.wrote(kind, number)
                    link.sent.append(Sent(now, [kind, uid, said]))
                return
            case ["ack", int(seq)]:
                self._check_ack(seq)
            case _:
                pass
        link.sent.append(Sent(now, frame))

    def _check_ack(self, seq: int) -> None:
        """What an application has not handled is not acknowledged."""
        self._acked = seq
        for number in [it for it in self._ends if it <= seq]:
            conn = self._ends.pop(number)
            if conn in self.gateway.open and not self._is_twin:
                self.gateway.breach(
                    f"acks {seq}, and the end {number} of {conn} is not handled"
                )

    def read(self, link: LinkHistory, frame: list[Any]) -> None:
        """Note a frame that the library is about to read."""
        now = self.world.now
        match frame:
            case ["welcome", welcome]:
                link.welcomed_at, link.welcome = now, welcome
                self._welcomed(welcome)
            case ["notices", records]:
                for record in records:
                    link.told.append(Told(now, record))
                    if not self._is_twin:
                        self._told(record)
            case ["pong", number]:
                link.pongs.append((now, number))
                frames = [it.frame for it in link.sent]
                for sent in frames[: frames.index(["ping", number])]:
                    if sent[0] == "login":
                        self._covered.add(sent[2]["conn"])
            case ["error", error]:
                link.errors.append(error)
                self._was_shut_out |= (
                    link.welcomed_at == inf or error["code"] == "replaced"
                )
            case ["bye", _]:
                pass
            case _:
                raise AssertionError(f"{frame} was not asked for")

    def _welcomed(self, welcome: dict[str, Any]) -> None:
        if self._is_twin:
            return
        is_new_log = bool(self._log) and (
            welcome["log"] != self._log or welcome["next"] <= self._newest
        )
        assert self.sidecar is not None
        if is_new_log:
            reached("client: a library is welcomed by another log")
            if self.gateway.unwritten:
                reached("client: a welcome names another log while logins wait")
            if self._ends:
                reached(
                    "client: a welcome names another log while ends wait", rarely=True
                )
            self._ends.clear()
            self._newest = self._handled = self._believed_from = 0
            self._passed_over.clear()
        elif self._log and not welcome.get("known", True):
            reached(
                "client: a sidecar does not know a library's name any more", rarely=True
            )
        self._log = welcome["log"]
        if self._was_shut_out:
            self._was_shut_out, self._believed_from = False, welcome["next"]
        if self.sidecar.stats().pending:
            reached("client: a library is welcomed with reports that wait")
        self.gateway.waited = {*self.gateway.unwritten}

    def _told(self, record: Record) -> None:
        """Expect the end that a record means."""
        gateway, seq = self.gateway, record["seq"]
        if seq <= self._newest:
            reached("client: a library is told a record again", rarely=True)
            return
        self._newest = seq
        if record["kind"] == "gap":
            reached("client: a gap has a library declare its connections", rarely=True)
        if record.get(OF.get(record["kind"], "")) != gateway.name:
            return
        if record["kind"] == "offline" and seq < self._believed_from:
            reached("client: an offline of a time without the name is passed over")
            self._passed_over.add(seq)
            return
        number = record[ENDED[record["kind"]]]
        gateway.notice_end(record, number)
        gateway.unwritten.pop(("login", number), None)  # it is closed, and not sent
        self._ended.add(number)
        if number in gateway.open:
            if self._ends:
                reached("client: an end waits behind one whose handler is slow")
            self._ends[seq] = number


class Tap(anyio.abc.ByteStream):
    """The library's socket; what passes is noted."""

    def __init__(
        self, process: Process, sock: socket.socket, link: LinkHistory
    ) -> None:
        self.is_sending = False
        self._process = process
        self._world = process.world
        self._sock = sock
        self._link = link
        self._sent, self._received = Frames(), Frames()
        self._is_inside_frame = False

    async def send(self, item: bytes) -> None:
        await trio.lowlevel.checkpoint()
        gateway, left = self._process.gateway, memoryview(item)
        self.is_sending = True
        try:
            if gateway.is_blocked:
                # What the socket has room for goes out, and may end inside a frame.
                cut = gateway.random.randrange(len(left) + 1)
                await self._put(left[:cut])
                left = left[cut:]
                self._is_inside_frame = True
                await gateway.may_go_on()
                self._is_inside_frame = False
            await self._put(left)
        finally:
            self.is_sending = False

    async def _put(self, left: memoryview) -> None:
        while left:
            try:
                size = self._sock.send(left)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._sock)
                continue
            except OSError as error:
                raise anyio.BrokenResourceError from error
            self._process.gateway.wrote_at = self._world.now
            self._sent.feed(bytes(left[:size]))
            for frame in self._sent:
                self._process.wrote(self._link, frame)
            left = left[size:]

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        await trio.lowlevel.checkpoint()
        try:
            await trio.lowlevel.wait_readable(self._sock)
            await self._process.gateway.is_reading()
            data = self._sock.recv(max_bytes)
        except OSError as error:
            raise anyio.BrokenResourceError from error
        if not data:
            self._note_end()
            raise anyio.EndOfStream
        self._received.feed(data)
        for frame in self._received:
            self._process.read(self._link, frame)
        return data

    def cut(self) -> None:
        """Lose the link from here."""
        if self._link.ended_at == inf:
            if self._is_inside_frame:
                reached("client: a link is lost inside a batch")
            self._note_end()
            self._sock.shutdown(socket.SHUT_RDWR)

    @property
    def ended_at(self) -> float:
        return self._link.ended_at

    def _note_end(self) -> None:
        link = self._link
        if link.ended_at < inf:
            return
        link.ended_at = self._world.now
        if link.welcomed_at == inf:
            reached("client: a link ends before its welcome")
        elif len(link.pongs) < sum(it.frame[0] == "ping" for it in link.sent):
            reached("client: a link ends before the last pong")

    async def aclose(self) -> None:
        self._note_end()
        trio.lowlevel.notify_closing(self._sock)
        self._sock.close()
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        raise AssertionError("the library ends no direction alone")
