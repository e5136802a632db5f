"""`liveness watch`: the records as they are written, over restarts of the sidecar.

A watcher that does not acknowledge has no cursor in the sidecar, so the place is kept
here: the log's id and the last `seq` shown. Whatever ends the connection, the next one
asks for what is above that, so nothing is missed and nothing is shown twice.
"""

import json
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from random import uniform
from typing import Any, Final, TextIO, cast

import msgpack
import trio

from liveness.commands import CommandError, unreachable
from liveness.core.frames import PROTOCOL
from liveness.core.records import (
    GAP,
    GATEWAY_LOST,
    LOGOUT,
    MOVED,
    OFFLINE,
    ONLINE,
    SILENCE,
    TIMER,
    WATCHER,
)
from liveness.errors import Code
from liveness.streams import AUTO, is_for_colours
from liveness.text import escaped, json_ready, local_time, uid_text

RECEIVE_BYTES: Final = 65_536
# The largest frame that a sidecar may be set to, and one receive more: the unpacker
# counts all that it has not handed out yet.
MAX_UNREAD_BYTES: Final = 64 * 1024 * 1024 + RECEIVE_BYTES
# A sidecar that is there answers in milliseconds, one that is starting up within a second.
WELCOME_S: Final = 5.0
# The fatal errors that pass by themselves. The others for which `proto/README.md` says to
# reconnect blame what we sent, which is the hello alone: it would be refused again.
RECONNECT_ON: Final = frozenset({Code.OVERLOADED, Code.INTERNAL, Code.TOO_SLOW})

RecordMap = dict[str, Any]
# What a piece of a line is, and its text; gives it painted.
Paint = Callable[[str, str], str]


# ANSI colours of the terminal's own palette, light or dark.
DIM: Final = "dim"
_COLOURS: Final = {
    DIM: 2,
    ONLINE: 32,
    OFFLINE: 31,
    MOVED: 36,
    TIMER: 34,
    GAP: 33,
    SILENCE: 31,
    GATEWAY_LOST: 35,
    LOGOUT: 2,
}


class _Lost(Exception):
    """The connection is gone, and another may be had."""


def jittered() -> float:
    """Seconds until the next attempt: within one, and not everyone's at once."""
    return uniform(0.05, 1.0)


async def watch(
    path: Path,
    *,
    after: int | None,
    kinds: Sequence[str],
    as_json: bool,
    count: int | None,
    out: TextIO,
    tell: Callable[[str], None],
    color: str = AUTO,
) -> None:
    """Writes each record as one line to *out*, until *count* are written.

    Args:
        path: The sidecar's socket.
        after: Show records above this `seq`; None: from now on.
        kinds: The kinds to show; none: all. A gap is always shown.
        as_json: Whether a line is the record as JSON, and not for a person.
        count: None: without end.
        out: Flushed after each frame's records.
        tell: Is given what happens to the connection, for a person.
        color: When lines for a person are coloured, of `streams.COLORS`.
    Raises:
        CommandError: There is no sidecar, or it will not have this watcher.
    """
    paint = in_colours if is_for_colours(out, color) else plain
    told = partial(text_line, paint=paint)
    line = json_line if as_json else told
    left = count

    def show(records: list[RecordMap]) -> bool:
        nonlocal left
        shown = records[:left]
        out.writelines(f"{line(record)}\n" for record in shown)
        out.flush()
        if left is not None:
            left -= len(shown)
        return left == 0

    await Feed(path, after=after, kinds=kinds, tell=tell).follow(show)


class Feed:
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

    async def _reconnect(self) -> "Link":
        while True:
            await trio.sleep(self._pause_s())
            try:
                return await self._connect()
            except (_Lost, OSError):
                continue  # it was said that the connection is lost, and still is

    async def _connect(self) -> "Link":
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

    async def _open(self) -> tuple["Link", dict[str, Any]]:
        return await Link.open(self._path, self._hello(), tell=self._tell)

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


class Link:
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
    ) -> tuple["Link", dict[str, Any]]:
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

    async def __aenter__(self) -> "Link":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def plain(_what: str, text: str) -> str:
    """A piece of a line as it is."""
    return text


def in_colours(what: str, text: str) -> str:
    """A piece of a line in the colour of what it is, if that has one."""
    colour = _COLOURS.get(what)
    return text if colour is None else f"\x1b[{colour}m{text}\x1b[0m"


def text_line(record: RecordMap, *, paint: Paint = plain) -> str:
    """A record as one line for a person."""
    when, kind, seq = local_time(record["at"]), record["kind"], record["seq"]
    if kind == GAP:
        first, last = record["first"], record["until"] - 1
        what = f"records {first} to {last} are no longer kept"
    elif kind == TIMER:
        late_s = (record["at"] - record["due"]) / 1_000
        what = f"{escaped(record['key'])}  {escaped(record['gateway'])}"
        what += f"  attempt {record['attempt']}  {late_s:.3f} s late"
    else:
        what = f"{escaped(uid_text(record['uid']))}  {escaped(record['gateway'])}"
        if kind == MOVED:
            # Without a session to take over the user has stayed.
            is_older = record.get("from_session") is None
            how = ", older connection at" if is_older else " from"
            what += f"{how} {escaped(record['from'])}"
        what += f"  {paint(record['reason'], record['reason'])}"
        if record.get("silence") is not None and record["reason"] != LOGOUT:
            since = "the restart" if record.get("restored") else record["last"]
            what += f"  {record['silence']:.3f} s since {since}"
    head = f"{paint(DIM, when)}  {paint(kind, f'{kind:<7}')}"
    return f"{head}  {what}  {paint(DIM, f'seq {seq}')}"


def json_line(record: RecordMap) -> str:
    """A record as one line of JSON, all ASCII: nothing in it can steer a terminal."""
    return json.dumps(json_ready(record), separators=(",", ":"))
