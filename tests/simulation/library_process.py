"""A process that uses the project's own Python library, on the simulation's time.

The application around `liveness.connect` reads ends, and works when timers fire. The
library's socket is a `Tap`: it notes what passes, as `parties.Wire` does, so that the
checker sees a link of the library as any other. A frame of several users is noted as one
frame for each.

What the library promises its application is checked when it happens. A login or logout is
expected on the wire from when the application or a record calls for it, and until a pong
covers it: all logins before any logout, and all of them by the return of a flush. Ends are
expected in the order of their records, each until it is handled, and no ack before that.
"""

import socket
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import anyio
import pytest
import trio
from anyio.abc import ByteReceiveStream, ByteSendStream, SocketStream

import liveness
from liveness.client import dialer, reconnecting_link, sidecar
from liveness.core.records import HostReading, HostTime
from tests.helpers.wire import Frames
from tests.promises.run_history import Conn, History, LinkHistory, Record, Sent, Uid
from tests.simulation.parties import Reader, Socket, ended_by
from tests.simulation.situations import reached

if TYPE_CHECKING:
    from tests.simulation.library import Library

TASK_S: Final = (0.0, 0.0, 0.3, 2.5)
CLOSED_S: Final = 0.01  # from the end of its link until `connect` is left, at most

_process = ContextVar["Process"]("_process")
_connect_unix: Final = anyio.connect_unix


@contextmanager
def simulated_host(history: History) -> Iterator[None]:
    """Give the library the world's clocks and sockets, and note its own faults."""

    def note_fault(line: str, *args: object) -> None:
        history.faults.append(f"client: {line % args}: {traceback.format_exc()}")

    time = SimpleNamespace(time_ns=lambda: _process.get().time_ns())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(anyio, "connect_unix", _connect)
        patched.setattr(
            reconnecting_link, "read_host", lambda _: _process.get().read_host()
        )
        patched.setattr(sidecar, "time", time)
        patched.setattr(dialer.logger, "exception", note_fault)
        patched.setattr(dialer.logger, "disabled", True)  # of the rest
        yield


async def _connect(path: str) -> "Tap | SocketStream":
    process = _process.get(None)
    if process is None:  # a watch, which nobody looks into
        return await _connect_unix(path)
    gateway = process.gateway
    await gateway.may_go_on()
    if process.scope.cancel_called or gateway.world.now < gateway.unreachable_until:
        raise ConnectionRefusedError
    process.tap = Tap(process)
    process.links.append(process.tap.link)
    return process.tap


@dataclass(slots=True, eq=False)
class Expected:
    """The reports that a process must make of a connection or timer."""

    kind: str
    conn: Conn | None  # None: of a timer
    is_written: bool = False  # on this link
    is_pinged: bool = False  # and before the last ping


class Process(Reader):
    """One process of a gateway: a `connect`, and the application's loops around it."""

    def __init__(
        self, gateway: "Library", *, fresh: bool | None = None, is_twin: bool = False
    ) -> None:
        self.gateway = gateway
        self.world = gateway.world
        self.life = gateway.life + is_twin
        self.must_close = trio.Event()
        self.sidecar: liveness.Sidecar  # once it runs
        self.is_running = False
        self.tap: Tap | None = None
        # What no pong covers, the oldest first: by conn its login or logout, by key what
        # was asked of a timer.
        self.unconfirmed: dict[int | str, Expected] = {}
        self._fresh = fresh
        self._is_twin = is_twin
        self.scope = trio.CancelScope()
        self._working: set[str] = set()
        self.links: list[LinkHistory] = []  # since the last that was welcomed
        self._opened: set[int] = set()  # conns whose login was ever written
        # By conn, in order: seqs of the records that have ended connections.
        self._ends: dict[int, int] = {}
        self._newest = 0
        self._log = ""
        self._believed_from = 0
        self._acked = 0

    async def run(self) -> None:
        """Be a gateway until it dies or is to close."""
        _process.set(self)
        gateway = self.gateway
        with self.scope:
            async with (
                liveness.connect(
                    self.world.machine.socket,
                    name=gateway.name,
                    timeout=gateway.plan.timeout,
                    fresh=self._fresh,
                    on_state=self._note_state,
                ) as self.sidecar,
                trio.open_nursery() as nursery,
            ):
                self.is_running = True
                if not self._is_twin:
                    self.sidecar.task(self._work)
                    for conn in [*gateway.open]:
                        reached("client: a process takes over connections")
                        gateway.report(["login", conn])
                    nursery.start_soon(self._read_ends)
                await self.must_close.wait()
                closing_at, had_link = self.world.now, self.has_link
                nursery.cancel_scope.cancel()
            if had_link:
                self._check_last_reports(closing_at)

    def _check_last_reports(self, closing_at: float) -> None:
        """Leaving `connect` takes up to a second, in which the last reports are written."""
        now, left = self.world.now, self.unwritten()
        assert self.tap is not None
        stood_still = any(
            began <= now and closing_at <= ended
            for began, ended, what in self.world.history.troubles
            if what in ("sidecar paused", "sidecar busy")  # and so was all of trio
        )
        link = self.tap.link
        if link.ended_at < now - CLOSED_S or link.opened_at > closing_at:
            reached("client: a link is lost while connect is left")
        elif left and not stood_still:
            self.gateway.breach(f"it has closed, and not written {left}")

    # --- what happens to it -----------------------------------------------------

    @property
    def has_link(self) -> bool:
        return self.is_running and self.sidecar.state == "linked"

    def die(self) -> None:
        """End with nothing said."""
        self.scope.cancel()
        self.lose_link()

    def lose_link(self) -> None:
        if self.tap is not None:
            self.tap.cut()

    def read_host(self) -> HostReading | None:
        """The host's clocks, as far as this gateway tells them."""
        gateway, now = self.gateway, self.world.now
        if gateway.plan.clock == "not sent":
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
            # Also the late hello of a dead process may take it.
            if self.gateway.twin is None and not self.must_close.is_set():
                self.world.nursery.start_soon(self.resume)

    async def resume(self) -> None:
        """Take the name back, if it was taken."""
        with suppress(anyio.ClosedResourceError, liveness.Replaced):
            await self.sidecar.resume()

    async def _read_ends(self) -> None:
        while not self.must_close.is_set():
            async for end in self.sidecar.ended():
                if not await self._handles(end):
                    break

    async def _handles(self, end: liveness.End) -> bool:
        """Close the connection that has ended; it may fail, and is delivered again."""
        gateway, draw = self.gateway, self.gateway.random
        ended = ended_by(end.record, gateway.name)
        assert ended is not None
        due = next((it for it in self._ends if it in gateway.open), None)
        conn = gateway.open.get(ended)
        said = None if gateway.library.conns == "none" else ended
        if ended != due or end.conn != said or repr(conn and conn.uid) != repr(end.uid):
            gateway.breach(f"it got {end}, has {conn}, and conn {due} is due")
            return True
        if self.world.now < self.world.plan.lasts_s:
            seconds = draw.choice([0, draw.uniform(0, gateway.library.handler_s)])
            # What has come meanwhile may fill the window.
            self.world.note(seconds + 1, "handler slow", whose=gateway.name)
            await trio.sleep(seconds)
            if draw.random() < gateway.library.fails:
                reached("client: a handler of an end fails")
                return False
        gateway.open.pop(ended, None)  # unless it has logged out meanwhile
        if end.conn is not None and draw.random() < 0.5:
            self.sidecar.logout(end.uid, conn=ended)  # and changes nothing
        return True

    async def _work(self, timer: liveness.Timer) -> str | None:
        """Do the work of a timer that has fired: soon, late, not at all, or for ever."""
        draw = self.gateway.random
        if timer.key in self._working:
            self.gateway.breach(f"{timer} runs twice at once")
        self._working.add(timer.key)
        try:
            await trio.sleep(draw.choice(TASK_S))
            drawn = draw.random()
            if drawn < 0.7:
                return None
            if drawn < 0.85:
                raise liveness.TaskFailed("not now", final=drawn > 0.82)
            if drawn < 0.93:
                raise ValueError("not now")
            await trio.sleep_forever()
        finally:
            self._working.discard(timer.key)

    async def flush(self) -> None:
        reports, has_link = [*self.unconfirmed.items()], self.has_link
        try:
            await self.sidecar.flush()
        except anyio.ClosedResourceError:
            return
        if not has_link:
            reached("client: flush waits for a sidecar that is away")
        if left := [it for it in reports if self.unconfirmed.get(it[0]) is it[1]]:
            self.gateway.breach(f"flush returned, and no pong covers {left}")

    def expect(self, kind: str, of: int | str) -> None:
        """Expect something on the wire; only the last of a connection or timer."""
        if of in self._ends:
            return  # the library takes no more reports of it
        self.unconfirmed.pop(of, None)
        if kind == "logout" and of not in self._opened:
            reached("client: a connection closes before its login is written")
        else:
            self._expect(kind, of)

    def _expect(self, kind: str, of: int | str) -> None:
        conn = self.world.history.conns[of] if isinstance(of, int) else None
        self.unconfirmed[of] = Expected(kind, conn)

    def _expect_all(self) -> None:
        for conn in self.gateway.open:
            self.expect("login", conn)

    def unwritten(self, uid: Uid | None = None) -> list[Expected]:
        """Reports, of all users or of one, that are not in the socket yet."""
        waiting = [it for it in self.unconfirmed.values() if not it.is_written]
        if uid is None:
            return waiting
        return [it for it in waiting if it.conn and str(it.conn.uid) == str(uid)]

    def _wrote(self, kind: str, of: int | str) -> None:
        """Note what is written; a logout follows what logins were reported before it."""
        expected = self.unconfirmed.get(of)
        if kind == "login":
            self._opened.add(int(of))
            is_closed = of not in self.gateway.open or of in self._ends
            if is_closed and expected is None:
                reached("client: a connection closes while its login is written")
                self._expect("logout", of)
        if expected is None or expected.kind != kind or expected.is_written:
            return
        if kind == "logout" and expected.conn is not None:
            waiting = self.unwritten(expected.conn.uid)
            before = waiting[: waiting.index(expected)]
            if any(it.kind == "login" for it in before):
                self.gateway.breach(f"{expected} is written before {before}")
        expected.is_written = True

    # --- what passes on the wire --------------------------------------------------

    def wrote(self, link: LinkHistory, frame: list[Any]) -> None:
        """Note a frame that is in the sidecar's socket whole."""
        now = self.world.now
        match frame:
            case ["hello", hello]:
                link.hello = hello
                if hello.get("after", 0) > self._acked:
                    reached("client: a hello acknowledges what no link could")
                    self._check_ack(hello["after"])
            case [str(kind), [], *_]:
                frame = [kind, [], {"conn": []}]
            case [str(kind), list(uids), {"conn": conns} as options]:
                moments = options.pop("began", [None] * len(conns))
                for uid, number, began in zip(uids, conns, moments, strict=True):
                    said = {"age": 0.0, **options, "conn": number}
                    if began is not None:
                        said["began"] = began
                    if kind in ("login", "logout"):
                        self._wrote(kind, number)
                    link.sent.append(Sent(now, [kind, uid, said]))
                return
            case ["after", str(key), *_] | ["cancel", {"key": str(key)}]:
                self._wrote(frame[0], key)
            case ["ack", int(seq)]:
                self._check_ack(seq)
            case ["ping", _]:
                for it in self.unconfirmed.values():
                    it.is_pinged = it.is_written
            case _:
                pass
        link.sent.append(Sent(now, frame))

    def _check_ack(self, seq: int) -> None:
        """Records that an application has not handled are not acknowledged."""
        self._acked = seq
        for conn, record in self._ends.items():
            if record <= seq and conn in self.gateway.open:
                self.gateway.breach(f"acks {seq}, and the end of {conn} is not handled")

    def welcomed(self, link: LinkHistory) -> None:
        """Expect what waits on this link, with all logins before any logout."""
        welcome, links = link.welcome, self.links
        self.links = [link]
        was_shut_out = any(
            it.welcomed_at == inf or error["code"] == "replaced"
            for it in links
            for error in it.errors
        )
        for it in self.unconfirmed.values():
            it.is_written = it.is_pinged = False
        if self.unconfirmed:
            reached("client: a library is welcomed with reports that wait")
        before, self._log = self._log, welcome["log"]
        if before and (before != self._log or welcome["next"] <= self._newest):
            if self.unconfirmed:
                reached("client: a welcome names another log while reports wait")
            self._expect_all()
            self._ends = dict.fromkeys(self._ends, 0)
            self._newest = self._acked = self._believed_from = 0
        elif before and (was_shut_out or not welcome.get("known", True)):
            self._expect_all()
        if was_shut_out:
            self._believed_from = welcome["next"]
        waiting = self.unconfirmed.items()
        self.unconfirmed = dict(sorted(waiting, key=lambda it: it[1].kind))

    def deliver(self, record: Record) -> None:
        """Expect what follows from a record: an end, and its logout."""
        gateway, seq = self.gateway, record["seq"]
        if seq <= self._newest or self._is_twin:
            return
        self._newest = seq
        if record["kind"] == "gap":
            reached("client, rarely: a gap has a library declare its connections")
            self._expect_all()
        number = ended_by(record, gateway.name)
        if number is None:
            return
        if record["kind"] == "offline" and seq < self._believed_from:
            reached("client: an offline of a time without the name is passed over")
            return
        conn = self.world.history.conns[number]
        if self.unwritten(conn.uid):
            reached("client: a record ends a user whose reports wait")
        if number not in gateway.open:
            reached("client: a record ends a connection that is gone already")
        elif number not in self._ends:
            mates = [it for it in gateway.open.values() if str(it.uid) == str(conn.uid)]
            if mates[-1] is not conn:
                reached("client: a record ends the older of a user's two connections")
            if any(it in gateway.open for it in self._ends):
                reached("client: an end waits behind one whose handler is slow")
            self.expect("logout", number)
        self._ends.setdefault(number, seq)

    def covered(self, number: int) -> None:
        for of in [of for of, it in self.unconfirmed.items() if it.is_pinged]:
            del self.unconfirmed[of]


class Tap(Socket, ByteReceiveStream, ByteSendStream):
    """The library's socket; what passes is noted."""

    def __init__(self, process: Process) -> None:
        self._process, self._gateway = process, process.gateway
        hello = {"role": "gateway", "name": self._gateway.name}
        super().__init__(process.world, process.life, hello)
        self._sent = Frames()
        self._is_inside_frame = False

    async def send(self, item: bytes) -> None:
        await trio.lowlevel.checkpoint()
        gateway, left = self._gateway, memoryview(item)
        if gateway.is_blocked:
            # What the socket has room for goes out, and may end inside a frame.
            cut = gateway.random.randrange(len(left) + 1)
            await self._put(left[:cut])
            left = left[cut:]
            self._is_inside_frame = True
            await gateway.may_go_on()
            self._is_inside_frame = False
        await self._put(left)

    async def _put(self, left: memoryview) -> None:
        while left:
            try:
                size = self._sock.send(left)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._sock)
                continue
            except OSError as error:
                raise anyio.BrokenResourceError from error
            self._gateway.wrote_at = self._world.now
            self._sent.feed(bytes(left[:size]))
            for frame in self._sent:
                self._process.wrote(self.link, frame)
            left = left[size:]

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        await trio.lowlevel.checkpoint()
        try:
            await trio.lowlevel.wait_readable(self._sock)
            await self._gateway.is_reading()
            data = self._sock.recv(max_bytes)
        except OSError as error:
            raise anyio.BrokenResourceError from error
        if not data:
            self.end()
            raise anyio.EndOfStream
        self._received.feed(data)
        for frame in self._received:
            self._process.read(self.link, frame)
        return data

    def cut(self) -> None:
        """Lose the link from here."""
        if self.is_open:
            if self._is_inside_frame:
                reached("client: a link is lost inside a batch")
            self.end()
            self._sock.shutdown(socket.SHUT_RDWR)

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()
