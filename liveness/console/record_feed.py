"""The records of a running sidecar, in order, across restarts of the sidecar.

A watcher that does not acknowledge has no cursor in the sidecar, so the feed keeps its own:
the log's id and the last `seq`. After a disconnect it asks for the records above that one,
so it misses none and yields none twice.
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

from liveness.console.admin_client import CommandError, not_a_sidecar, unreachable
from liveness.console.record_lines import RecordMap
from liveness.core.frames import PROTOCOL
from liveness.core.records import WATCHER
from liveness.errors import Code
from liveness.text import escaped

RECEIVE_BYTES: Final = 65_536
# The largest frame that the settings allow, and one receive more: the unpacker counts all
# bytes that it has not returned yet.
MAX_UNREAD_BYTES: Final = 64 * 1024 * 1024 + RECEIVE_BYTES
# A running sidecar answers in milliseconds, one that is starting within a second.
WELCOME_S: Final = 5.0
# The fatal errors after which a new connection may work. All others, also those on which
# `proto/README.md` says to reconnect, would be caused by our hello, the only frame that we
# send: it would be refused again.
RECONNECT_ON: Final = frozenset({Code.OVERLOADED, Code.INTERNAL, Code.TOO_SLOW})


class _LinkLost(Exception):
    """The connection ended; connecting again may work."""


def jittered() -> float:
    """Seconds until the next attempt, random so that watchers do not return together."""
    return uniform(0.05, 1.0)


class RecordFeed:
    """The records of a sidecar, in order and without end, across links.

    Args:
        path: The sidecar's socket.
        after: Begin above this `seq`; None: with the next new record.
        kinds: The kinds to ask for; none: all. A `gap` always comes.
        report_line: Called with one line for a person about each change of the connection.
        pause_s: Returns the seconds to wait before each attempt to reconnect.
    """

    def __init__(
        self,
        path: Path,
        *,
        after: int | None,
        kinds: Sequence[str],
        report_line: Callable[[str], None],
        pause_s: Callable[[], float] = jittered,
    ) -> None:
        self._path = path
        self._seq = after
        self._log: str | None = None
        self._kinds = list(kinds)
        self._report_line = report_line
        self._pause_s = pause_s
        self.linked_at = inf  # by trio's clock; inf: no link
        # A watcher of the same name would replace this one.
        host = socket.gethostname()[:24]
        self._name = f"watch-{host}-{os.getpid()}-{secrets.token_hex(4)}"

    async def follow(
        self,
        show: Callable[[list[RecordMap]], bool],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Calls *show* with the new records of each frame, until it returns True.

        It counts as started once the sidecar has sent its welcome.

        Raises:
            CommandError: The first attempt found no sidecar, or the sidecar refuses us.
        """
        try:
            link = await self._connect()
        except _LinkLost as lost:
            raise CommandError(f"{self._path}: {lost}; see the sidecar's log") from None
        except OSError as error:
            raise unreachable(self._path, error) from None
        self._report_line(f"watching {self._path} from seq {self._last_seq() + 1} on")
        self.linked_at = trio.current_time()
        task_status.started()
        while True:
            try:
                async with link:
                    while not show(self._unseen(await link.notices())):
                        pass
                    return
            except _LinkLost as lost:
                self.linked_at = inf
                self._report_line(f"lost {self._path} ({lost}): connecting again")
            link = await self._reconnect()
            self.linked_at = trio.current_time()
            self._report_line(
                f"connected again, continuing after seq {self._last_seq()}"
            )

    def _last_seq(self) -> int:
        return self._seq or 0

    def _unseen(self, records: list[RecordMap]) -> list[RecordMap]:
        """Those above the last `seq`, which moves to the newest of them."""
        unseen = [record for record in records if record["seq"] > self._last_seq()]
        if unseen:
            self._seq = unseen[-1]["seq"]
        return unseen

    async def _reconnect(self) -> "WatcherLink":
        while True:
            await trio.sleep(self._pause_s())
            try:
                return await self._connect()
            except (_LinkLost, OSError):
                continue  # reported when the connection was lost

    async def _connect(self) -> "WatcherLink":
        if self._seq and self._log is None:
            await self._learn_log()
        link, welcome = await self._open()
        if (
            self._log not in (None, welcome["log"])
            or self._last_seq() >= welcome["next"]
        ):
            self._report_line("the log is a new one: all its records follow")
            self._seq = 0
        self._log = welcome["log"]
        if self._seq is None:
            self._seq = welcome["next"] - 1
        return link

    async def _learn_log(self) -> None:
        """Gets the log's id from a first hello: `after` is a position in one log."""
        link, welcome = await self._open()
        await link.aclose()
        if self._last_seq() >= welcome["next"]:
            raise CommandError(
                f"--after {self._seq}: no such record yet, the newest is "
                f"{welcome['next'] - 1}"
            )
        self._log = welcome["log"]

    async def _open(self) -> tuple["WatcherLink", dict[str, Any]]:
        return await WatcherLink.open(
            self._path, self._hello(), report_line=self._report_line
        )

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


class WatcherLink(trio.abc.AsyncResource):
    """One connection as a watcher; it checks the shape of every frame that arrives."""

    def __init__(
        self,
        stream: trio.SocketStream,
        path: Path,
        *,
        report_line: Callable[[str], None],
    ) -> None:
        self._stream = stream
        self._path = path
        self._report_line = report_line
        self._unpacker = msgpack.Unpacker(max_buffer_size=MAX_UNREAD_BYTES)

    @classmethod
    async def open(
        cls, path: Path, hello: dict[str, object], *, report_line: Callable[[str], None]
    ) -> tuple["WatcherLink", dict[str, Any]]:
        """Connects and sends *hello*; the link, and the content of its `welcome`.

        Raises:
            OSError: Nothing listens at *path*, or we may not connect.
            CommandError: It is not a sidecar, or it refuses us.
        """
        link = cls(
            await trio.open_unix_socket(str(path)), path, report_line=report_line
        )
        try:
            with trio.fail_after(WELCOME_S):
                return link, await link.greet(hello)
        except trio.TooSlowError:
            await link.aclose()
            raise _LinkLost("it does not answer") from None
        except BaseException:
            await link.aclose()
            raise

    async def greet(self, hello: dict[str, object]) -> dict[str, Any]:
        """Sends *hello*; the content of the `welcome`."""
        # A sidecar that refuses us sends the reason before it closes: read that.
        with suppress(trio.BrokenResourceError):
            await self._stream.send_all(msgpack.packb(["hello", hello]))
        return cast("dict[str, Any]", await self._content("welcome"))

    async def notices(self) -> list[RecordMap]:
        """The records of the next `notices` frame."""
        return cast("list[RecordMap]", await self._content("notices"))

    async def _content(self, expected: str) -> object:
        """The content of the next frame named *expected*; skips unknown ones."""
        while True:
            frame = await self._next_frame()
            if not (isinstance(frame, list) and len(frame) > 1):
                raise not_a_sidecar(self._path)
            name, content = frame[:2]
            if name == expected:
                return content
            if name == "bye":
                raise _LinkLost(f"it says bye: {escaped(str(content['reason']))}")
            if name == "error":
                self._handle_error(content)

    def _handle_error(self, error: dict[str, Any]) -> None:
        """Raises if *error* is fatal; only reports it otherwise."""
        code, message = escaped(str(error["code"])), escaped(str(error["message"]))
        if not error["fatal"]:
            self._report_line(
                f"{self._path} refused a frame: {message} ({code}); going on"
            )
        elif code in RECONNECT_ON:
            raise _LinkLost(f"it says {code}: {message}")
        else:
            raise CommandError(f"{self._path} ended this watch: {message} ({code})")

    async def _next_frame(self) -> object:
        while True:
            try:
                return self._unpacker.unpack()
            except msgpack.OutOfData:
                await self._receive()
            except (msgpack.UnpackException, ValueError):
                raise not_a_sidecar(self._path) from None

    async def _receive(self) -> None:
        try:
            data = await self._stream.receive_some(RECEIVE_BYTES)
        except trio.BrokenResourceError:
            data = b""
        if not data:
            raise _LinkLost("the connection was closed")
        try:
            self._unpacker.feed(data)
        except msgpack.BufferFull:
            raise not_a_sidecar(self._path) from None

    async def aclose(self) -> None:
        """Closes the connection."""
        await self._stream.aclose()
