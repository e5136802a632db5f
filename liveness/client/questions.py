"""Questions to the sidecar, on a link of their own: who is online, and where.

One question is asked at a time; others wait for it. The link is opened by the first one and
kept. Its hello asks for no kind of record, so nothing stands before an answer.
"""

from collections.abc import Awaitable, Callable, Iterable
from sys import intern
from typing import Final, NamedTuple, TypeAlias, TypeVar

import anyio

from liveness.client.watcher_link import (
    Redial,
    WatcherLink,
    random_name,
    watcher_hello,
    wrong_form,
)
from liveness.core.frames import bad_uid_text
from liveness.core.framing import Frame
from liveness.core.records import Uid
from liveness.core.uids import MAX_UID_BYTES, is_uid
from liveness.errors import LivenessError, ReportError

# Uids in one frame: an answer of a few hundred KiB at most. A sidecar may allow fewer.
MOST_UIDS: Final = 1_000
# Frames of one question that are sent before their answers are read: an answer takes a turn
# of the sidecar, some 20 ms, and the answers to ten are far below its bound on unread ones.
FRAMES_AHEAD: Final = 10
# The bytes of a frame beside its uids, and of a uid with its header.
FRAME_BYTES: Final = 16
UID_BYTES: Final = MAX_UID_BYTES + 2

T = TypeVar("T")


class Whereabouts(NamedTuple):
    """A session: who is online, and through which gateway."""

    uid: Uid
    gateway: str
    session: int
    conn: int | None  # None if none is known


Sessions: TypeAlias = list[Whereabouts]


class Listing(NamedTuple):
    """All sessions, as they were at one moment: after the record `seq` of a log."""

    log: str
    seq: int
    sessions: Sessions


class Questions:
    """The link of questions.

    Args:
        redial: Makes links.
        scope: That of the hello: "all", or "own".
    """

    def __init__(self, redial: Redial, scope: str) -> None:
        self._redial = redial
        self._lock = anyio.Lock()
        self._link: WatcherLink | None = None
        self._is_closed = False
        self._cancel_scopes = set[anyio.CancelScope]()
        self._options = watcher_hello(random_name("ask"), scope, ack=False, kinds=())

    async def where(self, uids: Uid | Iterable[Uid]) -> Sessions:
        """Return the sessions of those that are online; see `Watch.where`."""
        asked = list(dict.fromkeys((uids,) if isinstance(uids, str | int) else uids))
        for uid in asked:
            if not is_uid(uid):
                raise ReportError(bad_uid_text(uid))

        async def ask(link: WatcherLink) -> Sessions:
            welcome, found = link.welcome, list[Whereabouts]()
            most = (welcome.max_frame - FRAME_BYTES) // UID_BYTES
            most = max(1, min(welcome.max_batch, MOST_UIDS, most))
            parts = [asked[at : at + most] for at in range(0, len(asked), most)]
            for at in range(0, len(parts), FRAMES_AHEAD):
                ahead = parts[at : at + FRAMES_AHEAD]
                for part in ahead:
                    await link.send(["where", part])
                for _ in ahead:
                    found += _rows(await _answer(link, "where"))
            return found

        return await self._ask(ask)

    async def list(self) -> Listing:
        """Return all sessions; see `Watch.list`."""

        async def ask(link: WatcherLink) -> Listing:
            await link.send(["list"])
            sessions = list[Whereabouts]()
            while True:
                frame = await _answer(link, "list")
                sessions += _rows(frame)
                if len(frame) > 2:  # the last one has the seq
                    return Listing(link.welcome.log, int(frame[2]), sessions)

        return await self._ask(ask)

    async def _ask(self, ask: Callable[[WatcherLink], Awaitable[T]]) -> T:
        """Ask on this link, and again on the next whenever one ends."""
        with anyio.CancelScope() as scope:
            self._cancel_scopes.add(scope)
            try:
                async with self._lock:
                    while not self._is_closed:
                        is_kept = self._link is not None
                        link = self._link or await self._redial.open(self._hello)
                        self._link = link
                        try:
                            return await ask(link)
                        except ReportError:
                            raise
                        except LivenessError as error:
                            await self._drop_link()
                            # A kept link may have ended long ago: connect at once.
                            if not is_kept and not self._is_closed:
                                self._redial.ended(error)
                        except BaseException:
                            # The answer may still come, and would be taken for another.
                            self._link = None
                            await link.aclose()
                            raise
            finally:
                self._cancel_scopes.discard(scope)
        raise anyio.ClosedResourceError

    def _hello(self) -> dict[str, object]:
        return self._options

    async def _drop_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.aclose()

    async def aclose(self) -> None:
        """End all questions, and close the link."""
        self._is_closed = True
        for scope in self._cancel_scopes:
            scope.cancel()
        await self._drop_link()


async def _answer(link: WatcherLink, name: str) -> Frame:
    """Return the next frame of this name."""
    while True:
        match await link.next_frame():
            case (frame_name, *_) as frame if frame_name == name:
                return frame
            case ("error", {"code": code, "message": message}, *_):
                raise ReportError(f"the sidecar refused a question: {message} ({code})")
            case _:
                pass


def _rows(frame: Frame) -> Sessions:
    try:
        return [
            Whereabouts(uid, intern(gateway), session, conn)
            for uid, gateway, session, conn in frame[1]
        ]
    except (IndexError, TypeError, ValueError):
        raise wrong_form(frame) from None
