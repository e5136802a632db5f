"""What a program in Python uses to read who comes and goes, and to ask who is online.

There is no task in the background: a `Watch` connects, reads and acknowledges while the
program waits for the next record, and holds at most what one read brought. So a slow
program holds up nothing but itself; what it has not read is in the sidecar's log.

The sidecar delivers a record until it is acknowledged. A `Watch` keeps its position over
its links, and leaves out what comes again.
"""

import os
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, Self, TypeAlias

import anyio
from anyio.lowlevel import checkpoint

from liveness.client.background import refuse_after_fork
from liveness.client.damped_records import DampedRecords
from liveness.client.dialer import (
    Dialer,
    PauseBetween,
    ReportLine,
    SidecarLink,
    random_name,
    socket_at,
    watcher_hello,
)
from liveness.client.inbox import RecordMap
from liveness.client.protocol import check_hello, wrong_form
from liveness.client.question_link import (
    HostSession,
    HostSessions,
    Listing,
    Questions,
    Sessions,
    Whereabouts,
)
from liveness.client.record_link import RecordLink
from liveness.core.records import SESSION_KINDS, Uid
from liveness.core.sessions.damping import DampingCounts
from liveness.core.wire.framing import Frame
from liveness.errors import LivenessError, ReportError
from liveness.host_clock import wall_s as host_wall_s
from liveness.text import escaped

__all__ = ["Batches", "HostSession", "Listing", "Watch", "Whereabouts"]

# While more records are at hand, an ack is written at most this often. Before a wait for
# the next one everything finished is acknowledged.
ACK_EVERY_S: Final = 0.1
# For the last ack, when the program stops to read: the sidecar may not be reading just then.
LAST_S: Final = 1.0

Batch: TypeAlias = list[RecordMap]


class Watch(AsyncIterator[RecordMap]):
    """An endless `async for` over records, for one loop at a time; see `liveness.watch`.

    A record is a mapping, as it is on the wire (`proto/README.md`, "Records"). It is
    finished when the loop comes back for the next one, and is then acknowledged: at once if
    no other record is at hand, otherwise within a tenth of a second or when the loop next
    comes back. After a crash, records come again that were not acknowledged, so do your
    work such that it may be done twice.

    Two mappings are about the log itself. A "gap" says that records `first` to `until` - 1
    are no longer kept, or damaged. One of kind "log" is made here, and is not on the wire:

        {"kind": "log", "log": NEW, "was": OLD, "seq": 0}

    The sidecar's log is another one, or has lost its end; then both ids may be the same. If
    it goes on from the log before (its host was started anew, or a backup restored), the
    records follow that this reader had not read, else all of them. After either mapping,
    what the program knows may be out of date: `list` says who is online.

    With `settle_s` an offline comes once its user was away for that long, so after records
    of other users with a higher `seq`. If the user is back before that, neither the offline
    nor the online comes; if through another gateway, a "moved" with the `seq` of the online.
    A program that starts again may get some records again; if an offline waited when it
    ended, it may get only the online of that user.

    If a wait for a record is cancelled, no record is lost. Use `async with`, or call
    `aclose`, where the loop may end before the program.

    The iteration raises `Replaced` if another process reads by this name, and `ReportError`
    if there is no record `after` yet. With `strict` it raises more, see `liveness.watch`.

    Attributes:
        path: The sidecar's socket.
        name: The name of this reader; a random one if it was given none.
        damping: What `settle_s` has done: records `left_out`, and offlines `hurried`.
        is_closed: Whether `aclose` was called.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
        after: int | None = None,
        log: str | None = None,
        scope: str = "all",
        kinds: Sequence[str] = (),
        users: bool = False,
        settle_s: float = 0.0,
        strict: bool = False,
        report_line: ReportLine | None = None,
        pause_between: PauseBetween = random.uniform,
        wall_s: Callable[[], float] = host_wall_s,
    ) -> None:
        self.path = socket_at(path)
        has_cursor = name is not None
        self.name = random_name("watch") if name is None else name
        options = watcher_hello(self.name, scope, ack=has_cursor)
        if kinds:
            options["kinds"] = tuple(kinds)
        if users:
            options["users"] = True
        _check(options, after, log)
        damped: DampedRecords | None = None
        if settle_s != 0:
            damped = DampedRecords(settle_s, kinds, users=users, wall_s=wall_s)
            if kinds:  # what decides is whether a user is back
                options["kinds"] = tuple({*kinds, *SESSION_KINDS})
        self._damped = damped
        self.damping = DampingCounts() if damped is None else damped.counts
        new_dialer = partial(
            Dialer,
            self.path,
            strict=strict,
            report_line=report_line,
            pause_between=pause_between,
        )
        self._dialer = new_dialer(self.name)
        self._link = RecordLink(
            self._dialer, options, after=after, log=log, damped=damped
        )
        self._questions, self._anywhere = (
            Questions(new_dialer(f"questions of {self.name}"), scope, anywhere=anywhere)
            for anywhere in (False, True)
        )
        self._guard = anyio.ResourceGuard("reading the records of")
        self._cancel_scope: anyio.CancelScope | None = None  # of the loop's wait
        self.is_closed = False
        refuse_after_fork(self)

    # --- records --------------------------------------------------------------------

    async def __anext__(self) -> RecordMap:
        """Finish the last record, and wait for the next one."""
        await self._ready()
        record = self.take()
        assert record is not None
        return record

    def batches(self) -> "Batches":
        """Iterate over lists of records, of those that have arrived; never empty ones.

        It is faster than a record at a time, and suits a database: a list, of about a
        thousand records at most, is finished when the loop comes back for the next.
        """
        return Batches(self)

    async def _next_batch(self) -> Batch:
        await self._ready()
        return self._link.take_all()

    def take(self) -> RecordMap | None:
        """Return the next record if it has arrived; finish the last one. Do not wait."""
        return None if self.is_closed else self._link.take()

    async def _ready(self) -> None:
        """Finish what was given to the loop; wait until a record is at hand."""
        with self._guard:
            await checkpoint()
            self._link.finish()
            if self.is_closed:
                raise StopAsyncIteration
            with anyio.CancelScope() as self._cancel_scope:
                await self._arrived()
            if self.is_closed:
                raise StopAsyncIteration

    async def _arrived(self) -> None:
        """Wait until a record is at hand; acknowledge what is finished."""
        link = self._link
        if link.is_empty or anyio.current_time() - link.acked_at >= ACK_EVERY_S:
            await link.acknowledge()
        while link.is_empty:
            current = await link.opened()
            # On a new link, what the one before may have lost.
            await link.acknowledge()
            try:
                await self._read_from(current)
            except LivenessError as error:
                await link.drop()
                if self.is_closed:
                    return
                link.end = error  # what has arrived before is given to the loop first

    async def _read_from(self, link: SidecarLink) -> None:
        """Read what has arrived; if nothing has, wait for it, or until something settles."""
        damped = self._damped
        if damped is None:
            self._read(await link.next_frame())
        elif damped.damper.has_more:
            self._link.add(damped.settle())
        elif damped.must_ask_again:
            await self._link.send(link, ["ping", damped.ask()])
        else:
            with anyio.move_on_after(damped.next_in_s) as wait:
                self._read(await link.next_frame())
            if wait.cancelled_caught:
                await self._link.send(link, ["ping", damped.ask()])
        while link.has_frame:
            self._read(await link.next_frame())

    def _read(self, frame: Frame) -> None:
        match frame:
            case ("notices", tuple(records), *_):
                if self._damped is not None:
                    self._damped.arrives()
                try:
                    self._link.arrived(records)
                except (TypeError, KeyError):
                    raise wrong_form(frame) from None
            case ("pong", ping, *_) if self._damped is not None:
                self._damped.answered(ping)
            case ("error", {"code": code, "message": message}, *_):
                why = escaped(f"{message} ({code})")
                self._dialer.say(f"{self.path} refused a frame: {why}; going on")
            case _:
                pass

    # --- the link -------------------------------------------------------------------

    @property
    def log(self) -> str | None:
        """The id of the log that the last record is from; None before the first link."""
        return self._link.known_log

    @property
    def position(self) -> int | None:
        """For a program that stores its own position: the seq to go on after.

        Store it with `log` after the work on a record, or on a list of `batches`, and give
        both to `watch` as `after` and `log`. All records up to it have been given to the
        loop, and their work must be done. Without `settle_s` it is the `seq` of the last
        record, or more. With it, it stays before an offline that waits, so that some
        records come again. It is None if there is nothing to store: before the first
        link, and while what follows begins with another log.
        """
        return self._link.given_position

    async def connected(self) -> None:
        """Wait until there is a link. No record is read.

        Raises:
            As the iteration.
        """
        with self._guard:
            await checkpoint()
            if not self.is_closed:
                with anyio.CancelScope() as self._cancel_scope:
                    await self._link.opened()
            if self.is_closed:
                raise anyio.ClosedResourceError

    async def aclose(self) -> None:
        """Acknowledge what is finished, and close the links; the iteration ends.

        The record that the loop has not come back from is not finished.
        """
        if not self.is_closed:
            self.is_closed = True
            if self._cancel_scope is not None:
                self._cancel_scope.cancel()
            with anyio.move_on_after(LAST_S, shield=True):
                await self._link.acknowledge()
        await self._link.drop()
        await self._questions.aclose()
        await self._anywhere.aclose()
        await checkpoint()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # --- questions ------------------------------------------------------------------

    async def where(self, uids: Uid | Iterable[Uid]) -> Sessions:
        """Ask which of these users are online, and through which gateway.

        Questions have a link of their own, so unread records delay no answer. It is opened
        by the first one. Without a sidecar a question waits for one, and on a new link it
        is asked again: use a timeout. An answer takes some 20 ms; questions that many tasks
        ask meanwhile are asked together. Each sees what the sidecar had decided when it
        read the question, and that is on disk when it is answered.

        Args:
            uids: A uid, or any number of them. Where devices are counted, the name of a
                user stands for all its devices.
        Returns:
            Those that are online, in the order of *uids*, each once.
        Raises:
            ReportError: One of them is no uid, or one user has too many devices.
            anyio.ClosedResourceError: `aclose` was called.
        """
        return [Whereabouts(*row[:4]) for row in await self._questions.sessions(uids)]

    async def anywhere(self, uids: Uid | Iterable[Uid]) -> HostSessions:
        """Ask which of these users are online on any host; otherwise as `where`.

        The sidecar knows those on its own host, and asks Redis for the others, 2 s at most.
        Without a cluster its own host is all there is.

        Returns:
            Those that are online, in the order of *uids*; of a user, those on the sidecar's
            host come first. Its `partial` says why those on other hosts may be missing.
        """
        return await self._anywhere.sessions(uids)

    async def online(
        self, uids: Uid | Iterable[Uid], *, anywhere: bool = False
    ) -> set[Uid]:
        """Ask which of these users are online; as `where`, or with *anywhere* as `anywhere`.

        Returns:
            Those of *uids* that are online. Where devices are counted, a user is while any
            of its devices is.
        Raises:
            ReportError: As `where`; or whether some are online on other hosts is not known
                now.
        """
        questions = self._anywhere if anywhere else self._questions
        return await questions.online(uids)

    async def list(self) -> Listing:
        """Ask for all sessions; as `where`.

        To follow from there, read above it: `watch(after=listing.seq, log=listing.log)`.
        A million sessions take some 200 MB here.
        """
        return await self._questions.list()


class Batches(AsyncIterator[Batch]):
    """An endless `async for` over lists of records; from `Watch.batches`."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    async def __anext__(self) -> Batch:
        return await self._watch._next_batch()


def _check(options: dict[str, Any], after: int | None, log: str | None) -> None:
    """Raise a ReportError for what no sidecar would accept."""
    if log is not None and after is None:
        raise ReportError("log is the one that after belongs to; give after as well")
    hello = options if after is None else options | {"after": after, "log": log or "-"}
    check_hello(hello)
