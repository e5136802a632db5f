"""Where situations are played: the sidecar, the gateway, its users, and the tape."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from liveness.core.framing import PIECE_BYTES, encode
from liveness.core.records import OFFLINE, identity
from liveness.lab.conformance.findings import BrokeOff, Findings
from liveness.lab.conformance.frame_rules import FrameRules
from liveness.lab.conformance.gateway_process import GatewayProcess
from liveness.lab.conformance.staged_sidecar import StagedSidecar
from liveness.lab.conformance.tape import OPENED, Reported, Seen, Tape, records, reports
from liveness.lab.conformance.tcp_users import TcpUser

FLUSH_S: Final = 0.1
TIMEOUT_S: Final = 30.0  # scripted seconds: they cost no time
# What a gateway does within milliseconds has this long, as the machine may be busy.
SOON_S: Final = 5.0
LOOK_S: Final = 0.2  # between looks at what no frame and no user reports
# A gateway that was refused may pause for up to 10 s.
LINK_S: Final = 15.0
# For a gateway that has nothing to confirm any more.
CONFIRMED_S: Final = 3 * FLUSH_S
# The gateway may have to be compiled first.
START_S: Final = 60.0
MOST_NAME: Final = 32  # of a user, in characters
CONNECTS_AT_ONCE: Final = 20
RETRY_S: Final = 0.05
GONE_S: Final = 1.0  # for the logouts of users who leave
SEQ_TRIES: Final = 10  # a record for the gateway may come between
HAND_MADE: Final = {"at": 1_795_168_800_000, "session": 1}


@dataclass(eq=False)
class Stage:
    """What a situation uses.

    A situation states what it found by `check`, and by `need` what has to be so before it
    can find anything.
    """

    name: str
    sidecar: StagedSidecar
    tape: Tape
    findings: Findings
    frame_rules: FrameRules
    process: GatewayProcess | None
    address: tuple[str, int] | None  # where users connect
    nursery: trio.Nursery
    users: list[TcpUser] = field(default_factory=list)
    began: int = 0  # the mark at which the situation began
    played: int = 0  # situations
    _visitors: int = 0

    # --- findings ---------------------------------------------------------------------

    def check(
        self, rule: int, is_kept: object, seen: str, expected: str, *, since: int = -1
    ) -> None:
        """Note whether a rule was kept; if not, with the frames that led there."""
        if is_kept:
            self.findings.passed.add(rule)
        else:
            frames = self.tape.since(self.began if since < 0 else since)
            self.findings.fail(rule, seen, expected, frames)

    def need(self, is_so: object, otherwise: str) -> None:
        """Break the situation off unless *is_so*."""
        if not is_so:
            raise BrokeOff(otherwise)

    async def until(self, is_so: Callable[[], object], within: float = SOON_S) -> bool:
        """Wait until *is_so* returns something true; return whether it did in time."""
        with trio.move_on_after(within):
            while not is_so():
                with trio.move_on_after(LOOK_S):
                    await self.tape.changed.park()
            return True
        return bool(is_so())

    async def quiet(self, flushes: float = 4) -> None:
        """Give the gateway some flushes for what it should not do."""
        await trio.sleep(flushes * FLUSH_S)

    # --- the gateway ------------------------------------------------------------------

    @property
    def is_linked(self) -> bool:
        """Whether the gateway has a link that was welcomed."""
        is_open = self.tape.links.get(self.link) == OPENED
        is_welcomed = self.link in self.frame_rules.welcomed
        return self.name in self.sidecar.links and is_open and is_welcomed

    async def linked(self, within: float = LINK_S) -> bool:
        """Wait until the gateway has a link that was welcomed, or its process ends."""
        await self.until(lambda: self.is_linked or self.has_ended, within)
        return self.is_linked

    @property
    def has_ended(self) -> bool:
        """Whether the gateway's process has ended by itself."""
        return self.process is not None and self.process.has_ended

    @property
    def link(self) -> int:
        """The number of the gateway's latest link."""
        return max(self.tape.links, default=0)

    @property
    def timeout_s(self) -> float:
        """The silence timeout of the gateway's users."""
        for seen in reversed(self.tape.received_since(0, "hello")):
            options = seen.frame[1] if len(seen.frame) > 1 else {}
            timeout = options.get("timeout") if isinstance(options, dict) else None
            return float(timeout) if isinstance(timeout, int | float) else TIMEOUT_S
        return TIMEOUT_S

    async def ready(self) -> None:
        """Have the gateway linked before a situation; start it again if it has ended."""
        if not self.sidecar.is_running:
            self.sidecar.start()
        if self.has_ended:
            assert self.process is not None
            seen = f"the gateway's process has ended, {self.process.how_it_ended}"
            self.check(24, False, seen, "it serves on")
            self.start_process()
        if not await self.linked():
            self.need(self.process, "the gateway has no link")
            self.start_process()
            self.need(await self.linked(START_S), "the gateway has no link")

    def start_process(self) -> None:
        """Kill the gateway, and start it again."""
        assert self.process is not None
        self.process.kill()
        self.frame_rules.new_process()
        self.process.start()

    async def restart_sidecar(self, **how: Any) -> int:
        """Crash the sidecar and start it again; return the mark at its start."""
        self.sidecar.crash()
        return await self.start_sidecar(**how)

    async def start_sidecar(self, **how: Any) -> int:
        """Start the sidecar, and wait for the gateway; return the mark at its start."""
        mark = self.tape.mark
        self.sidecar.start(**how)
        self.need(await self.linked(), "the gateway did not come back")
        return mark

    # --- what it reports --------------------------------------------------------------

    def reported(
        self, user: TcpUser, *events: str, since: int | None = None
    ) -> list[Reported]:
        """The reports of these events about a user since a mark."""
        mark = self.began if since is None else since
        return [
            report
            for seen in self.tape.since(mark)
            for report in reports(seen)
            if report.event in events
            and (
                report.conn == user.conn
                or (report.user, report.conn) == (user.uid, None)
            )
        ]

    def reported_all(self, users: list[TcpUser], since: int, *events: str) -> bool:
        """Whether all these users were reported since a mark, by these events or any."""
        conns = {
            report.conn
            for seen in self.tape.since(since)
            for report in reports(seen)
            if not events or report.event in events
        }
        return all(user.conn in conns for user in users)

    async def confirmed(self) -> None:
        """Give the gateway time to have all that it has sent confirmed by a pong."""
        mark = self.tape.mark
        await self.until(lambda: self.tape.received_since(mark, "ping"), CONFIRMED_S)
        await self.until(lambda: not self.awaits_pong)

    @property
    def awaits_pong(self) -> bool:
        """Whether a ping was not answered yet."""
        pings = self.tape.received_since(self.began, "ping")
        pongs = self.tape.sent_since(self.began, "pong")
        return len(pings) > len(pongs)

    async def reports(
        self,
        user: TcpUser,
        *events: str,
        since: int | None = None,
        within: float = SOON_S,
    ) -> bool:
        """Wait for such a report; return whether it came."""
        return await self.until(
            lambda: self.reported(user, *events, since=since), within
        )

    def logins_of(self, uid: str) -> list[Reported]:
        """The logins of a name in this situation."""
        return [
            report
            for seen in self.tape.since(self.began)
            for report in reports(seen)
            if report.event == "login" and report.user == uid
        ]

    async def check_never_offline(self, mark: int, *users: TcpUser) -> None:
        """Check that no user with an open connection is offline in this situation."""
        await self.quiet(2)
        records = [each for each in self.sidecar.records if each["kind"] == OFFLINE]
        offline = {user.uid for user in users} & {record["uid"] for record in records}
        text = "a user with an open connection was offline for a moment"
        self.check(14, not offline, text, "logins before logouts", since=mark)

    def ended(self, user: TcpUser, since: int) -> list[int]:
        """The seqs of the records since a mark that end this user's connection."""
        return [
            record["seq"]
            for seen in self.tape.since(since)
            for record in records(seen)
            if self.frame_rules.conn_ended_by(record) == user.conn
        ]

    def acks_since(self, mark: int) -> list[Seen]:
        """The gateway's acks since a mark."""
        return self.tape.received_since(mark, "ack")

    async def acked(self, seq: int, since: int, within: float = SOON_S) -> bool:
        """Wait until the gateway has acknowledged a record."""
        return await self.until(
            lambda: any(_seq(seen) >= seq for seen in self.acks_since(since)), within
        )

    # --- users ------------------------------------------------------------------------

    def _own_name(self, name: str) -> str:
        """A name that no other situation has: records of those may come again.

        A name of digits stays one: some languages make an integer of it in an array's key.
        """
        if name.isdigit():
            return f"{name}{self.played:02}"
        return f"{name[: MOST_NAME - 3]}-{self.played:02}"

    async def connect(self, uid: str, within: float = START_S) -> TcpUser:
        """Connect as a user, and ask to be logged in."""
        assert self.address is not None
        stream = None
        with trio.move_on_after(within):
            while stream is None:
                with suppress(OSError):
                    stream = await trio.open_tcp_stream(*self.address)
                if stream is None:
                    await trio.sleep(RETRY_S)
        if stream is None:
            raise BrokeOff(
                f"no user can connect to {self.address[0]}:{self.address[1]}"
            )
        user = TcpUser(uid, stream, self.tape.changed)
        self.users.append(user)
        self.nursery.start_soon(user.listen)
        await user.send({"login": uid})
        return user

    async def joins(self, uid: str) -> TcpUser:
        """Connect as a user, and wait until the gateway has let it in."""
        user = await self.connect(self._own_name(uid))
        joined = await self.until(lambda: user.has_joined or not user.is_open)
        read = ", ".join(map(str, user.lines)) or "nothing"
        ended = ""
        if self.process is not None and self.process.has_ended:
            ended = f"; it has ended, {self.process.how_it_ended}"
        self.need(
            joined and user.has_joined,
            f'the gateway did not let {uid} in: awaited {{"joined": "{user.uid}"}}, read '
            f"{read}{ended}",
        )
        return user

    async def enter(self, uid: str) -> TcpUser:
        """Connect as a user, and wait until it is online with its conn."""
        known = len(self.logins_of(self._own_name(uid)))
        user = await self.joins(uid)
        came = await self.until(lambda: len(self.logins_of(user.uid)) > known)
        self.need(came, f"no login of {uid} was reported")
        conn = self.logins_of(user.uid)[-1].conn
        self.need(type(conn) is int, f"the login of {uid} has no usable conn")
        user.conn = int(str(conn))
        online = await self.until(lambda: self._is_online(user))
        self.need(online, f"the login of {uid} was not accepted")
        return user

    async def enter_all(self, uids: list[str]) -> list[TcpUser]:
        """Have many users come in, some at a time."""
        users: list[TcpUser] = []
        limit = trio.CapacityLimiter(CONNECTS_AT_ONCE)

        async def enter(uid: str) -> None:
            async with limit:
                users.append(await self.enter(uid))

        async with trio.open_nursery() as nursery:
            for uid in uids:
                nursery.start_soon(enter, uid)
        return users

    def _is_online(self, user: TcpUser) -> bool:
        return any(
            (identity(uid), *session[::2]) == (user.uid, self.name, user.conn)
            for uid, session in self.sidecar.users.items()
        )

    async def served(self, user: TcpUser) -> bool:
        """Whether the gateway answers a line of this user."""
        pongs = user.pongs
        await user.ping()
        await self.until(lambda: user.pongs > pongs or not user.is_open)
        return user.is_open and user.pongs > pongs

    async def closed(self, user: TcpUser, within: float = SOON_S) -> bool:
        """Wait until the gateway has ended this user's connection."""
        return await self.until(lambda: not user.is_open, within)

    async def leaves(self, user: TcpUser) -> None:
        """Log a user out, and wait until the gateway knows."""
        await user.send({"logout": 1})
        self.need(await self.closed(user), "a user who has logged out stays connected")

    async def clear(self) -> None:
        """Have all users leave."""
        for user in self.users:
            await user.close()
        self.users.clear()
        await self.until(lambda: not self.is_linked or not self._own_users, GONE_S)

    @property
    def _own_users(self) -> list[object]:
        """The users that are online through the gateway."""
        users = self.sidecar.users
        return [uid for uid, session in users.items() if session.gateway == self.name]

    # --- other gateways ---------------------------------------------------------------

    @asynccontextmanager
    async def rival(self, name: str) -> AsyncIterator[Callable[..., Awaitable[None]]]:
        """Another gateway: gives a function that writes a frame."""
        async with await trio.open_unix_socket(str(self.sidecar.path)) as stream:

            async def send(*frame: object) -> None:
                await stream.send_all(encode(frame))

            self.nursery.start_soon(_read_away, stream)
            await send("hello", {"protocol": 1, "name": name})
            came = await self.until(lambda: name in self.sidecar.links)
            self.need(came, "the script's own gateway has no link")
            yield send

    async def unused_seqs(self, count: int = 1) -> int:
        """The first of some seqs in a row, of new records that do not concern the gateway.

        They are above all that was sent to the gateway, until the caller awaits anything.
        """
        for _ in range(SEQ_TRIES):
            self._visitors += count
            names = [f"visitor-{self._visitors - n}" for n in range(count)]
            async with self.rival("elsewhere") as send:
                await send("login", names)
                came = await self.until(lambda: names[-1] in self.sidecar.users)  # noqa: B023
                self.need(came, "the script's own users are not online")
            first = self.sidecar.users[names[0]].session
            if self.frame_rules.newest_sent < first:
                return first
        raise BrokeOff("the gateway gets records all the time")

    def silence_of(self, user: TcpUser) -> dict[str, object]:
        """A record that ends a user's connection, without its seq."""
        return {
            "kind": "offline",
            "uid": user.uid,
            "gateway": self.name,
            "conn": user.conn,
            "reason": "silence",
        }

    async def deliver(self, *records: dict[str, object]) -> int:
        """Send the gateway records made by hand, a frame each; return the last one's seq."""
        first = await self.unused_seqs(len(records))
        frames = [
            ("notices", ({**HAND_MADE, "seq": first + n, **record},))
            for n, record in enumerate(records)
        ]
        self.sidecar.send(self.name, *frames)
        return first + len(records) - 1


def _seq(ack: Seen) -> int:
    seq = ack.frame[1] if len(ack.frame) > 1 else None
    return seq if type(seq) is int else -1


async def _read_away(stream: trio.SocketStream) -> None:
    """Read what the sidecar sends to the script's own gateways."""
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        while await stream.receive_some(PIECE_BYTES):
            pass
