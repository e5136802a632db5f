"""The link of a watch, a new one whenever it ends, and the records that arrive on it.

The position of a watch is a `seq` and the log that it belongs to. With a new log, it stays
that of the old one until the first record of the new one has arrived: the sidecar knows the
last record that a restored log shares with the one before.
"""

from collections import deque
from collections.abc import Iterable
from math import inf
from typing import Any, Final, NamedTuple

import anyio

from liveness.client.damped_records import MAX_SETTLING, DampedRecords
from liveness.client.dialer import Dialer, SidecarLink, random_name, watcher_hello
from liveness.client.inbox import RecordMap
from liveness.client.protocol import Welcome
from liveness.core.sessions.damping import Passed
from liveness.core.wire.framing import encode
from liveness.errors import LivenessError, Replaced, ReportError

# The kind of the mapping that says that the log is another one. It is not on the wire.
LOG: Final = "log"
LOG_SEQ: Final = 0  # its seq: below that of any record


class ArrivedRecord(NamedTuple):
    """A record, in its form on the wire."""

    log: int  # the number of its log, counted from the first one of the watch
    record: RecordMap
    # Until the loop has finished it, the watch's position stays below this seq.
    floor: int


class RecordLink:
    """The link on which a watch reads, and its records until the loop has finished them.

    The options are those of every hello; with a cursor if they have an `ack`.
    """

    def __init__(
        self,
        dialer: Dialer,
        options: dict[str, Any],
        *,
        after: int | None,
        log: str | None,
        damped: DampedRecords | None,
    ) -> None:
        # The seq after which to continue, None if only the sidecar knows it; and the log
        # that it belongs to, None for whichever the sidecar has.
        self._seq, self._seq_log = after, log
        self.known_log = log  # the newest known one
        self._floor = 0  # records of this link up to this seq are repeated ones
        self._has_begun = False  # a first welcome was taken
        self._damped = damped
        self.acked_at = -inf  # when an ack was written, or this link began
        self.end: LivenessError | None = None  # of the last link, until it was logged
        self._dialer = dialer
        self._options = options
        self._has_cursor = bool(options["ack"])
        self._link: SidecarLink | None = None
        self._replaced: Replaced | None = None
        self._acked: tuple[int, ...] = (0,)  # on this link
        self._goes_back = False  # the hello has a position before what has arrived
        self._logs = 0  # how many there were before; several may have one id
        self._waiting = deque[ArrivedRecord]()  # and not given to the loop yet
        # Their floors, but for those with a lower one behind them: the first is the least.
        self._floors = deque[int]()
        # What the loop was given and may not have finished: the number of its log, the seq
        # up to which all else is finished, and the last seq that was given.
        self._given: tuple[int, int, int] | None = None
        self._finished: tuple[int, int] = (0, 0)
        self._hurried = 0  # offlines passed on early that were said

    @property
    def is_empty(self) -> bool:
        """Whether all records that have arrived were given to the loop."""
        return not self._waiting

    # --- the position ----------------------------------------------------------------

    def _is_new(self, seq: int) -> bool:
        """Move to a record that has arrived; return False if it came before."""
        if seq <= self._floor:
            return False
        self._floor = self._seq = seq
        self._seq_log = self.known_log
        return True

    def _welcomed(self, welcome: Welcome) -> dict[str, Any] | None:
        """Take the welcome of a link; return the event of a new log for the reader, if any."""
        is_first, self._has_begun = not self._has_begun, True
        log, before = welcome.log, self.known_log
        is_resumed = self._seq is not None and self._seq_log in (None, log)
        has_lost_its_end = is_resumed and (self._seq or 0) >= welcome.next
        is_new = before not in (None, log) or has_lost_its_end
        self.known_log = log
        if has_lost_its_end:
            self._seq, self._seq_log = 0, log
        is_new_name = self._has_cursor and is_first and not welcome.known
        if self._seq is None and (is_new_name or not self._has_cursor):
            self._seq, self._seq_log = welcome.next - 1, log
            is_resumed = True
        self._floor = self._seq or 0 if is_resumed else 0
        if not is_new:
            return None
        self._logs += 1
        return {"kind": LOG, "log": log, "was": before, "seq": LOG_SEQ}

    # --- the link -------------------------------------------------------------------

    def arrived(self, records: Iterable[RecordMap]) -> None:
        """Take the records of a frame. If one came before, acknowledge it again."""
        damped = self._damped
        for record in records:
            seq = record["seq"]
            if not self._is_new(seq):
                self._acked = (0,)
            elif damped is None:
                self._add(record, seq)
            else:
                self.add(damped.add(record))

    def add(self, passed: Iterable[Passed[RecordMap]]) -> None:
        assert self._damped is not None
        for record, floor in passed:
            self._add(record, floor)
        if (hurried := self._damped.counts.hurried) > self._hurried:
            self._hurried = hurried
            self._dialer.say(
                f"more than {MAX_SETTLING} offlines wait for settle_s: the oldest are passed "
                "on early; give a shorter one"
            )

    def _add(self, record: RecordMap, floor: int) -> None:
        self._waiting.append(ArrivedRecord(self._logs, record, floor))
        while self._floors and self._floors[-1] > floor:
            self._floors.pop()
        self._floors.append(floor)

    # --- the loop -------------------------------------------------------------------

    def take(self) -> RecordMap | None:
        """Finish the last record; return the next one if it has arrived."""
        self.finish()
        if not self._waiting:
            return None
        log, record, floor = self._waiting.popleft()
        if self._floors[0] == floor:
            self._floors.popleft()
        self._given = log, floor - 1, record["seq"]
        return record

    def take_all(self) -> list[RecordMap]:
        log, last, _ = self._waiting[-1]
        self._given = log, self._least_floor - 1, last["seq"]
        records = [record for _, record, _ in self._waiting]
        self._waiting.clear()
        self._floors.clear()
        return records

    def finish(self) -> None:
        """Note that the loop has come back from what it was given."""
        if self._given is not None:
            number, _, seq = self._given
            self._finished, self._given = (number, seq), None

    def _next_ack(self) -> tuple[int, ...]:
        """The seq up to which to acknowledge and, if that differs, the cursor."""
        if self._damped is None:
            number, seq = self._finished
            return (seq if number == self._logs else 0,)
        cursor = self._all_given
        if self._given is not None:
            cursor = min(cursor, self._given[1])
        return (self._floor, max(cursor, 0))

    @property
    def given_position(self) -> int | None:
        is_of_this_log = self._seq_log in (None, self.known_log)
        if self._seq is None or not is_of_this_log or self._least_floor == LOG_SEQ:
            return None
        return self._all_given

    @property
    def _all_given(self) -> int:
        """The seq up to which everything that has arrived was given to the loop."""
        seqs = [self._floor, self._least_floor - 1]
        if (
            self._damped is not None
            and (passed := self._damped.damper.position) is not None
        ):
            seqs.append(passed)
        return min(seqs)

    @property
    def _least_floor(self) -> int:
        """The least floor of the records that wait, or the one after all that came."""
        return self._floors[0] if self._floors else self._floor + 1

    # --- links ----------------------------------------------------------------------

    async def opened(self) -> SidecarLink:
        """Return the link, or wait for a new one; raise as the iteration of `Watch`."""
        if self._replaced is not None:
            raise self._replaced.with_traceback(None)
        try:
            if self.end is not None:
                end, self.end = self.end, None
                self._dialer.ended(end)
            return self._link or await self._new_link()
        except Replaced as replaced:
            self._replaced = replaced
            raise

    async def _new_link(self) -> SidecarLink:
        while True:
            if self._seq and self._seq_log is None:  # no hello can name the log
                await self._learn_log()
            link = await self._dialer.open(self._hello)
            self._dialer.say_linked()
            if self._begin(link.welcome):
                self._link, self._acked = link, (0,)
                self.acked_at = anyio.current_time()
                if self._damped is not None:
                    self._damped.linked()
                return link
            await link.aclose()

    def _hello(self) -> bytes:
        hello: dict[str, object] = dict(self._options)
        if self._seq is not None:
            hello["after"] = self._seq
        if self._seq_log is not None:  # None: 0, for any log
            hello["log"] = self._seq_log
        damped = self._damped
        self._goes_back = False
        if hello["ack"] and damped is not None and damped.damper.position is not None:
            # The stored cursor follows what a link delivers. So have this link begin again
            # with the oldest offline that waits: a crash must not lose that.
            hello["after"] = damped.damper.position
            self._goes_back = True
        return encode(["hello", hello])

    def _begin(self, welcome: Welcome) -> bool:
        """Take the welcome of a link; return False if it needs another hello."""
        has_after = self._has_cursor and self._seq is not None
        if has_after and welcome.known and not self._has_begun:
            # `after` is for a new name, and this one has a position already.
            self._has_begun = True
            self._seq = self._seq_log = self.known_log = None
            return False
        new, damped = self._welcomed(welcome), self._damped
        if damped is not None and not (damped.has_begun and new is None):
            self.add(damped.damper.flush())  # of the log before
            damped.begin(welcome.next - 1)
        if new is not None:
            self._add(new, LOG_SEQ)
            self._dialer.say("the log is a new one: its records follow")
            if self._goes_back:
                # From that position, the link would skip the beginning of the new log.
                return False
        if self._seq is None and not welcome.known:
            # The sidecar has forgotten the position: begin with the oldest record.
            self._seq, self._seq_log = 0, welcome.log
            return False
        return True

    async def _learn_log(self) -> None:
        """Get the log's id by a hello of its own: a seq is a position in one log."""
        scope = self._options["scope"]
        hello = watcher_hello(random_name("watch"), scope, ack=False, kinds=())
        link = await self._dialer.open(lambda: encode(["hello", hello]))
        await link.aclose()
        after = self._seq
        if after is not None and after >= link.welcome.next:
            raise ReportError(
                f"after {after}: no such record yet, the newest is "
                f"{link.welcome.next - 1}"
            )
        self._seq_log = link.welcome.log

    async def acknowledge(self) -> None:
        if (link := self._link) is None or not self._options["ack"]:
            return
        ack = self._next_ack()
        if ack[0] < 1 or ack <= self._acked:
            return
        await self.send(link, ["ack", *ack])
        self._acked, self.acked_at = ack, anyio.current_time()

    async def send(self, link: SidecarLink, frame: list[object]) -> None:
        try:
            await link.send(frame)
        except BaseException:  # a part of it may be written
            self._link = None
            await link.aclose()
            raise

    async def drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.aclose()
