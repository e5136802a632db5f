"""The records of a running sidecar, in order, over restarts of the sidecar.

A watcher that does not acknowledge has no cursor in the sidecar, so the feed keeps its own
place: the log's id and the last `seq`. After any disconnect it asks for what is above that,
so nothing is missed and nothing comes twice.
"""

import os
import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from random import uniform
from typing import Any, Final, cast

import msgpack
import trio

from liveness.console.admin_client import CommandError, unreachable
from liveness.console.record_lines import RecordMap
from liveness.core.frames import PROTOCOL
from liveness.core.records import (
    WATCHER,
)
from liveness.errors import Code
from liveness.text import escaped

RECEIVE_BYTES: Final = 65_536
# The largest frame that a sidecar may be set to, and one receive more: the unpacker
# counts all that it has not handed out yet.
MAX_UNREAD_BYTES: Final = 64 * 1024 * 1024 + RECEIVE_BYTES
# A sidecar that is there answers in milliseconds, one that is starting up within a second.
WELCOME_S: Final = 5.0
# The fatal errors that pass by themselves. The others for which `proto/README.md` says to
# reconnect blame what we sent, which is the hello alone: it would be refused again.
RECONNECT_ON: Final = frozenset({Code.OVERLOADED, Code.INTERNAL, Code.TOO_SLOW})


class _Lost(Exception):
    """The connection is gone, and another may be had."""


def jittered() -> float:
    """Seconds until the next attempt: within one, and not everyone's at once."""
    return uniform(0.05, 1.0)


class WatchedFeed:
    """The records of a sidecar, in order and without end, whatever the connection does.

    Args:
        path: The sidecar's socket.
        after: As for `watch`.
        kinds: As for `watch`.
        tell: As for `watch`.
        pause_s: How long to wait before each attempt to connect anew.
    """

    def __init__(
        self,
        path: Path,
        *,
        after: int | None,
        kinds: Sequence[str],
        tell: Callable[[str], None],
        pause_s: Callable[[], float] = jittered,
    ) -> None:
        self._path = path
        self._seq = after
        self._log: str | None = None
        self._kinds = list(kinds)
        self._tell = tell
        self._pause_s = pause_s
        self.linked_at = inf  # by trio's clock; inf: there is no link
        # Unique, as a watcher of the same name would replace this one.
        host = socket.gethostname()[:24]
        self._name = f"watch-{host}-{os.getpid()}-{secrets.token_hex(4)}"

    async def follow(
        self,
        show: Callable[[list[RecordMap]], bool],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Gives *show* each frame's records, each once, until it returns True.

        It is started when the sidecar has welcomed it.

        Raises:
            CommandError: There was no sidecar from the start, or it refuses us.
        """
        try:
            link = await self._connect()
        except _Lost as lost:
            raise CommandError(f"{self._path}: {lost}; see the sidecar's log") from None
        except OSError as error:
            raise unreachable(self._path, error) from None
        self._tell(f"watching {self._path} from seq {self._place() + 1} on")
        self.linked_at = trio.current_time()
        task_status.started()
        while True:
            try:
                async with link:
                    while not show(self._unseen(await link.notices())):
                        pass
                    return
            except _Lost as lost:
                self.linked_at = inf
                self._tell(f"lost {self._path} ({lost}): connecting again")
            link = await self._reconnect()
            self.linked_at = trio.current_time()
            self._tell(f"connected again, going on after seq {self._place()}")

    def _place(self) -> int:
        return self._seq or 0

    def _unseen(self, records: list[RecordMap]) -> list[RecordMap]:
        """Moves on past *records*; what comes twice is given once."""
        unseen = [record for record in records if record["seq"] > self._place()]
        if unseen:
            self._seq = unseen[-1]["seq"]
        return unseen

    async def _reconnect(self) -> "WatcherLink":
        while True:
            await trio.sleep(self._pause_s())
            try:
                return await self._connect()
            except (_Lost, OSError):
                continue  # it was said that the connection is lost, and still is

    async def _connect(self) -> "WatcherLink":
        if self._seq and self._log is None:
            await self._learn_log()
        link, welcome = await self._open()
        if self._log not in (None, welcome["log"]) or self._place() >= welcome["next"]:
            self._tell("the log is a new one: all that it has of its own follows")
            self._seq = 0
        self._log = welcome["log"]
        if self._seq is None:
            self._seq = welcome["next"] - 1
        return link

    async def _learn_log(self) -> None:
        """`after` means something only within one log, so a first hello asks which."""
        link, welcome = await self._open()
        await link.aclose()
        if self._place() >= welcome["next"]:
            newest = f"the newest is {welcome['next'] - 1}"
            raise CommandError(f"--after {self._seq}: no such record yet, {newest}")
        self._log = welcome["log"]

    async def _open(self) -> tuple["WatcherLink", dict[str, Any]]:
        return await WatcherLink.open(self._path, self._hello(), tell=self._tell)

    def _hello(self) -> dict[str, object]:
        hello: dict[str, object] = {
            "protocol": PROTOCOL,
            "role": WATCHER,
            "name": self._name,
            "scope": "all",
            "ack": False,
        }
        if self._kinds:
            hello["kinds"] = self._kinds
        if self._seq == 0:
            hello["after"] = 0
        elif self._log is not None:
            hello |= {"after": self._seq, "log": self._log}
        return hello


class WatcherLink:
    """One connection as a watcher: frames in, each of them checked for its shape."""

    def __init__(
        self, stream: trio.SocketStream, path: Path, *, tell: Callable[[str], None]
    ) -> None:
        self._stream = stream
        self._path = path
        self._tell = tell
        self._unpacker = msgpack.Unpacker(max_buffer_size=MAX_UNREAD_BYTES)

    @classmethod
    async def open(
        cls, path: Path, hello: dict[str, object], *, tell: Callable[[str], None]
    ) -> tuple["WatcherLink", dict[str, Any]]:
        """Connects and says *hello*; the link, and its `welcome`."""
        link = cls(await trio.open_unix_socket(str(path)), path, tell=tell)
        try:
            with trio.fail_after(WELCOME_S):
                return link, await link.greet(hello)
        except trio.TooSlowError:
            await link.aclose()
            raise _Lost("it does not answer") from None
        except BaseException:
            await link.aclose()
            raise

    async def greet(self, hello: dict[str, object]) -> dict[str, Any]:
        """Says *hello*; the `welcome` to it."""
        # Where that breaks, it said why before it closed the connection: read it.
        with suppress(trio.BrokenResourceError):
            await self._stream.send_all(msgpack.packb(["hello", hello]))
        return cast("dict[str, Any]", await self._content("welcome"))

    async def notices(self) -> list[RecordMap]:
        """The records of the next frame that has some."""
        return cast("list[RecordMap]", await self._content("notices"))

    async def _content(self, wanted: str) -> object:
        """What the next frame named *wanted* says; unknown ones are passed over."""
        while True:
            frame = await self._value()
            if not (isinstance(frame, list) and len(frame) > 1):
                raise self._no_sidecar()
            name, content = frame[:2]
            if name == wanted:
                return content
            if name == "bye":
                raise _Lost(f"it says bye: {escaped(str(content['reason']))}")
            if name == "error":
                self._heed(content)

    def _heed(self, error: dict[str, Any]) -> None:
        """Raises what a fatal *error* means for this watch; tells of any other."""
        code, message = escaped(str(error["code"])), escaped(str(error["message"]))
        if not error["fatal"]:
            self._tell(f"{self._path} refused a frame: {message} ({code}); going on")
        elif code in RECONNECT_ON:
            raise _Lost(f"it says {code}: {message}")
        else:
            raise CommandError(f"{self._path} ended this watch: {message} ({code})")

    async def _value(self) -> object:
        while True:
            try:
                return self._unpacker.unpack()
            except msgpack.OutOfData:
                await self._receive()
            except (msgpack.UnpackException, ValueError):
                raise self._no_sidecar() from None

    async def _receive(self) -> None:
        try:
            data = await self._stream.receive_some(RECEIVE_BYTES)
        except trio.BrokenResourceError:
            data = b""
        if not data:
            raise _Lost("the connection was closed")
        try:
            self._unpacker.feed(data)
        except msgpack.BufferFull:
            raise self._no_sidecar() from None

    def _no_sidecar(self) -> CommandError:
        told = f"what answers at {self._path} is no liveness sidecar"
        return CommandError(f"{told}: name the right one with --socket")

    async def aclose(self) -> None:
        """Closes the connection; nothing is owed to the sidecar."""
        await self._stream.aclose()

    async def __aenter__(self) -> "WatcherLink":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
