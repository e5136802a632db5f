"""Questions to the sidecar, on a separate link: which users are online, and where.

An answer takes a turn of the sidecar, some 20 ms. Questions that come in that time are
then asked together: so a thousand tasks may ask at once. The first question opens the link,
which is kept. Its hello requests no records, so nothing delays an answer.

Questions about all hosts have another link: Redis may take 2 s to answer them.
"""

from collections import defaultdict, deque
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
from liveness.client.protocol import wrong_form
from liveness.core.records import Uid, identity
from liveness.core.wheel.devices import user_of
from liveness.core.wire.frames import CLUSTER
from liveness.core.wire.framing import Frame, encode
from liveness.core.wire.uids import MAX_UID_BYTES, bad_uid_text, is_uid
from liveness.errors import Code, Refused, ReportError, WireError
from liveness.text import escaped

# Uids in one frame: an answer of a few hundred KiB at most. A sidecar may allow fewer.
MOST_UIDS: Final = 1_000
# The bytes of a frame without its uids, and those of a uid with its header.
FRAME_BYTES: Final = 16
UID_BYTES: Final = MAX_UID_BYTES + 2

LARGE: Final = "large"  # this answer is partial; one for fewer uids may be complete

T = TypeVar("T")


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
    is_answered: bool = False
    found: HostSessions = field(default_factory=HostSessions)
    online: set[Uid] = field(default_factory=set)  # those of `uids` that have a session
    refusal: str | None = None


class Questions:
    """The link of questions, to all hosts or to the sidecar's own."""

    def __init__(self, dialer: Dialer, scope: str, *, anywhere: bool = False) -> None:
        self._dialer = dialer
        self._anywhere = anywhere
        self._lock = anyio.Lock()  # of the link
        self._waiting: dict[_Question, None] = {}  # to be asked together
        self._link: SidecarLink | None = None
        self._is_closed = False
        self._cancel_scopes = set[anyio.CancelScope]()
        options = watcher_hello(random_name("ask"), scope, ack=False, kinds=())
        self._hello = encode(["hello", options])

    async def sessions(self, uids: Uid | Iterable[Uid]) -> HostSessions:
        return (await self._ask_about(uids)).found

    async def online(self, uids: Uid | Iterable[Uid]) -> set[Uid]:
        question = await self._ask_about(uids)
        partial = question.found.partial
        if partial and len(question.online) < len(question.uids):
            raise ReportError(
                "some of these users may be online on other hosts, which are not known "
                f"now ({partial}); ask again, or ask about this host only"
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
        if not own.is_answered:
            # Without a cluster there is only the sidecar's own host.
            is_cluster = self._anywhere and CLUSTER in link.welcome.features
            options = [{CLUSTER: True}] if is_cluster else []
            await _answer_all(link, [*self._waiting], options)

    async def list(self) -> Listing:
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
                        link = self._link or await self._dialer.open(
                            lambda: self._hello
                        )
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

    async def _drop_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.aclose()

    async def aclose(self) -> None:
        self._is_closed = True
        for scope in self._cancel_scopes:
            scope.cancel()
        await self._drop_link()


async def _answer_all(
    link: SidecarLink, questions: Sequence[_Question], options: Sequence[object]
) -> None:
    uids = [*{identity(uid): uid for each in questions for uid in each.uids}.values()]
    separator = link.welcome.device_separator
    if separator:
        # Users before devices: so the rows of a user keep the sidecar's order, whatever
        # else is asked.
        uids.sort(key=lambda uid: user_of(uid, separator) != uid)
    rows, refusals, partial = await _sessions(link, uids, options)
    # A user has a row for each device, and a question may name a device too.
    by_uid = defaultdict[str, dict[HostSession, None]](dict)
    for row in rows:
        by_uid[identity(row.uid)][row] = None
        if separator:
            by_uid[identity(user_of(row.uid, separator))][row] = None
    for question in questions:
        users = [*map(identity, question.uids)]
        found = (row for user in users for row in by_uid.get(user, ()))
        question.found = HostSessions(dict.fromkeys(found))
        question.found.partial = next(filter(None, map(partial.get, users)), None)
        question.refusal = next(filter(None, map(refusals.get, users)), None)
        question.online = {uid for uid in question.uids if identity(uid) in by_uid}
        question.is_answered = True


async def _sessions(
    link: SidecarLink, uids: Sequence[Uid], options: Sequence[object]
) -> tuple[list[HostSession], dict[str, str], dict[str, str]]:
    """Ask about *uids*, a frame after the other.

    Those whose sessions an answer has no room for are asked about in ever smaller parts.

    Returns:
        The sessions, and by user why it was refused, or why its other hosts are missing.
    """
    rows, refusals, partial = list[HostSession](), dict[str, str](), dict[str, str]()
    most = (link.welcome.max_frame - FRAME_BYTES) // UID_BYTES
    most = max(1, min(link.welcome.max_batch, MOST_UIDS, most))
    parts = deque(uids[at : at + most] for at in range(0, len(uids), most))
    while parts:
        part = parts.popleft()
        await link.send(["where", part, *options])
        frame = await _answer(link, "where")
        is_refusal = frame[0] == "error"
        if is_refusal and len(part) == 1:
            why = f"user {part[0]!r:.80} has too many devices: {_refusal(frame)}"
            refusals[identity(part[0])] = why
            continue
        reason = LARGE if is_refusal else _partial(frame)
        if reason == LARGE and len(part) > 1:
            half = len(part) // 2
            parts.extendleft((part[half:], part[:half]))
            continue
        rows += _rows(frame)
        if reason is not None:
            partial |= dict.fromkeys(map(identity, part), reason)
    return rows, refusals, partial


def _partial(frame: Frame) -> str | None:
    """Why an answer lacks the sessions on other hosts; None if it has them."""
    terms = frame[2] if len(frame) > 2 else None
    partial = terms.get("partial") if isinstance(terms, dict) else None
    return None if partial is None else escaped(str(partial))


async def _answer(link: SidecarLink, name: str) -> Frame:
    """Return the next frame of this name, or the refusal of too large an answer."""
    while True:
        match await link.next_frame():
            case (frame_name, *_) as frame if frame_name == name:
                return frame
            case ("error", {"code": code}, *_) as frame:
                if name == "where" and code == Code.BAD_OPTION:
                    return frame
                raise ReportError(_refusal(frame))
            case _:
                pass


def _refusal(frame: Frame) -> str:
    return f"the sidecar refused a question: {frame[1]['message']} ({frame[1]['code']})"


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
