"""Where situations are played: the sidecar, the gateway, its users, and the tape."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

import trio

from liveness.core.records import OFFLINE, SILENCE, identity
from liveness.core.wire.framing import PIECE_BYTES, encode
from liveness.lab.common.line_connection import LineConnection
from liveness.lab.common.processes import Program
from liveness.lab.conformance.frame_rules import FrameRules
from liveness.lab.conformance.rules import BrokeOff, Findings
from liveness.lab.conformance.staged_sidecar import (
    FLUSH_S,
    SOON_S,
    TIMEOUT_S,
    StagedSidecar,
)
from liveness.lab.conformance.tape import OPENED, Reported, Seen, Tape, records, reports
from liveness.lab.conformance.tcp_user import TcpUser

LOOK_S: Final = 0.2  # between checks of conditions that no frame and no user reports
# A gateway that was refused may pause for up to 10 s.
LINK_S: Final = 15.0
# The wait until a gateway has no unconfirmed reports.
CONFIRMED_S: Final = 3 * FLUSH_S
# The gateway may have to be compiled first.
START_S: Final = 60.0
MOST_NAME: Final = 29  # characters of a user's name; a suffix makes 32
CONNECTS_AT_ONCE: Final = 20
RETRY_S: Final = 0.05
GONE_S: Final = 1.0  # for the logouts of leaving users


@dataclass(eq=False)
class Stage:
    """What a situation uses.

    A situation reports its findings by `check`, and its preconditions by `need`. Both, and
    all functions that wait, use the frames since `mark`.
    """

    name: str
    sidecar: StagedSidecar
    tape: Tape
    findings: Findings
    frame_rules: FrameRules
    process: Program
    address: tuple[str, int]  # where users connect
    nursery: trio.Nursery
    users: list[TcpUser] = field(default_factory=list)
    since: int = 0  # the last mark; a situation begins with one
    played: int = 0  # situations

    def mark(self) -> None:
        """Consider only frames from now on."""
        self.since = self.tape.mark

    def seen(self, *names: str, is_sent: bool = False) -> list[Seen]:
        return [
            seen
            for seen in self.tape.since(self.since)
            if seen.is_sent == is_sent and seen.name in names
        ]

    # --- findings ---------------------------------------------------------------------

    def check(self, rule: int, is_kept: object, seen: str, expected: str) -> None:
        """Note whether a rule was kept; if not, with the frames that led there."""
        if is_kept:
            self.findings.passed.add(rule)
        else:
            self.findings.fail(rule, seen, expected, self.tape.since(self.since))

    def need(self, is_so: object, otherwise: str) -> None:
        if not is_so:
            raise BrokeOff(otherwise)

    async def until(self, is_so: Callable[[], object], within: float = SOON_S) -> bool:
        with trio.move_on_after(within):
            while not is_so():
                with trio.move_on_after(LOOK_S):
                    await self.tape.changed.park()
            return True
        return bool(is_so())

    async def quiet(self, flushes: float = 4) -> None:
        """Wait some flushes, in which the gateway could do what it should not."""
        await trio.sleep(flushes * FLUSH_S)

    # --- the gateway ------------------------------------------------------------------

    @property
    def is_linked(self) -> bool:
        is_open = self.tape.links.get(self.link) == OPENED
        is_welcomed = self.link in self.frame_rules.welcomed
        return self.name in self.sidecar.links and is_open and is_welcomed

    async def linked(self, within: float = LINK_S) -> bool:
        await self.until(lambda: self.is_linked or self.has_ended, within)
        return self.is_linked

    async def check_linked(self, rule: int, otherwise: str) -> None:
        self.check(rule, await self.linked(), otherwise, "a link after a pause")
        self.need(self.is_linked, "the gateway has no link")

    async def need_link(self, within: float = LINK_S) -> None:
        self.need(await self.linked(within), "the gateway has no link")

    @property
    def has_ended(self) -> bool:
        return self.process.code is not None

    def how_it_runs(self) -> str:
        """Whether the gateway's process runs, and the end of its output, on one line."""
        lines = self.process.last_lines().splitlines()
        output = " | ".join(line.strip() for line in lines) or "none"
        code = self.process.code
        state = "runs" if code is None else f"has ended, exit code {code}"
        return f"{state}; its output: {output}"

    @property
    def link(self) -> int:
        return max(self.tape.links, default=0)

    @property
    def timeout_s(self) -> float:
        hellos = [seen for seen in self.tape.frames if seen.name == "hello"]
        timeout = hellos[-1].options.get("timeout") if hellos else None
        return float(timeout) if isinstance(timeout, int | float) else TIMEOUT_S

    async def ready(self) -> None:
        if not self.sidecar.is_running:
            self.sidecar.start()
        if self.has_ended:
            seen = f"the gateway's process {self.how_it_runs()}"
            self.check(24, False, seen, "it serves on")
            self.start_process()
        if not await self.linked():
            self.start_process()
            await self.need_link(START_S)

    def start_process(self) -> None:
        self.frame_rules.new_process()
        self.process.launch()

    async def start_sidecar(self, **how: Any) -> None:
        """Restart the sidecar, by a crash if it runs; wait for the gateway."""
        if self.sidecar.is_running:
            self.sidecar.crash()
        self.mark()
        self.sidecar.start(**how)
        await self.need_link()

    # --- its reports ------------------------------------------------------------------

    def reported(self, *events: str) -> list[Reported]:
        frames = self.tape.since(self.since)
        found = (report for seen in frames for report in reports(seen))
        return [report for report in found if report.event in events]

    def reported_of(self, user: TcpUser, *events: str) -> list[Reported]:
        """Reports about a user's connection; before its conn is known, about its name."""
        return [
            report
            for report in self.reported(*events)
            if report.user == user.uid
            and (user.conn is None or report.conn in (user.conn, None))
        ]

    async def all_reported(self, users: list[TcpUser], *events: str) -> list[TcpUser]:
        """Wait until these events have named all these users; return the missing ones."""

        def missing() -> list[TcpUser]:
            conns = {report.conn for report in self.reported(*events)}
            return [user for user in users if user.conn not in conns]

        await self.until(lambda: not missing())
        return missing()

    async def need_report(self, user: TcpUser, *events: str) -> None:
        came = await self.until(lambda: self.reported_of(user, *events))
        self.need(came, f"no {events[-1]} came")

    async def check_report(
        self, rule: int, user: TcpUser, otherwise: str, *events: str
    ) -> None:
        came = await self.until(lambda: self.reported_of(user, *events))
        self.check(rule, came, otherwise, events[-1])

    async def confirmed(self) -> None:
        """Give the gateway time to have all its reports confirmed by a pong."""

        def is_answered() -> bool:
            names = [seen.name for seen in self.tape.frames if seen.link == self.link]
            return names.count("ping") <= names.count("pong")

        self.mark()
        await self.until(lambda: self.seen("ping"), CONFIRMED_S)
        await self.until(is_answered)

    async def check_never_offline(self, *users: TcpUser) -> None:
        """Check that no user with an open connection was offline in this situation."""
        await self.quiet(2)
        records = [each for each in self.sidecar.records if each["kind"] == OFFLINE]
        offline = {user.uid for user in users} & {record["uid"] for record in records}
        text = "a user with an open connection was offline for a moment"
        self.check(14, not offline, text, "logins before logouts")

    def ended(self, user: TcpUser) -> list[int]:
        return [
            record["seq"]
            for seen in self.tape.since(self.since)
            for record in records(seen)
            if self.frame_rules.conn_ended_by(record) == user.conn
        ]

    async def need_end(self, user: TcpUser, what: str) -> None:
        self.need(await self.until(lambda: self.ended(user)), f"{what} was not sent")

    async def acked(self, seq: int, within: float = SOON_S) -> bool:
        return await self.until(lambda: self.acks_of(seq), within)

    def acks_of(self, seq: int) -> list[Seen]:
        acks = self.seen("ack")
        return [ack for ack in acks if type(ack.content) is int and ack.content >= seq]

    async def check_acked(self, rule: int, seq: int, what: str) -> None:
        self.check(rule, await self.acked(seq), f"no ack of {what}", f"ack {seq}")

    # --- users ------------------------------------------------------------------------

    async def joins(self, name: str) -> TcpUser:
        stream = None
        with trio.move_on_after(START_S):
            while stream is None:
                try:
                    stream = await trio.open_tcp_stream(*self.address)
                except OSError:
                    await trio.sleep(RETRY_S)
        if stream is None:
            host, port = self.address
            raise BrokeOff(f"no user can connect to {host}:{port}")
        # A name that no other situation has, as records of those may come again. A name of
        # digits gets no dash: some languages make an integer of such a key of an array.
        dash = "" if name.isdigit() else "-"
        uid = f"{name[:MOST_NAME]}{dash}{self.played:02}"
        user = TcpUser(uid, LineConnection(stream))
        self.users.append(user)
        self.nursery.start_soon(user.listen, self.tape.changed)
        await user.connection.send({"login": uid})
        joined = await self.until(lambda: user.has_joined or not user.is_open)
        why = f'the gateway did not let {name} in: awaited {{"joined": "{uid}"}}, read '
        why += f"{user.heard or 'nothing'}; it {self.how_it_runs()}"
        self.need(joined and user.has_joined, why)
        return user

    async def enter(self, name: str) -> TcpUser:
        """Connect as a user, and wait until it is online with its conn."""
        known = len(self.reported("login"))
        user = await self.joins(name)

        def new() -> list[Reported]:
            logins = self.reported("login")[known:]
            return [login for login in logins if login.user == user.uid]

        self.need(await self.until(new), f"no login of {name} was reported")
        conn = new()[-1].conn
        if type(conn) is not int:
            raise BrokeOff(f"the login of {name} has no usable conn")
        user.conn = conn
        online = await self.until(lambda: (user.uid, conn) in self._online())
        self.need(online, f"the login of {name} was not accepted")
        return user

    async def enter_all(self, names: list[str]) -> list[TcpUser]:
        users: list[TcpUser] = []
        limit = trio.CapacityLimiter(CONNECTS_AT_ONCE)

        async def enter(name: str) -> None:
            async with limit:
                users.append(await self.enter(name))

        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(enter, name)
        return users

    async def served(self, user: TcpUser) -> bool:
        pongs = user.pongs
        await user.ping()
        await self.until(lambda: user.pongs > pongs or not user.is_open)
        return user.is_open and user.pongs > pongs

    async def until_closed(self, *users: TcpUser) -> bool:
        return await self.until(lambda: not all(user.is_open for user in users))

    async def check_closed(self, rule: int, user: TcpUser, otherwise: str) -> None:
        self.check(rule, await self.until_closed(user), otherwise, "closed")

    async def check_served(self, rule: int, user: TcpUser, otherwise: str) -> None:
        self.check(rule, await self.served(user), otherwise, "open, and served")

    async def leaves(self, user: TcpUser) -> None:
        await user.connection.send({"logout": 1})
        closed = await self.until_closed(user)
        self.need(closed, "a user who has logged out stays connected")

    async def clear(self) -> None:
        for user in self.users:
            await user.connection.close()
        self.users.clear()
        await self.until(lambda: not self.is_linked or not self._online(), GONE_S)

    def _online(self) -> set[tuple[str, int | None]]:
        sessions = self.sidecar.users.items()
        return {
            (identity(uid), it.conn) for uid, it in sessions if it.gateway == self.name
        }

    # --- other gateways ---------------------------------------------------------------

    @asynccontextmanager
    async def rival(self, name: str) -> AsyncIterator[Callable[..., Awaitable[None]]]:
        """Link another gateway; yields a function that writes a frame."""
        async with await trio.open_unix_socket(str(self.sidecar.path)) as stream:

            async def send(*frame: object) -> None:
                await stream.send_all(encode(frame))

            self.nursery.start_soon(_read_away, stream)
            await send("hello", {"protocol": 1, "name": name})
            came = await self.until(lambda: name in self.sidecar.links)
            self.need(came, "the script's own gateway has no link")
            yield send

    def silence_of(self, user: TcpUser) -> dict[str, object]:
        own = {"uid": user.uid, "gateway": self.name, "conn": user.conn, "session": 1}
        return {"kind": OFFLINE, "reason": SILENCE, "at": 1_795_168_800_000, **own}

    def deliver(self, *records: dict[str, object]) -> int:
        """Send the gateway records made by hand, a frame each; return the last one's seq.

        This sets `mark`.
        """
        self.mark()
        seq = self.sidecar.record_others(len(records))
        numbered = [{"seq": n, **record} for n, record in enumerate(records, seq)]
        self.sidecar.send(self.name, *(("notices", (record,)) for record in numbered))
        return seq + len(records) - 1


async def _read_away(stream: trio.SocketStream) -> None:
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        while await stream.receive_some(PIECE_BYTES):
            pass


# --- situations -----------------------------------------------------------------------

Play: TypeAlias = Callable[[Stage], Awaitable[None]]


class Situation(NamedTuple):
    """Something that happens to a gateway, and the rules that show in it.

    It begins when the gateway is linked, unless it starts the gateway's process.
    """

    name: str
    play: Play
    rules: tuple[int, ...]
    starts_process: bool


def situation(*rules: int, process: bool = False) -> Callable[[Play], Situation]:
    def made(play: Play) -> Situation:
        name = getattr(play, "__name__", "").replace("_", " ")
        return Situation(name, play, rules, process)

    return made
