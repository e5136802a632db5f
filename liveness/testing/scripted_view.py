"""What a script sees of its sidecar, and how it waits for that."""

from collections import defaultdict, deque
from collections.abc import Callable
from typing import NamedTuple

import anyio
from anyio.lowlevel import checkpoint

from liveness.config.settings import Config
from liveness.core.records import GATEWAY, Record, Uid, identity
from liveness.core.timers.timer_scheduler import Due
from liveness.testing.scripted_host import ROUNDING_S, ScriptedHost


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


class ScriptedView:
    """The state of a scripted host, and the events that gateways have reported to it.

    After *within* seconds of the event loop's clock a wait fails.
    """

    def __init__(self, config: Config, within: float) -> None:
        self.host = ScriptedHost(config, self._note_event)
        self.events: list[Event] = []
        self._within = within
        self._unread: defaultdict[str, deque[Event]] = defaultdict(deque)

    def _note_event(self, event: str, uid: Uid, conn: int | None, gateway: str) -> None:
        noted = Event(event, uid, conn, gateway)
        self.events.append(noted)
        self._unread[identity(uid)].append(noted)

    def unread_events(self, uid: Uid) -> deque[Event]:
        """The events of a user that no wait has returned."""
        return self._unread[identity(uid)]

    def newest_record(self, uid: Uid) -> Record | None:
        """The newest record of a user; None if there is none."""
        for record in reversed(self.host.disk.records):
            if isinstance(record, Record) and identity(record.uid) == identity(uid):
                return record
        return None

    def timers(self) -> dict[tuple[str, str], Timer]:
        """The newest timers on disk, by gateway and key."""
        return {
            (due.timer.gateway, due.timer.key): self._timer_now(due)
            for due in self.host.disk.timers.values()
        }

    def _timer_now(self, due: Due) -> Timer:
        timer, payload = due
        left = None
        if timer.next is not None:
            now_ms = self.host.at(ROUNDING_S).state_ms
            left = max(0, timer.next - now_ms) / 1_000
        return Timer(
            timer.state, payload, timer.ext, timer.attempts, left, timer.message
        )

    def links(self) -> dict[str, int]:
        """The connected gateways, and how many records each has not acknowledged."""
        self.host.turn()
        return {
            name: link.outbox.unacked
            for (role, name), link in self.host.parts.registry.named.items()
            if role == GATEWAY
        }

    async def until(
        self,
        is_so: Callable[[], object],
        otherwise: str,
        within: float | None,
        known: Callable[[], str] | None = None,
    ) -> None:
        """Wait until *is_so*, which is called after each change, returns something true.

        If it does not, that is raised as *otherwise*, with what is *known* to explain it.
        """
        await checkpoint()
        self.host.turn()
        within = self._within if within is None else within
        with anyio.move_on_after(within):
            while not is_so():
                await self.host.changed.wait()
            return
        details = [self.summary()] if known is None else [known(), self.summary()]
        raise AssertionError("; ".join([f"{otherwise} after {within:g} s", *details]))

    async def until_of(
        self,
        uid: Uid,
        is_so: Callable[[], object],
        otherwise: str,
        within: float | None,
    ) -> None:
        """Wait for something of one user; see `until`."""
        await self.until(is_so, otherwise, within, lambda: self._known_of(uid))

    def _known_of(self, uid: Uid) -> str:
        user = identity(uid)
        of_user = (each for each in reversed(self.events) if identity(each.uid) == user)
        event = next(of_user, None)
        record = self.newest_record(uid)
        heard = "nothing was heard of it" if event is None else f"heard last: {event}"
        return heard if record is None else f"{heard}; recorded last: {record.as_map()}"

    def summary(self) -> str:
        """The state that may explain why a wait failed."""
        host = self.host
        state = [f"linked: {', '.join(self.links()) or 'no gateway'}"]
        if host.listener is None:
            state.append("the sidecar is not running")
        if not host.shell.is_reading:
            state.append("it does not read")
        if host.disk.failure:
            state.append("its disk is full")
        if host.shell.refused:
            name, refusal = host.shell.refused[-1]
            state.append(f"refused last: {name}, {refusal.code}: {refusal.message}")
        return "; ".join(state)
