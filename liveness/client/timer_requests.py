"""A gateway's requests about timers, kept until they are durable in the sidecar.

There are four requests: `after` (create a timer), `cancel`, and the answers to an attempt,
`done` and `fail`. Only the newest request about each key, each ext and each attempt is
kept, and it goes to the end of the queue. So a cancel by ext and the `after`s with that ext
are sent in the order of the calls, however often each was called.

Requests that were sent but not confirmed by a pong are kept in the same way. They are sent
again on the next link, an `after` with the seconds that are left by then. So a timer that
fired before its `after` was confirmed fires twice, rather than never. An `after` for which
the sidecar has no room is sent again later.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias, TypeGuard

from liveness.core.wire.framing import encode
from liveness.core.wire.uids import MAX_UID_BYTES, is_text, is_within
from liveness.errors import ReportError

MIN_AFTER_S: Final = 0.1
MAX_AFTER_S: Final = 31_622_400  # 366 days
MAX_CONTENT_BYTES: Final = 4_096  # of a payload, and of an answer's message

# Most requests that wait while the sidecar is down: those of ten seconds, at 10,000 timers
# and as many cancels a second. A restart takes less. They need about 100 MB.
MAX_REQUESTS: Final = 200_000
# Timers for which the sidecar had no room are sent again after this long, all together.
POSTPONED_S: Final = 5.0
# Like `reports.MAX_CHANGES_PER_WRITE`, for the same reason.
MAX_REQUESTS_PER_WRITE: Final = 4_096

# The subjects of requests.
KEY: Final = "key"
EXT: Final = "ext"
ATTEMPT: Final = "attempt"


class TimerRequest(NamedTuple):
    """A request: an `after`, a `cancel`, or the answer to an attempt."""

    frame: list[Any]  # of an `after`: without the seconds
    number: int = 0  # counts the calls of `after` and `cancel`; 0: an answer
    due: float | None = None  # of an `after`: by the clock that callers pass as `now`
    ext: str | None = None  # of an `after`

    def encoded(self, now: float) -> bytes:
        if self.due is None:
            return encode(self.frame)
        left = min(max(self.due - now, MIN_AFTER_S), MAX_AFTER_S)
        return encode([*self.frame[:2], left, *self.frame[2:]])


Subject: TypeAlias = tuple[str, str | int | None]  # KEY, EXT or ATTEMPT; name or seq
PendingRequests: TypeAlias = dict[Subject, TimerRequest]


class TimerRequests:
    """Requests about timers that are not sent, or not confirmed by a pong."""

    def __init__(self) -> None:
        self.was_used = False  # whether a timer was ever requested
        self.dropped = 0  # answers without room; their timers fire again
        self._unsent: PendingRequests = {}
        self._sent: PendingRequests = {}  # since the last ping
        self._awaiting_pong: PendingRequests = {}  # before the last ping
        # By key: timers for which the sidecar had no room, and when to send them again.
        self._postponed: dict[str, TimerRequest] = {}
        self._resend_at: float | None = None
        self._number = 0  # of the latest `after` or `cancel`

    # --- the gateway's requests ---------------------------------------------------

    def after(
        self, key: str, seconds: float, payload: str | None, ext: str | None, now: float
    ) -> None:
        _check_name(KEY, key)
        if not is_within(seconds, MIN_AFTER_S, MAX_AFTER_S):
            raise ReportError(
                f"{seconds!r:.40} seconds for {key!r:.80}; it must be {MIN_AFTER_S} to "
                f"{MAX_AFTER_S}"
            )
        options = {}
        if payload is not None:
            if not _is_payload(payload):
                raise ReportError(
                    f"payload is {payload!r:.80}; it must be a string of at most "
                    f"{MAX_CONTENT_BYTES} bytes without U+0000"
                )
            options["payload"] = payload
        if ext is not None:
            _check_name(EXT, ext)
            options[EXT] = ext
        frame = ["after", key, options] if options else ["after", key]
        self._ask((KEY, key), frame, due=now + seconds, ext=ext)

    def cancel(self, key: str | None, ext: str | None) -> None:
        if (key is None) == (ext is None):
            raise ReportError("cancel takes a key or an ext: exactly one of them")
        what, name = (KEY, key) if key is not None else (EXT, ext)
        _check_name(what, name)
        self._ask((what, name), ["cancel", {what: name}])
        if what == EXT:
            for each, request in [*self._postponed.items()]:
                if request.ext == ext:
                    del self._postponed[each]
                    self._cancel_replaced(each, request.number)

    def done(self, key: str, seq: int, message: str | None) -> None:
        text = None if message is None else _shortened(message)
        self._answer(seq, ["done", key, text, {"seq": seq}])

    def fail(self, key: str, seq: int, message: str, *, final: bool) -> None:
        options: dict[str, object] = {"seq": seq}
        if final:
            options["final"] = True
        self._answer(seq, ["fail", key, _shortened(message), options])

    def _cancel_replaced(self, key: str, number: int) -> None:
        """Cancel the timer of another ext that a refused one was to replace."""
        request = TimerRequest(["cancel", {KEY: key}], number)
        _put_last(self._unsent, (KEY, key), request)

    def forget_answers(self) -> None:
        """Drop all answers: their log no longer exists."""
        for requests in (self._unsent, self._sent, self._awaiting_pong):
            for subject in [each for each in requests if each[0] == ATTEMPT]:
                del requests[subject]

    def _ask(self, subject: Subject, frame: list[Any], **of_after: Any) -> None:
        if not self._has_room(subject):
            raise ReportError(
                f"{MAX_REQUESTS} timer requests wait for the sidecar's disk, and no more "
                "are kept; see whether the sidecar runs and can write"
            )
        self.was_used = True
        self._number += 1
        if subject[0] == KEY:
            self._postponed.pop(str(subject[1]), None)
        request = TimerRequest(frame, self._number, **of_after)
        _put_last(self._unsent, subject, request)

    def _answer(self, seq: int, frame: list[Any]) -> None:
        if self._has_room((ATTEMPT, seq)):
            _put_last(self._unsent, (ATTEMPT, seq), TimerRequest(frame))
        else:
            self.dropped += 1

    def _has_room(self, subject: Subject) -> bool:
        count = self.pending + self.unconfirmed
        return count < MAX_REQUESTS or subject in self._unsent

    # --- sending --------------------------------------------------------------------

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    @property
    def pending(self) -> int:
        return len(self._unsent) + len(self._postponed)

    @property
    def postponed(self) -> int:
        return len(self._postponed)

    @property
    def unconfirmed(self) -> int:
        return len(self._sent) + len(self._awaiting_pong)

    def frames(self, now: float) -> Iterator[bytes]:
        """Return the first waiting requests, encoded; they count as sent from now on."""
        self._resend_postponed(now)
        requests = []
        for subject in list(islice(self._unsent, MAX_REQUESTS_PER_WRITE)):
            requests.append(request := self._unsent.pop(subject))
            _put_last(self._sent, subject, request)
        return (request.encoded(now) for request in requests)

    def postpone(self, key: str) -> None:
        """Note that the sidecar had no room for a timer: it is sent again later.

        It is dropped if there is a newer request about its key, or about its ext.
        A newer cancel by ext would miss the older timer that this one was to replace, so
        that timer is cancelled by its key.
        """
        subject: Subject = (KEY, key)
        sent = next(
            (each for each in (self._awaiting_pong, self._sent) if subject in each),
            None,
        )
        if sent is None or (refused := sent[subject]).due is None:
            return
        del sent[subject]
        if self._has_newer(subject, refused):
            return
        if self._has_newer((EXT, refused.ext), refused):
            self._cancel_replaced(key, refused.number)
        else:
            self._postponed[key] = refused

    def _has_newer(self, subject: Subject, than: TimerRequest) -> bool:
        generations = (self._awaiting_pong, self._sent, self._unsent)
        requests = (each.get(subject, than) for each in generations)
        return any(request.number > than.number for request in requests)

    def _resend_postponed(self, now: float) -> None:
        if not self._postponed:
            self._resend_at = None
        elif self._resend_at is None:
            self._resend_at = now + POSTPONED_S
        elif now >= self._resend_at:
            self._resend_at = None
            for key, request in self._postponed.items():
                _put_last(self._unsent, (KEY, key), request)
            self._postponed = {}

    # --- confirmations, as in `reports` ----------------------------------------------

    def ping_sent(self) -> None:
        self._awaiting_pong, self._sent = self._sent, {}

    def pong_received(self) -> None:
        self._awaiting_pong = {}

    def link_lost(self) -> None:
        requests: PendingRequests = {
            (KEY, key): request for key, request in self._postponed.items()
        }
        requests |= self._awaiting_pong
        sent, self._sent = self._sent, {}
        self._awaiting_pong, self._postponed = {}, {}
        for newer in (sent, self._unsent):
            for subject, request in newer.items():
                _put_last(requests, subject, request)
        self._unsent = requests


def _is_payload(value: object) -> TypeGuard[str]:
    if type(value) is not str or len(value) > MAX_CONTENT_BYTES or "\0" in value:
        return False
    try:
        return len(value.encode()) <= MAX_CONTENT_BYTES
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def _check_name(what: str, value: object) -> None:
    if not is_text(value, MAX_UID_BYTES):
        raise ReportError(
            f"{what} is {value!r:.80}; it must be a string of 1 to {MAX_UID_BYTES} bytes "
            "without control characters"
        )


def _shortened(message: str) -> str:
    """Make *message* fit into an answer: truncate it, and replace invalid characters."""
    data = message.replace("\0", "\ufffd").encode(errors="replace")
    return data[:MAX_CONTENT_BYTES].decode(errors="ignore")


def _put_last(
    requests: PendingRequests, subject: Subject, request: TimerRequest
) -> None:
    requests.pop(subject, None)
    requests[subject] = request
