"""The frames of the gateway's links, both ways, with their times.

Links that this process has opened, by which the script plays other gateways, are left out.
"""

import json
import os
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import trio

from liveness.core.records import identity
from liveness.core.wire.framing import Frame, Reader
from liveness.core.wire.uids import is_uid
from liveness.errors import WireError

# A gateway that exceeds every limit is still shown.
MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
MAX_BATCH: Final = 1_000_000
# Elements shown of an array or a map, and characters of a text.
MOST_ITEMS: Final = 3
MOST_KEYS: Final = 20
MOST_TEXT: Final = 80

OPENED, CLOSED, ENDED, BROKEN = "opened", "closed", "ended", "broken bytes"
EVENTS: Final = ("login", "keepalive", "message", "logout")
ACTIVITY: Final = ("keepalive", "message")


class Seen(NamedTuple):
    """A frame, or an event of a link: one of the words above."""

    at: float  # seconds since the run began
    link: int  # numbered by the sidecar, from 1
    is_sent: bool  # by the sidecar
    frame: Frame

    @property
    def name(self) -> object:
        return self.frame[0] if self.frame else None

    @property
    def content(self) -> Any:
        return self.frame[1] if len(self.frame) > 1 else None

    @property
    def options(self) -> dict[str, Any]:
        options = self.frame[-1] if self.frame else None
        return options if isinstance(options, dict) else {}

    def text(self) -> str:
        arrow = "←" if self.is_sent else "→"
        what = " ".join(
            item
            if isinstance(item, str)
            else json.dumps(item, ensure_ascii=False, default=str)
            for item in map(_shortened, self.frame)
        )
        return f"{self.at:7.3f} s  link {self.link}  {arrow} {what}"


def _shortened(value: object) -> object:
    match value:
        case tuple():
            items: list[object] = [*map(_shortened, value[:MOST_ITEMS])]
            more = len(value) - MOST_ITEMS
            return [*items, f"… {more} more"] if more > 0 else items
        case dict():
            pairs = [*value.items()][:MOST_KEYS]
            return {str(key): _shortened(item) for key, item in pairs}
        case bytes():
            return f"bytes {value[:MOST_ITEMS].hex()}…"
        case str() if len(value) > MOST_TEXT:
            return f"{value[:MOST_TEXT]}…"
        case _:
            return value


class Tape:
    """Records the gateway's frames."""

    def __init__(self, on_frame: Callable[[Seen], object]) -> None:
        self.frames: list[Seen] = []
        self.links: dict[int, str] = {}  # by number: opened, closed or ended
        self.changed = trio.lowlevel.ParkingLot()
        self._on_frame = on_frame
        self.began = trio.current_time()
        self._readers: dict[tuple[int, bool], Reader] = {}

    @property
    def now(self) -> float:
        return trio.current_time() - self.began

    # --- recording --------------------------------------------------------------------

    def take(self, what: str, link: int, data: Any) -> None:
        """Take what passes: see `tap` of `ScriptedShell`."""
        match what:
            case "opened":
                self._opened(link, data)
            case "received":
                self._received(link, data)
            case "sent":
                self._pass(link, True, data)
            case _ if self.links.get(link) == OPENED:
                self._note(link, ENDED)

    def _opened(self, link: int, sock: socket.socket) -> None:
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if struct.unpack("3i", credentials)[0] == os.getpid():
            return
        for is_sent in (False, True):
            self._readers[link, is_sent] = Reader(
                max_frame_bytes=MAX_FRAME_BYTES, max_batch=MAX_BATCH
            )
        self._note(link, OPENED)

    def _received(self, link: int, data: bytes) -> None:
        if data:
            self._pass(link, False, data)
        elif self.links.get(link) == OPENED:
            self._note(link, CLOSED)
        self.changed.unpark_all()  # frames of the script's own links may complete a wait

    def _note(self, link: int, word: str) -> None:
        self.links[link] = word
        self._add(link, word == ENDED, (word,))

    def _pass(self, link: int, is_sent: bool, data: bytes) -> None:
        if (reader := self._readers.get((link, is_sent))) is None:
            return
        try:
            for frame in reader.feed(data):
                self._add(link, is_sent, frame)
        except WireError as error:
            del self._readers[link, is_sent]
            self._add(link, is_sent, (BROKEN, str(error)))

    def _add(self, link: int, is_sent: bool, frame: Frame) -> None:
        seen = Seen(self.now, link, is_sent, frame)
        self.frames.append(seen)
        self._on_frame(seen)
        self.changed.unpark_all()

    # --- reading ----------------------------------------------------------------------

    @property
    def mark(self) -> int:
        return len(self.frames)

    def since(self, mark: int) -> list[Seen]:
        return self.frames[mark:]


class Reported(NamedTuple):
    event: str
    uid: object
    conn: object  # None: there is none
    seen: Seen

    @property
    def user(self) -> str | None:
        return identity(self.uid) if is_uid(self.uid) else None


def reports(seen: Seen) -> Iterator[Reported]:
    if seen.is_sent or seen.name not in EVENTS or len(seen.frame) < 2:
        return
    uids, conns = seen.content, seen.options.get("conn")
    if not isinstance(uids, tuple):
        uids, conns = (uids,), (conns,)
    elif not isinstance(conns, tuple):
        conns = ()
    for place, uid in enumerate(uids):
        conn = conns[place] if place < len(conns) else None
        yield Reported(seen.frame[0], uid, conn, seen)


def records(seen: Seen) -> Iterator[dict[str, Any]]:
    if seen.is_sent and seen.name == "notices":
        yield from (record for record in seen.frame[1] if isinstance(record, dict))
