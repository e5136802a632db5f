"""A sidecar that has nothing but a log to read, played by a test on a real Unix socket.

It knows `proto/README.md` and nothing of its readers: it refuses a hello that the contract
does not allow, and delivers what the contract promises.
"""

from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.abc
import trio

from tests.helpers.peer import WELCOME, Endpoint
from tests.helpers.wire import Record

MINUTE_MS: Final = 60_000
SOON_S: Final = 120  # long after everything here has happened
KINDS: Final = {"online", "offline", "moved"}


def record(seq: int, kind: str = "online", **more: object) -> Record:
    """A record as the contract has it; of a user who came and went."""
    common = {"seq": seq, "kind": kind, "uid": f"user-{seq}", "gateway": "chat-1"}
    common |= {"session": seq, "at": 1_800_000_000_000 + seq}
    if kind == "offline":
        silence = {"reason": "silence", "silence": 30.0012, "last": "keepalive"}
        return {**common, **silence, "seen": common["at"] - 30_001, **more}  # type: ignore[operator]
    if kind == "moved":
        common |= {"from": "chat-0", "from_session": 1}
    return {**common, "reason": "login", **more}


class LogPeer:
    """A log that others can watch, for as long as it is `open`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = "log-a"
        self.kept: list[Record] = []
        self.next = 1
        self.repeats = 0  # records delivered once more, as "at least once" allows
        self.hellos: list[Record] = []
        self.acks: list[int] = []
        self.pings: list[object] = []  # not answered; `tell` may do that
        self.cursors: dict[str, int] = {}  # by name
        self.greeting: bytes | None = None  # in place of `welcome`
        self._watched = trio.Event()
        self._links: dict[Endpoint, Record] = {}  # with their hellos
        self._open = trio.CancelScope()
        self._sending = trio.Lock()

    async def open(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with await anyio.create_unix_listener(self.path) as listener:
            with trio.CancelScope() as self._open:
                task_status.started()
                await listener.serve(self._link)
        self.path.unlink()

    async def close(self, *frame: object) -> None:
        """Ends every connection, each with *frame* if there is one, and listens no more."""
        if frame:
            await self.tell(*frame)
        self._open.cancel()
        self._links.clear()
        self._watched = trio.Event()
        while self.path.exists():
            await trio.lowlevel.checkpoint()

    async def tell(self, *frame: object) -> None:
        for link in list(self._links):
            await link.send([*frame])

    async def is_watched(self) -> None:
        with trio.fail_after(SOON_S):
            await self._watched.wait()

    async def acked(self, *seqs: int) -> None:
        """Waits until exactly these acks have come, since this was last called."""
        with trio.fail_after(SOON_S):
            while len(self.acks) < len(seqs):
                await trio.lowlevel.checkpoint()
        assert (*self.acks,) == seqs
        self.acks.clear()

    async def append(self, *kinds: str, **more: object) -> None:
        """Writes a record of each kind, then shows them to those who watch."""
        for kind in kinds:
            self.kept.append(record(self.next, kind, **more))
            self.next += 1
        for link, hello in list(self._links.items()):  # some end meanwhile
            await self._deliver(link, hello, self.kept[-len(kinds) :])

    def trim(self, until: int) -> None:
        self.kept = [one for one in self.kept if one["seq"] >= until]

    async def _link(self, stream: anyio.abc.SocketStream) -> None:
        async with stream:
            link = Endpoint(stream)
            link.within_s = inf
            while (frame := await link.receive()) is not None:
                if frame[0] == "ack":
                    name = self._links[link]["name"]
                    self.acks.append(frame[1])
                    self.cursors[name] = max(self.cursors[name], frame[1])
                elif frame[0] == "ping":
                    self.pings.append(frame[1])
                else:
                    await self._greet(link, frame)
            self._links.pop(link, None)

    async def _greet(self, link: Endpoint, frame: list[Any]) -> None:
        name, hello = frame
        assert (name, hello["protocol"], hello["role"]) == ("hello", 1, "watcher")
        assert 1 <= len(hello["name"].encode()) <= 64
        assert hello["scope"] == "all"
        assert set(hello.get("kinds", [])) <= KINDS
        assert not hello.get("after") or "log" in hello
        self.hellos.append(hello)
        if self.greeting is not None:
            await link.send_bytes(self.greeting)
            return
        welcome = WELCOME | {"features": [], "log": self.log, "next": self.next}
        if hello["ack"]:
            welcome["known"] = hello["name"] in self.cursors
            begin = min(hello.get("after", self.next), self.next - 1)
            self.cursors.setdefault(hello["name"], begin)
            if "after" not in hello:
                hello = hello | {"after": self.cursors[hello["name"]]}
        await link.send(["welcome", welcome])
        self._links[link] = hello
        await self._deliver(link, hello, self._due(hello))
        self._watched.set()

    def _due(self, hello: Record) -> list[Record]:
        if "after" not in hello:
            return []
        oldest = self.kept[0]["seq"] if self.kept else self.next
        after = hello["after"]
        if hello.get("log", self.log) != self.log or after >= self.next:
            after = oldest - 1
        due = [one for one in self.kept if one["seq"] > after - self.repeats]
        if after + 1 < oldest:
            gap = {"seq": oldest - 1, "kind": "gap", "at": MINUTE_MS}
            due.insert(0, {**gap, "first": after + 1, "until": oldest})
        return due

    async def _deliver(
        self, link: Endpoint, hello: Record, records: list[Record]
    ) -> None:
        wanted = {*hello.get("kinds", KINDS), "gap"}
        shown = [one for one in records if one["kind"] in wanted]
        if shown:
            # One task at a time may send, and a reader may have gone meanwhile.
            with suppress(anyio.BrokenResourceError):
                async with self._sending:
                    await link.send(["notices", shown])
