"""The demo's gateway: its room, on real sockets, with a scripted sidecar."""

import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio

import liveness
from liveness.lab.common.line_connection import LineConnection
from liveness.lab.demo import gateway as gateway_module
from liveness.lab.demo.gateway import MAX_LINE_BYTES, Gateway
from liveness.testing import Event, ScriptedSidecar, scripted_sidecar

SOON_S: Final = 120  # long after everything here has happened


class Client(LineConnection):
    """A person at a terminal, one line at a time."""

    def __init__(self, stream: trio.SocketStream) -> None:
        super().__init__(stream)
        self.stream = stream
        self._lines: list[Any] = []

    async def type(self, *lines: str) -> None:
        await self.stream.send_all("".join(f"{line}\n" for line in lines).encode())

    async def line(self) -> Any:
        """The next line, or None when the gateway has closed the connection."""
        with trio.fail_after(SOON_S):
            while not self._lines:
                received = await self.receive()
                if received is None:
                    return None
                self._lines += received
        return self._lines.pop(0)

    async def ask(self, line: str) -> Any:
        """Types a line, and reads the next one."""
        await self.type(line)
        return await self.line()


class Room:
    """A gateway that serves, and the sidecar that it reports to."""

    def __init__(self, script: ScriptedSidecar, most: int = 10) -> None:
        self.script = script
        self._most = most
        self._clients = AsyncExitStack()
        self._seen = 0

    @asynccontextmanager
    async def open(self) -> "AsyncIterator[Room]":
        """Serves, and closes in the end what clients have left open."""
        async with (
            liveness.connect(self.script.path, name="chat") as self._sidecar,
            trio.open_nursery() as nursery,
        ):
            await self._sidecar.connected()
            self.gateway = Gateway(self._sidecar, most=self._most)
            nursery.start_soon(self.gateway.close_ended)
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            self._port = listener.socket.getsockname()[1]
            await nursery.start(trio.serve_listeners, self.gateway.serve, [listener])
            async with self._clients:
                yield self
            nursery.cancel_scope.cancel()

    async def come(self, greeting: str = "welcome") -> Client:
        """Connects, and reads the greeting."""
        stream = await trio.open_tcp_stream("127.0.0.1", self._port)
        client = Client(await self._clients.enter_async_context(stream))
        assert greeting in await client.line()
        return client

    async def enter(self, uid: str) -> tuple[Client, int]:
        """Logs in; the client, and its conn."""
        client = await self.come()
        assert (await client.ask(json.dumps({"login": uid})))["joined"] == uid
        return client, max(self.gateway.room)

    async def reported(self) -> list[tuple[str, Any, int | None]]:
        """The reports to the sidecar since the last call: event, uid and conn."""
        with trio.fail_after(SOON_S):
            await self._sidecar.flush()
        events: list[Event] = self.script.events[self._seen :]
        self._seen = len(self.script.events)
        return [(event.event, event.uid, event.conn) for event in events]


@pytest.fixture
async def room() -> AsyncIterator[Room]:
    async with scripted_sidecar() as script, Room(script).open() as room:
        yield room


async def test_everyone_in_the_room_hears_what_one_user_says(room: Room) -> None:
    ann, a = await room.enter("ann")
    bob, b = await room.enter("bob")
    assert a < b
    assert await room.reported() == [("login", "ann", a), ("login", "bob", b)]
    heard = {"uid": "ann", "say": "\x1b hi"}
    assert await ann.ask(json.dumps({"say": "\x1b hi"})) == heard
    assert await bob.line() == heard
    assert await room.reported() == [("message", "ann", a)]


async def test_everyone_in_the_room_hears_a_reminder_unless_it_was_cancelled(
    room: Room,
) -> None:
    ann, _ = await room.enter("ann")
    bob, _ = await room.enter("bob")
    for what in ("tea", "lunch"):
        reminding = await ann.ask(json.dumps({"remind": what, "in": 5}))
        assert reminding == {"reminding": what}
    assert await ann.ask('{"forget": "lunch"}') == {"forgotten": "lunch"}
    await room.reported()
    await room.script.pass_time(5)
    heard = {"uid": "ann", "reminder": "tea"}
    assert [await ann.line(), await bob.line()] == [heard, heard]
    await room.script.timer("chat", "remind:ann:tea", "done")
    await room.script.timer("chat", "remind:ann:lunch", "cancelled")


@pytest.mark.parametrize(
    "line",
    [
        *("", "[" * 4_000, "9" * 4_000, '{"say": 7}', '{"login": "ann again"}'),
        *('{"remind": "\\n", "in": NaN}', f'{{"forget": "{"x" * 300}"}}'),
    ],
    ids=range(7),
)
async def test_a_bad_line_is_answered_and_proves_its_user_alive(
    room: Room, line: str
) -> None:
    ann, conn = await room.enter("ann")
    await room.reported()
    assert list(await ann.ask(line)) == ["error"]
    assert await room.reported() == [("keepalive", "ann", conn)]
    assert room.script.timers == {}


@pytest.mark.parametrize(
    ("data", "last"),
    [
        ('{"logout": 1}\n', [{"bye": "logout"}]),
        (
            "x" * 2 * MAX_LINE_BYTES,
            [{"bye": f"a line has at most {MAX_LINE_BYTES} bytes"}],
        ),
        ("", []),
    ],
    ids=["logout", "long line", "closed"],
)
async def test_a_connection_that_ends_is_logged_out(
    room: Room, data: str, last: list[dict[str, str]]
) -> None:
    ann, conn = await room.enter("ann")
    await room.reported()
    await ann.stream.send_all(data.encode())
    if not data:
        await ann.stream.send_eof()
    assert [await ann.line() for _ in [*last, None]] == [*last, None]
    assert (await room.reported())[-1] == ("logout", "ann", conn)


async def test_a_full_gateway_refuses_connections_until_somebody_leaves() -> None:
    async with scripted_sidecar() as script, Room(script, most=1).open() as room:
        ann, _ = await room.enter("ann")
        more = await room.come(greeting="bye")
        assert await more.line() is None
        await ann.stream.send_eof()
        assert await ann.line() is None
        await room.enter("bob")


async def test_a_user_who_comes_again_stays_on_the_newer_connection(room: Room) -> None:
    old, _ = await room.enter("ann")
    await room.reported()
    new, conn = await room.enter("ann")
    assert [await old.line(), await old.line()] == [{"bye": "moved"}, None]
    assert await new.ask('{"ping": 1}') == {"pong": 1}
    assert list(room.gateway.room) == [conn]


async def test_a_user_who_does_not_read_is_cut_off_and_the_others_go_on(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "LINE_PAUSE_S", 0.0)
    monkeypatch.setattr(gateway_module, "LAST_LINES_S", 0.01)
    _, conn = await room.enter("slow")
    ann, _ = await room.enter("ann")
    await room.reported()
    line = json.dumps({"say": "x" * 4_000})
    with trio.fail_after(2 * SOON_S):
        while conn in room.gateway.room:
            assert (await ann.ask(line))["uid"] == "ann"
    assert ("logout", "slow", conn) in await room.reported()
    assert await ann.ask('{"ping": 1}') == {"pong": 1}


async def test_a_connection_without_a_login_in_time_is_closed(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "LOGIN_S", 0.05)
    client = await room.come()
    assert await client.line() == {"bye": "no login within 0.05 s"}
    assert await client.line() is None


def test_a_gateway_that_cannot_serve_says_why_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port, path = str(taken.getsockname()[1]), str(tmp_path / "none")
        options = ["gateway", "--sidecar", path, "--port", port]
        monkeypatch.setattr("sys.argv", options)
        with pytest.raises(SystemExit, match=r"^gw-1: .*$"):
            gateway_module.main()
