"""Questions to the sidecar, on a separate link: which users are online, and where.

An answer takes a turn of the sidecar, some 20 ms. Questions that come in that time are
then asked together: so a thousand tasks may ask at once. The first question opens the link,
which is kept. Its hello requests no records, so nothing delays an answer.

Questions about all hosts have another link: Redis may take 2 s to answer them.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from sys import intern
from typing import Final, NamedTuple, TypeAlias, TypeVar

import anyio

from liveness.client.dialer import (
    Dialer,
    LinkLost,
    SidecarLink,
    random_name,
    watcher_hello,
)
from liveness.client.sidecar_frames import wrong_form
from liveness.core.records import Uid, identity
from liveness.core.wheel.devices import user_of
from liveness.core.wire.frames import CLUSTER
from liveness.core.wire.framing import Frame, encode
from liveness.core.wire.uids import MAX_UID_BYTES, bad_uid_text, is_uid
from liveness.errors import Code, Refused, ReportError, WireError
from liveness.text import escaped

# Uids in one frame: an answer of a few hundred KiB at most. A sidecar may allow fewer.
MOST_UIDS: Final = 1_000
# Frames of a question that are sent before their answers are read: an answer takes a turn
# of the sidecar, some 20 ms, and the answers to ten are far below its bound on unread ones.
FRAMES_AHEAD: Final = 10
# The bytes of a frame without its uids, and those of a uid with its header.
FRAME_BYTES: Final = 16
UID_BYTES: Final = MAX_UID_BYTES + 2

LARGE: Final = "large"  # this answer is partial; one for fewer uids may be complete

T = TypeVar("T")


class _TooManyDevices(ReportError):
    """The answer to a frame would be too large; one for fewer uids may not."""


class Whereabouts(NamedTuple):
    """A session: a user online, and its gateway."""

    uid: Uid
    gateway: str
    session: int
    conn: int | None  # None if none is known


Sessions: TypeAlias = list[Whereabouts]


class HostSession(NamedTuple):
    """A session on any host. One on another host has no `conn`."""

    uid: Uid
    gateway: str
    session: int  # counts in the log of its host
    conn: int | None  # None if none is known
    host: str | None  # None: there is no cluster, so it is on this host
    since: int | None  # Unix milliseconds by the clock of Redis; None if not known


class HostSessions(list[HostSession]):
    """Sessions on all hosts.

    `partial` is the reason why those on other hosts may be missing: "away" or "slow"
    (Redis), "busy" (too many questions at once), "large" (too many sessions), or None.
    """

    partial: str | None = None


class Listing(NamedTuple):
    """All sessions at one moment: after the record `seq` of a log."""

    log: str
    seq: int
    sessions: Sessions


@dataclass(slots=True, eq=False)
class _Question:
    """A question for some users, and later its answer or refusal."""

    uids: Sequence[Uid]
    found: HostSessions | None = None
    online: set[Uid] = field(default_factory=set)  # those of `uids` that have a session
    refusal: str | None = None


class Questions:
    """The link of questions.

    *anywhere*: whether to ask about all hosts.
    """

    def __init__(self, dialer: Dialer, scope: str, *, anywhere: bool = False) -> None:
        self._dialer = dialer
        self._anywhere = anywhere
        self._lock = anyio.Lock()  # of the link
        self._waiting: dict[_Question, None] = {}  # to be asked together
        self._link: SidecarLink | None = None
        self._is_closed = False
        self._cancel_scopes = set[anyio.CancelScope]()
        self._options = watcher_hello(random_name("ask"), scope, ack=False, kinds=())

    async def where(self, uids: Uid | Iterable[Uid]) -> Sessions:
        """Return the sessions of online users; see `Watch.where`."""
        return [Whereabouts(*row[:4]) for row in await self.sessions(uids)]

    async def sessions(self, uids: Uid | Iterable[Uid]) -> HostSessions:
        """Return the sessions with their hosts; see `Watch.anywhere`."""
        found = (await self._ask_about(uids)).found
        assert found is not None
        return found

    async def online(self, uids: Uid | Iterable[Uid]) -> set[Uid]:
        """Return the online ones; see `Watch.online`."""
        question = await self._ask_about(uids)
        assert question.found is not None
        if question.found.partial and len(question.online) < len(question.uids):
            raise ReportError(
                "some of these users may be online on other hosts, which are not known "
                f"now ({question.found.partial}); ask again, or ask about this host only"
            )
        return question.online

    async def _ask_about(self, uids: Uid | Iterable[Uid]) -> _Question:
        """Return a question about these uids, with its answer."""
        asked = list(dict.fromkeys((uids,) if isinstance(uids, str | int) else uids))
        for uid in asked:
            if not is_uid(uid):
                raise ReportError(bad_uid_text(uid))

        question = _Question(asked)
        self._waiting[question] = None
        try:
            await self._ask(lambda link: self._ask_waiting(link, question))
        finally:
            self._waiting.pop(question, None)
        if question.refusal is not None:
            raise ReportError(question.refusal)
        return question

    async def _ask_waiting(self, link: SidecarLink, own: _Question) -> None:
        """Ask all waiting questions, unless *own* was already asked with earlier ones."""
        if own.found is None and own.refusal is None:
            # Without a cluster there is only the sidecar's own host.
            is_cluster = self._anywhere and CLUSTER in link.welcome.features
            options = [{CLUSTER: True}] if is_cluster else []
            await _answer_all(link, [*self._waiting], options)

    async def list(self) -> Listing:
        """Return all sessions; see `Watch.list`."""

        async def ask(link: SidecarLink) -> Listing:
            await link.send(["list"])
            sessions = list[Whereabouts]()
            while True:
                frame = await _answer(link, "list")
                sessions += _listed(frame)
                if len(frame) > 2:  # the last one has the seq
                    return Listing(link.welcome.log, int(frame[2]), sessions)

        return await self._ask(ask)

    async def _ask(self, ask: Callable[[SidecarLink], Awaitable[T]]) -> T:
        """Ask on this link, and again on the next whenever one ends."""
        with anyio.CancelScope() as scope:
            self._cancel_scopes.add(scope)
            try:
                async with self._lock:
                    while not self._is_closed:
                        is_kept = self._link is not None
                        link = self._link or await self._dialer.open(self._hello)
                        self._link = link
                        try:
                            return await ask(link)
                        except (LinkLost, Refused, WireError) as error:
                            await self._drop_link()
                            # A kept link may have ended long ago: connect at once.
                            if not is_kept and not self._is_closed:
                                self._dialer.ended(error)
                        except BaseException:
                            # Late answers would be taken for those to later questions.
                            self._link = None
                            await link.aclose()
                            raise
            finally:
                self._cancel_scopes.discard(scope)
        raise anyio.ClosedResourceError

    def _hello(self) -> bytes:
        return encode(["hello", self._options])

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


async def _answer_all(
    link: SidecarLink, questions: Sequence[_Question], options: Sequence[object]
) -> None:
    """Ask these questions together, and give each its answer or refusal."""
    uids = [*{identity(uid): uid for each in questions for uid in each.uids}.values()]
    welcome, rows = link.welcome, list[HostSession]()
    if separator := welcome.device_separator:
        # Users before devices: so the rows of a user keep the sidecar's order, whatever
        # else is asked.
        uids.sort(key=lambda uid: user_of(uid, separator) != uid)
    asking = _Asking(link, options)
    most = (welcome.max_frame - FRAME_BYTES) // UID_BYTES
    most = max(1, min(welcome.max_batch, MOST_UIDS, most))
    parts = [uids[at : at + most] for at in range(0, len(uids), most)]
    for at in range(0, len(parts), FRAMES_AHEAD):
        rows += await asking.sessions(parts[at : at + FRAMES_AHEAD])
    # A user has a row for each device, and a question may name a device too.
    by_uid = defaultdict[str, dict[HostSession, None]](dict)
    for row in rows:
        by_uid[identity(row.uid)][row] = None
        if separator:
            by_uid[identity(user_of(row.uid, separator))][row] = None
    for question in questions:
        question.refusal = _first(asking.refusals, question.uids)
        found = (row for uid in question.uids for row in by_uid.get(identity(uid), ()))
        question.found = HostSessions(dict.fromkeys(found))
        question.found.partial = _first(asking.partial, question.uids)
        question.online = {uid for uid in question.uids if identity(uid) in by_uid}


def _first(texts: dict[str, str], uids: Iterable[Uid]) -> str | None:
    return next((texts[user] for user in map(identity, uids) if user in texts), None)


class _Asking:
    """Asks in frames, with *options* after the uids, and collects the answers."""

    def __init__(self, link: SidecarLink, options: Sequence[object]) -> None:
        self._link = link
        self._options = options
        self.refusals: dict[str, str] = {}
        self.partial: dict[str, str] = {}  # why answers lack other hosts

    async def sessions(self, parts: Sequence[Sequence[Uid]]) -> list[HostSession]:
        """Ask a frame for each part; return the sessions of all.

        Users with more devices than an answer holds are asked about in ever smaller parts.
        A refusal for a single one is noted.
        """
        for part in parts:
            await self._link.send(["where", part, *self._options])
        frames, refusal = list[Frame](), ""
        for _ in parts:
            try:
                frames.append(await _answer(self._link, "where"))
            except _TooManyDevices as error:
                refusal = str(error)
        if not refusal:
            return [
                row
                for part, frame in zip(parts, frames, strict=True)
                for row in await self._sessions_in(frame, part)
            ]
        # A refusal may overtake answers: its part is known only if there is just one.
        if len(parts) == 1:
            (part,) = parts
            if len(part) == 1:
                why = f"user {part[0]!r:.80} has too many devices: {refusal}"
                self.refusals[identity(part[0])] = why
                return []
            parts = _halves(part)
        return await self._one_by_one(parts)

    async def _sessions_in(
        self, frame: Frame, part: Sequence[Uid]
    ) -> list[HostSession]:
        partial = _partial(frame)
        if partial == LARGE and len(part) > 1:
            return await self._one_by_one(_halves(part))
        if partial is not None:
            self.partial |= dict.fromkeys(map(identity, part), partial)
        return _rows(frame)

    async def _one_by_one(self, parts: Sequence[Sequence[Uid]]) -> list[HostSession]:
        return [row for part in parts for row in await self.sessions([part])]


def _halves(part: Sequence[Uid]) -> list[Sequence[Uid]]:
    return [part[: len(part) // 2], part[len(part) // 2 :]]


def _partial(frame: Frame) -> str | None:
    """Why an answer lacks the sessions on other hosts; None if it has them."""
    terms = frame[2] if len(frame) > 2 else None
    partial = terms.get("partial") if isinstance(terms, dict) else None
    return None if partial is None else escaped(str(partial))


async def _answer(link: SidecarLink, name: str) -> Frame:
    """Return the next frame of this name."""
    while True:
        match await link.next_frame():
            case (frame_name, *_) as frame if frame_name == name:
                return frame
            case ("error", {"code": code, "message": message}, *_):
                is_too_large = name == "where" and code == Code.BAD_OPTION
                kind = _TooManyDevices if is_too_large else ReportError
                raise kind(f"the sidecar refused a question: {message} ({code})")
            case _:
                pass


def _listed(frame: Frame) -> Sessions:
    try:
        return [
            Whereabouts(uid, intern(gateway), session, conn)
            for uid, gateway, session, conn in frame[1]
        ]
    except (IndexError, TypeError, ValueError):
        raise wrong_form(frame) from None


def _rows(frame: Frame) -> list[HostSession]:
    """The sessions in an answer to `where`; without hosts if it covers only this one."""
    try:
        if len(frame) < 3:
            return [HostSession(*row, None, None) for row in _listed(frame)]
        return [
            HostSession(uid, intern(gateway), session, conn, intern(host), since)
            for uid, gateway, session, conn, host, since in frame[1]
        ]
    except (IndexError, TypeError, ValueError):
        raise wrong_form(frame) from None
