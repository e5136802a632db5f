"""One link's conversation: turns frames into requests or refusals.

A link begins with `hello`. Then each frame is numbered from 1, checked, and becomes a
request with its defaults filled in. Consecutive keepalives and messages become one
request, however many frames they came in: nearly every frame takes this path, and it
makes no object per event.

After a fatal refusal the link is closed, and further bytes yield no requests.
"""

from collections.abc import Iterator
from typing import Final

from liveness.core.limits import Limits
from liveness.core.records import (
    EVENT_NUMBER,
    GATEWAY,
    KEEPALIVE,
    LOGIN,
    LOGOUT,
    MESSAGE,
    WATCHER,
)
from liveness.core.wire.frames import (
    claimed_name,
    conns_of,
    parse_ack,
    parse_after,
    parse_answer,
    parse_cancel,
    parse_hello,
    parse_login,
    parse_logout,
    parse_ping,
    parse_where,
    uids_of,
)
from liveness.core.wire.framing import MAX_FRAME, Frame, Reader
from liveness.core.wire.link_requests import (
    ActivityBatch,
    Hello,
    ListedActivity,
    ListSessions,
    Refusal,
    Request,
)
from liveness.core.wire.uids import MAX_NAME_BYTES
from liveness.errors import NOT_FATAL, Code, WireError

# `limits.max_refused` bounds the refusals within this many seconds.
REFUSED_WINDOW_S: Final = 10.0

# The most bytes before a hello. One with all options has some 300; the rest is for later
# versions.
HELLO_BYTES: Final = 16 * 1024

_ACTIVITY: Final = {KEEPALIVE: EVENT_NUMBER[KEEPALIVE], MESSAGE: EVENT_NUMBER[MESSAGE]}
_EVENTS: Final = frozenset({LOGIN, LOGOUT, KEEPALIVE, MESSAGE})
_TIMERS: Final = frozenset({"after", "cancel", "done", "fail"})


class Conversation:
    """A gateway's or watcher's link, as a state machine without I/O."""

    def __init__(self, limits: Limits, reader: type[Reader] = Reader) -> None:
        self.hello: Hello | None = None
        # The role and name in its hello, even a refused one.
        self.claimed: tuple[str, str] | None = None
        self.n = 0
        self.is_closed = False
        self._limits = limits
        self._reader = reader(
            max_frame_bytes=limits.max_frame_bytes, max_batch=limits.max_batch
        )
        self._reader.max_frame_bytes = HELLO_BYTES
        self._refused = 0
        self._window_began = 0.0
        self._batch: ListedActivity | None = None

    @property
    def unfinished_bytes(self) -> int:
        return self._reader.unfinished_bytes

    def receive(self, data: bytes, now: float) -> Iterator[Request]:
        """Yield the request, or refusal, of each frame that *data* completes, in order.

        *now*, in attended seconds, is for the limit on refused frames.
        """
        for request in self._requests(data, now):
            yield request
            # The caller may have closed the link after the last request.
            if self.is_closed:
                return

    def _requests(self, data: bytes, now: float) -> Iterator[Request]:
        if self.is_closed:
            return
        try:
            for frame in self._reader.feed_packing(data):
                self.n = self._reader.n
                if type(frame) is not tuple:
                    yield from self._flush()
                    assert isinstance(frame, ActivityBatch)
                    yield frame
                    continue
                try:
                    request = self._request(frame)
                except WireError as bad:
                    yield from self._flush()
                    yield self._refuse(bad, frame, now)
                    continue
                if request is not None:
                    yield from self._flush()
                    yield request
        except WireError as error:
            self.n += 1
            yield from self._flush()
            yield self._refuse_stream(error)
        yield from self._flush()

    def close(self, code: Code, message: str, *, limit: str | None = None) -> Refusal:
        """End the link for *code*; return the refusal to send before closing.

        *message* is for a person; *limit* is the setting that was exceeded, if any.
        """
        self.is_closed = True
        return Refusal(code, message, self.n, fatal=True, limit=limit)

    def drop(self) -> None:
        """Close, without a refusal, and free the bytes of an incomplete frame."""
        self.is_closed = True
        self._reader = type(self._reader)(max_frame_bytes=0, max_batch=0)

    def refuse(
        self,
        code: Code,
        message: str,
        now: float,
        *,
        n: int,
        frame: str,
        index: int | None = None,
        limit: str | None = None,
    ) -> Refusal:
        """Refuse a frame whose request was already yielded, or a part of it."""
        if self._count_refusal(now) > self._limits.max_refused:
            return self._too_many()
        return Refusal(code, message, n, False, frame, index, limit=limit)

    # --- refusals -------------------------------------------------------------

    def _refuse_stream(self, error: WireError) -> Refusal:
        if self.hello is None and error.limit == MAX_FRAME:
            return self.close(
                error.code,
                f"the first frame must be hello, of at most {HELLO_BYTES} bytes",
            )
        return self.close(error.code, str(error), limit=error.limit)

    def _refuse(self, bad: WireError, frame: Frame, now: float) -> Refusal:
        name = frame[0] if frame and type(frame[0]) is str else None
        if name is not None and len(name) > MAX_NAME_BYTES:
            name = name[:MAX_NAME_BYTES]
        fatal = bad.code not in NOT_FATAL
        if fatal:
            self.is_closed = True
        elif self._count_refusal(now) > self._limits.max_refused:
            return self._too_many()
        return Refusal(
            bad.code, str(bad), self.n, fatal, name, bad.index, limit=bad.limit
        )

    def _count_refusal(self, now: float) -> int:
        if now - self._window_began > REFUSED_WINDOW_S:
            self._window_began, self._refused = now, 0
        self._refused += 1
        return self._refused

    def _too_many(self) -> Refusal:
        return self.close(
            Code.OVERLOADED,
            f"more than {self._limits.max_refused} frames were refused within "
            f"{REFUSED_WINDOW_S:.0f} s (limits.max_refused); fix the sender, then "
            "connect again",
            limit="limits.max_refused",
        )

    # --- frames ---------------------------------------------------------------

    def _request(self, frame: Frame) -> Request | None:
        """Return a frame's request; None if it was added to the batch of events."""
        name = frame[0] if frame else None
        if self.hello is None:
            if name != "hello":
                raise WireError(
                    Code.NOT_HELLO,
                    f'the first frame must be ["hello", {{...}}], not {name!r:.80}',
                )
            self.claimed = claimed_name(frame)
            self.hello = parse_hello(frame)
            self._reader.packs = self.hello.role == GATEWAY
            self._reader.max_frame_bytes = self._limits.max_frame_bytes
            return self.hello
        if type(name) is not str:
            raise WireError(Code.BAD_FRAME, "a frame begins with its name, a string")
        if self.hello.role == WATCHER and (name in _EVENTS or name in _TIMERS):
            what = "events" if name in _EVENTS else "timers"
            raise WireError(
                Code.BAD_FRAME,
                f"a watcher sends no {what}; say hello with role gateway to send them",
            )
        event = _ACTIVITY.get(name)
        if event is not None:
            self._add_activity(event, frame)
            return None
        most = self._limits.max_batch
        match name:
            case "login":
                return parse_login(frame, most)
            case "logout":
                return parse_logout(frame, most)
            case "where":
                return parse_where(frame, most)
            case "ping":
                return parse_ping(frame)
            case "list":
                return ListSessions()
            case "after":
                return parse_after(frame)
            case "cancel":
                return parse_cancel(frame)
            case "done" | "fail":
                return parse_answer(frame)
            case "ack" if self.hello.ack:
                return parse_ack(frame)
            case "ack":
                raise WireError(Code.BAD_FRAME, "this link's hello said ack: false")
            case "hello":
                raise WireError(
                    Code.BAD_FRAME, "a second hello; connect again for that"
                )
            case _:
                raise WireError(
                    Code.UNKNOWN_FRAME,
                    f"unknown frame {name!r:.80}; welcome.features lists the known ones",
                )

    def _add_activity(self, event: int, frame: Frame) -> None:
        uids = uids_of(frame, self._limits.max_batch)
        conns = conns_of(frame, uids)
        if self._batch is None:
            self._batch = ListedActivity(first_n=self.n)
        batch = self._batch
        if len(uids) != 1:
            batch.batches.append((len(batch.uids), len(uids), self.n))
        batch.uids.extend(uids)
        batch.conns.extend(conns)
        batch.events.extend(bytes([event]) * len(uids))

    def _flush(self) -> Iterator[Request]:
        if self._batch is not None:
            batch, self._batch = self._batch, None
            yield batch
