"""One partition as a host publishes it: which call is next, and what its answer means.

At most one call is under way. A partition begins (`begin`), lists the host's sessions if
Redis does not have them (`assert`), and then follows the log (`apply`). Each call names the
seq where the last one ended, so none is applied twice or left out: Redis refuses a call
that does not fit (`gap`), and the partition goes on from there, forward or back.

It begins at once, also if its list has to wait for those of other partitions: so everybody
knows that there is one to come.

While it follows, it also watches the other hosts: see `host_watch`.
"""

from collections import deque
from collections.abc import Sequence
from enum import Enum
from itertools import islice
from math import inf
from typing import Any, Final

from liveness.service.outlets.cluster.claim import Claim, text_of
from liveness.service.outlets.cluster.host_state import HostIdentity
from liveness.service.outlets.cluster.host_watch import HostWatch
from liveness.service.outlets.cluster.partition_clock import PartitionClock
from liveness.service.outlets.cluster.session_changes import (
    Call,
    Change,
    SessionList,
)

# The first pause after a call that failed; it doubles up to a twelfth of the lease, and to
# no more than this: changes follow soon after an outage, however long the lease is.
FIRST_RETRY_S: Final = 0.1
MOST_RETRY_S: Final = 10.0
# In place of its word, for an answer that no function gives: its data are damaged.
MALFORMED: Final = "malformed"


class Mode(Enum):
    """How far a partition is."""

    BEGINNING = 1
    ASSERTING = 2
    FOLLOWING = 3


class Partition:
    """Publishes one partition of a host."""

    _began: float  # when the call under way was made
    # Since it has begun: when each is due, in seconds of the caller's clock.
    _beat_at: float
    _changes_at: float
    _pieces: int  # of its list, that Redis has

    def __init__(self, number: int, host: HostIdentity) -> None:
        self.number = number
        self.mode = Mode.BEGINNING
        self.last = 0  # Redis has everything up to this seq
        self.read_to = 0  # everything up to this seq is queued or published
        self.users = 0  # online in the partition, on all hosts
        self.answered_at = -inf
        self.followed_at = -inf  # when it was last answered as it followed
        self._host = host
        self._queue: deque[Change] = deque()
        self._retry_at = 0.0  # no call before
        self._under_way: Call | None = None  # its answer is awaited
        self._clock = PartitionClock()
        self._claim = Claim(host, self._clock)
        self._watch = HostWatch(number, host, self._clock)
        self._list: SessionList | None = None
        # Calls without an answer since the last one with: all, and those with changes.
        self._failures = 0
        self._refusals = 0
        self._lists_in_vain = 0  # since it last followed

    # --- records --------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether it takes the records of the log behind `read_to`."""
        return self.mode is Mode.FOLLOWING and len(self._queue) < self._host.most_queued

    @property
    def wants_list(self) -> bool:
        """Whether it needs a list of all sessions; until then it says that it lives."""
        return self.mode is Mode.ASSERTING and self._list is None

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def oldest_at(self) -> int | None:
        """When the oldest change was made that Redis does not have, Unix milliseconds."""
        return self._queue[0].at if self._queue else None

    def add(self, change: Change, now: float) -> bool:
        """Queue a change from the log; return whether there was room."""
        if not self.has_room:
            return False
        if not self._queue:
            self._changes_at = now + self._host.linger_s
        self._queue.append(change)
        self.read_to = change.seq
        return True

    def lose_records(self) -> None:
        """Records behind `read_to` are not in the log any more: list all sessions."""
        self._restart(may_keep=False)

    def give_list(self, made: SessionList) -> None:
        self._list = made

    # --- calls ----------------------------------------------------------------

    def next_call(self, now: float, now_ms: int) -> Call | None:
        """The call to make now, if any; the caller then calls `answered` or `failed`.

        *now_ms* is *now* in milliseconds, as `Change.at`.
        """
        call = self._next_call(now, now_ms)
        if call is not None:
            self._under_way, self._began = call, now
        return call

    def _next_call(self, now: float, now_ms: int) -> Call | None:
        if now < self._retry_at:
            return None
        if self.mode is Mode.BEGINNING:
            return self._claim.begin(now)
        if self._host.is_stopped:
            self._restart(may_keep=True)
            return None
        if self.mode is Mode.FOLLOWING:
            return self._follow(now, now_ms)
        if self._list is None and now < self._beat_at:
            return None
        return self._assert(now, now_ms)

    def next_at(self) -> float:
        """When to ask `next_call` again at the latest, if nothing happens before."""
        if self.mode is Mode.FOLLOWING:
            return max(
                self._retry_at,
                min(self._beat_at, self._changes_at, self._watch.next_at),
            )
        return max(self._retry_at, self._beat_at) if self.wants_list else self._retry_at

    def _follow(self, now: float, now_ms: int) -> Call | None:
        # Also before the first call after a gap: nobody could say then that it lives, so
        # it must not be a fence.
        self._doubt_suspects(now)
        if len(self._queue) >= self._host.call_changes and not self._refusals:
            self._changes_at = min(self._changes_at, now)
        own_at, watch_at = min(self._changes_at, self._beat_at), self._watch.next_at
        if min(own_at, watch_at) > now:
            return None
        # With one due time, changes first: they are what users wait for.
        if own_at <= watch_at:
            return self._apply(now, now_ms)
        return self._watch.next_call(now)

    def _assert(self, now: float, now_ms: int) -> Call:
        made = self._list
        changes = () if made is None else made.piece
        last = made.reached if made is not None and made.is_last else -1
        return self._claim.changes(
            "assert", self._pieces, last, changes, now, now_ms, made
        )

    def _apply(self, now: float, now_ms: int) -> Call:
        if self._refusals and now < self._changes_at:
            # Redis may be out of memory: it takes calls without changes even then.
            return self._claim.changes("beat", self.last, self.last, (), now, now_ms)
        taken = list(islice(self._queue, self._host.call_changes))
        last = self.read_to if len(taken) == len(self._queue) else taken[-1].seq
        function = "apply" if taken else "beat"
        return self._claim.changes(function, self.last, last, taken, now, now_ms)

    # --- answers --------------------------------------------------------------

    def failed(self, now: float) -> None:
        """The call had no answer, or an error: whether it was made is not known."""
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            return
        self._failures += 1
        self._retry_at = now + self._pause(self._failures)
        if under_way.function == "begin":
            self._claim.unanswered()
        elif under_way.function == "assert":
            self.begin_anew(now)  # in doubt
        elif under_way.changes:
            self._refusals += 1
            self._changes_at = self._retry_at + self._pause(self._refusals)
            # Without them, and soon: it may be the first call after an outage.
            self._beat_at, self._retry_at = now, now + self._pause(1)

    def _pause(self, failures: int) -> float:
        pause = FIRST_RETRY_S * 2.0 ** min(failures - 1, 16)
        return min(pause, self._host.beat_s / 2, MOST_RETRY_S) * self._host.jitter()

    def answered(self, answer: Sequence[Any], now: float) -> str:
        """Take the answer to the call.

        Returns:
            The word that the answer begins with, or `MALFORMED`.
        """
        under_way, self._under_way = self._under_way, None
        self._failures = 0
        self._doubt_suspects(now)
        answered_at, self.answered_at = self.answered_at, now
        try:
            word = text_of(answer[0])
            if under_way is not None:
                self._take(word, answer, under_way, now)
        except (AttributeError, LookupError, OverflowError, TypeError, ValueError):
            # Another program wrote to the keys. The sidecar must not end for that.
            self.answered_at = answered_at
            self.begin_anew(now)
            return MALFORMED
        if self.mode is Mode.FOLLOWING:
            self.followed_at = now
        return word

    def _take(
        self, word: str, answer: Sequence[Any], under_way: Call, now: float
    ) -> None:
        if word == "damaged":
            # Another program changed the users: all hosts list theirs.
            self._host.audit_mismatches += 1
            self.begin_anew(now)
            return
        if word == "late":  # or Redis' clock jumped: what was sent is sent again
            self._clock.compare(answer[1], answer[2], self._began, now)
            self._claim.is_clock_compared = True
            return
        match under_way.function:
            case "begin":
                self._begun(word, answer, now)
            case "assert":
                self._asserted(word, answer, under_way, now)
            case "apply" | "beat":
                self._applied(word, answer, under_way, now)
            case "look":
                self._watch.looked(word, answer, now)
            case "fence":
                self._watch.fenced(word, now)
            case _:
                self._watch.reaped(word, answer, now)

    def _doubt_suspects(self, now: float) -> None:
        """After a gap in contact, what was observed before proves nothing."""
        if now - self.answered_at > self._host.contact_gap_s:
            self._watch.clear()

    def _begun(self, word: str, answer: Sequence[Any], now: float) -> None:
        if word not in ("keep", "reset"):
            self._retry_at = now + self._claim.denied(word, answer, now)
            return
        self._claim.granted(answer[2], answer[5])
        self._beat_at, self._retry_at, self._changes_at = now, 0.0, inf
        self._watch.begin(now)
        self._clock.compare(answer[3], answer[4], self._began, now)
        self._pieces = 0
        if word == "keep":
            self.last = self.read_to = answer[1]
            self.mode = Mode.FOLLOWING
        else:
            self._claim.may_keep = True
            self._beat_at = now + self._host.beat_s
            self.mode = Mode.ASSERTING

    def _asserted(
        self, word: str, answer: Sequence[Any], under_way: Call, now: float
    ) -> None:
        if word != "ok":
            self._refused(word, answer)
            return
        self._clock.see(answer[1], now)
        self._pieces += 1
        self._beat_at = now + self._host.beat_s
        made = under_way.listing
        if made is not None and made.is_last:
            self.mode, self._list = Mode.FOLLOWING, None
            self.last = self.read_to = made.reached
            self._beat_at = now
        elif made is not None:
            made.drop_piece()

    def _applied(
        self, word: str, answer: Sequence[Any], under_way: Call, now: float
    ) -> None:
        if word == "gap":
            self._go_to(answer[1], now)
            return
        if word != "ok":
            self._refused(word, answer)
            return
        _, version, _, _, redis_us, beat, before, look_age, users = answer
        for _ in range(under_way.changes):
            self._queue.popleft()
        self.last = under_way.last
        self.users = users
        self._clock.compare(version, redis_us, self._began, now)
        self._watch.beat(before, beat, look_age, now)
        self._beat_at = now + self._host.beat_s
        if under_way.changes or not self._refusals:
            self._refusals = 0
            self._changes_at = now + self._host.linger_s if self._queue else inf
        self._lists_in_vain = 0

    def _go_to(self, seq: int, now: float) -> None:
        """Go on behind *seq*, up to which Redis has everything."""
        self._watch.clear()
        if seq > self._host.newest:
            self._restart(may_keep=False)
            return
        while self._queue and self._queue[0].seq <= seq:
            self._queue.popleft()
        if seq < self.last or seq > self.read_to:
            # What Redis lost is read from the log again; or another call got further.
            self._queue.clear()
            self.read_to = seq
        self.last = seq
        self._refusals = 0

    def _refused(self, word: str, answer: Sequence[Any]) -> None:
        """Redis does not know us as we know it: begin again."""
        if word == "epoch" and answer[1] > self._host.epoch:
            self._host.replaced()
        self._restart(may_keep=word != "gap")

    def begin_anew(self, now: float) -> None:
        """List all sessions, after a pause: to scan them again and again costs the disk."""
        self._restart(may_keep=False)
        self._lists_in_vain += 1
        self._retry_at = now + self._pause(self._lists_in_vain)

    def _restart(self, *, may_keep: bool) -> None:
        self.mode = Mode.BEGINNING
        self._claim.may_keep = self._claim.may_keep and may_keep
        self._queue.clear()
        self._refusals = 0
        self._list = None
        self._under_way = None  # its answer is of no use any more
        self._watch.clear()
