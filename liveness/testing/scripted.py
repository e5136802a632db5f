"""The scripted sidecar; `liveness.testing` explains how to use it."""

import math
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from liveness.config.settings import (
    Config,
    PresenceSettings,
    SocketSettings,
    StateSettings,
    TimerSettings,
)
from liveness.core.limits import Limits
from liveness.core.records import GATEWAY, OFFLINE, Record, Uid, identity
from liveness.core.wire.link_requests import Refusal
from liveness.errors import Code
from liveness.testing.scripted_disk import FULL, ScriptedDisk
from liveness.testing.scripted_host import (
    REFUSED,
    ROUNDING_S,
    UNLIMITED,
    ScriptedHost,
)

T = TypeVar("T")

# The settings that concern a gateway, as the sidecar has them by default.
MAX_REPLIES: Final = Limits().max_replies


class Event(NamedTuple):
    """One event that a gateway has reported."""

    event: str  # login, keepalive, message or logout
    uid: Uid
    conn: int | None
    gateway: str


class Session(NamedTuple):
    """The session that keeps a user online."""

    gateway: str
    session: int
    conn: int | None


class Timer(NamedTuple):
    """A timer as it is now."""

    state: str  # pending, fired, done, failed, cancelled or replaced
    payload: str | None
    ext: str | None
    attempts: int
    left: float | None  # seconds until it fires, or its attempt is over; None: ended
    message: str | None  # of the latest answer


@asynccontextmanager
async def scripted_sidecar(
    *,
    timeout: float = 30.0,  # noqa: ASYNC109 - of users, not of this function
    flush: float = 0.01,
    window: int = 10_000,
    within: float = 10.0,
    max_timers: int = TimerSettings().max_live,
    device_separator: str = "",
) -> AsyncIterator["ScriptedSidecar"]:
    """Serve on a Unix socket in a private temporary folder, until the context is left.

    Args:
        timeout: The silence timeout, in seconds, of gateways that name none.
        flush: How long a gateway may collect, in seconds of its own clock. Small, so
            that tests need not wait for it.
        window: Records that may be unacknowledged on a link.
        within: After this many seconds of the event loop's clock a wait fails.
        max_timers: Timers that may be pending or fired; one more is refused.
        device_separator: Separates a device from its user in a uid; "": each is a user.
    """
    with TemporaryDirectory(prefix="liveness-") as folder:
        path = Path(folder) / "gateway.sock"
        config = Config(
            timeout_s=timeout,
            flush_s=max(flush, 0.001),  # 0 would be the default
            socket=SocketSettings(path=path),
            state=StateSettings(dir=path.parent),
            limits=Limits(window=window),
            timers=TimerSettings(max_live=max_timers),
            presence=PresenceSettings(device_separator=device_separator),
        )
        script = ScriptedSidecar(config, within)
        only: BaseException | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(script._serve)
                yield script
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            # A test sees its own exception, not a group that holds it.
            if len(group.exceptions) > 1:
                raise
            only = group.exceptions[0]
        finally:
            script._leave()
    if only is not None:
        raise only


class ScriptedSidecar:
    """A running sidecar that a test controls; from `scripted_sidecar`.

    Every method and property first reads all that gateways have written. What a gateway
    is still collecting is not written yet: wait for it, or flush the gateway. Use it from
    its event loop only. Links are named by their gateway.

    Attributes:
        path: The socket to connect to.
        events: All events that gateways have reported, in order.
        refused: Each refusal, with the name of the gateway or watcher if it had one.
    """

    def __init__(self, config: Config, within: float) -> None:
        self.path = config.socket.path
        self.events: list[Event] = []
        self._unread: defaultdict[str, deque[Event]] = defaultdict(deque)
        self._within = within
        self._host = ScriptedHost(config, self._note_event)
        self.refused: list[tuple[str | None, Refusal]] = self._host.shell.refused
        self._host.start()

    # --- time -----------------------------------------------------------------

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, without waiting for it.

        What gateways wrote before is applied first. Silent users and due timers are
        recorded at their moments, and the records are sent when this returns. While the
        sidecar is stopped or does not read, time counts for no user's silence; timers
        that come due meanwhile fire afterwards.
        """
        if not 0 <= seconds < math.inf:
            raise ValueError(f"{seconds!r} seconds cannot pass; time goes forward only")
        await checkpoint()
        with self._turned() as host:
            host.pass_time(seconds)
        await checkpoint()

    # --- looking and waiting --------------------------------------------------

    @property
    def users(self) -> dict[Uid, Session]:
        """The users online, each with its session."""
        self._host.turn()
        presence = self._host.parts.presence
        gateways = self._host.parts.gateways.by_name.values()
        numbers = [gateway.number for gateway in gateways]
        uids, _ = presence.wheel.owned(numbers, 0, UNLIMITED)
        return {row[0]: Session(*row[1:]) for row in presence.where(uids)}

    @property
    def records(self) -> list[dict[str, object]]:
        """The records on disk, as readers see them."""
        self._host.turn()
        records = self._host.disk.records[self._host.disk.first - 1 :]
        return [record.as_map() for record in records]

    @property
    def timers(self) -> dict[tuple[str, str], Timer]:
        """The newest timers on disk, by gateway and key."""
        self._host.turn()
        now_ms = self._host.at(ROUNDING_S).state_ms
        return {
            (timer.gateway, timer.key): Timer(
                timer.state,
                payload,
                timer.ext,
                timer.attempts,
                None if timer.next is None else max(0, timer.next - now_ms) / 1_000,
                timer.message,
            )
            for timer, payload in self._host.disk.timers.values()
        }

    @property
    def links(self) -> dict[str, int]:
        """The connected gateways, and how many records each has not acknowledged."""
        self._host.turn()
        return {
            name: link.outbox.unacked
            for (role, name), link in self._host.parts.registry.named.items()
            if role == GATEWAY
        }

    async def online(self, uid: Uid, *, within: float | None = None) -> Session:
        """Wait until this user is online; return its session."""
        row = await self._until(
            lambda: self._host.parts.presence.where([uid]),
            f"{uid!r} is not online",
            within,
            lambda: self._known_of(uid),
        )
        return Session(*row[0][1:])

    async def offline(
        self, uid: Uid, *, within: float | None = None
    ) -> dict[str, object]:
        """Wait until the newest record of this user is an offline; return the record."""

        def ending() -> Record | None:
            record = self._newest_record(uid)
            return record if record and record.kind == OFFLINE else None

        record = await self._until(
            ending,
            f"{uid!r} did not go offline",
            within,
            lambda: self._known_of(uid),
        )
        return record.as_map()

    async def next_event(self, uid: Uid, *, within: float | None = None) -> Event:
        """Wait for the next event of this user; each is returned once, in order."""
        events = await self._until(
            lambda: self._unread[identity(uid)],
            f"no event of {uid!r}",
            within,
            lambda: self._known_of(uid),
        )
        return events.popleft()

    async def timer(
        self, gateway: str, key: str, state: str, *, within: float | None = None
    ) -> Timer:
        """Wait until the newest timer of this key is in a state; return it.

        Args:
            gateway: The gateway that asked for it.
            key: Its key.
            state: pending, fired, done, failed or cancelled.
            within: As for every wait.
        """

        def newest() -> Timer | None:
            timer = self.timers.get((gateway, key))
            return timer if timer and timer.state == state else None

        return await self._until(
            newest,
            f"timer {key!r} of {gateway} is not {state}",
            within,
            lambda: f"it is {self.timers.get((gateway, key), 'not known')}",
        )

    async def linked(self, gateway: str, *, within: float | None = None) -> None:
        """Wait until this gateway is connected and has said hello."""
        key = GATEWAY, gateway
        await self._until(
            lambda: key in self._host.parts.registry.named,
            f"{gateway} has no link",
            within,
        )

    async def until(
        self, is_so: Callable[[], object], *, within: float | None = None
    ) -> None:
        """Wait until *is_so* returns something true; it is called after each change.

        Raises:
            AssertionError: As in every wait: it was not true within that many seconds of
                the event loop's clock. The text says what is known.
        """
        await self._until(is_so, "it is not so", within)

    # --- faults of links ------------------------------------------------------

    def drop(self, gateway: str) -> None:
        """Close the link of this gateway. It may connect again."""
        with self._turned() as host:
            link = host.parts.registry.named.get((GATEWAY, gateway))
            if link is None:
                raise ValueError(f"{gateway} has no link to drop; {self._summary()}")
            host.shell.close(host.shell.sockets[link.number])

    def refuse(self, gateway: str, code: str) -> None:
        """End the link of this gateway with an error of this code.

        If it has no link, its next hello gets the error; of several calls, each refuses
        one hello, in order.
        """
        known = Code(code)
        with self._turned() as host:
            link = host.parts.registry.named.get((GATEWAY, gateway))
            if link is None:
                host.refuse_next[gateway].append(known)
            else:
                with host.shell:
                    closing = link.conversation.close(known, REFUSED)
                    host.parts.registry.refuse(link, closing)

    @contextmanager
    def not_reading(self) -> Iterator[None]:
        """Read nothing inside this `with`, like a sidecar that is too busy."""
        with self._turned() as host:
            host.shell.is_reading = False
        try:
            yield
        finally:
            host.shell.is_reading = True
            with self._turned():
                pass

    # --- disk and restarts ----------------------------------------------------

    @contextmanager
    def disk_full(self) -> Iterator[None]:
        """Write nothing to disk inside this `with`: no pong, answer, welcome or record
        is sent.

        What gateways report is applied all the same, and written afterwards. A `crash`
        inside forgets it.
        """
        self._host.turn()
        self._host.disk.failure = FULL
        try:
            yield
        finally:
            self._host.disk.failure = None
            with self._turned():
                pass

    def trim(self) -> None:
        """Remove all records, as the retention removes old ones, and ended timers.

        A gateway that has not acknowledged all records of its own gets a gap on its next
        link.
        """
        self._host.turn()
        self._host.parts.scheduler.deleted(self._host.disk.trim())

    def stop(self, reason: str = "the sidecar stops") -> None:
        """Stop as planned, with `bye` to all that read. After `start`, users' clocks continue."""
        with self._turned() as host:
            host.stop_listening()
            self.path.unlink()
            if not host.disk.failure:
                host.save_clocks()
            with host.shell as server:
                server.end_all(reason, host.at())
        host.forget()

    def crash(self) -> None:
        """End as by `kill -9`. After `start`, users on disk have a whole timeout."""
        with self._turned() as host:
            host.stop_listening()
            host.forget()
            host.shell.close_all()

    def start(self, *, new_log: bool = False) -> None:
        """Come back after `stop` or `crash`.

        Args:
            new_log: Whether to come back with an empty disk: a new log, no user online.
        """
        if self._host.listener is not None:
            raise ValueError("it is running; call stop() or crash() first")
        if new_log:
            self._host.disk = ScriptedDisk(failure=self._host.disk.failure)
        self._host.start()

    # --- within ---------------------------------------------------------------

    @contextmanager
    def _turned(self) -> Iterator[ScriptedHost]:
        """Read what was written before a block, and write what follows from it."""
        self._host.turn()
        yield self._host
        self._host.settle()

    def _note_event(self, event: str, uid: Uid, conn: int | None, gateway: str) -> None:
        noted = Event(event, uid, conn, gateway)
        self.events.append(noted)
        self._unread[identity(uid)].append(noted)

    def _newest_record(self, uid: Uid) -> Record | None:
        for record in reversed(self._host.disk.records):
            if isinstance(record, Record) and identity(record.uid) == identity(uid):
                return record
        return None

    async def _until(
        self,
        wanted: Callable[[], T | None],
        otherwise: str,
        within: float | None,
        known: Callable[[], str] | None = None,
    ) -> T:
        """Wait until *wanted*, called after each change, returns something true; return it."""
        await checkpoint()
        self._host.turn()
        within = self._within if within is None else within
        with anyio.move_on_after(within):
            while not (found := wanted()):
                await self._host.changed.wait()
            return found
        details = [self._summary()] if known is None else [known(), self._summary()]
        raise AssertionError("; ".join([f"{otherwise} after {within:g} s", *details]))

    def _known_of(self, uid: Uid) -> str:
        """The last event and record of a user, to explain why a wait failed."""
        user = identity(uid)
        of_user = (each for each in reversed(self.events) if identity(each.uid) == user)
        event, record = next(of_user, None), self._newest_record(uid)
        heard = "nothing was heard of it" if event is None else f"heard last: {event}"
        return heard if record is None else f"{heard}; recorded last: {record.as_map()}"

    def _summary(self) -> str:
        state = [f"linked: {', '.join(self.links) or 'no gateway'}"]
        if self._host.listener is None:
            state.append("the sidecar is not running")
        if not self._host.shell.is_reading:
            state.append("it does not read")
        if self._host.disk.failure:
            state.append("its disk is full")
        if self.refused:
            name, refusal = self.refused[-1]
            state.append(f"refused last: {name}, {refusal.code}: {refusal.message}")
        return "; ".join(state)

    async def _serve(self) -> None:
        while True:
            await anyio.wait_readable(self._host.shell.selector.fileno())
            self._host.turn()

    def _leave(self) -> None:
        if self._host.listener is not None:
            self._host.stop_listening()
        self._host.shell.close_all()
        self._host.shell.selector.close()
