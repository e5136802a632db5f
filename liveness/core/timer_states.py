"""Timers: their states, and the orders that take them from one state to the next.

A timer is a row of a table, which may hold far more timers than memory. An *order* (a
`TimerCommand`) is what somebody wants of a timer: its gateway, the ring on which it comes
due, or an operator. The writer of the table applies orders in the order in which they
came. A `TimerTransaction` works out the new rows, inside the database transaction that
writes them.

    pending -> fired -> done                  it came due; its gateway did it
       ^         |----> pending               it failed or was not answered: a retry
       |         |----> pending               its record cannot be delivered: at once
       |         '----> failed                for good, or no retries are left
       '-- retry by an operator
    pending or fired -> cancelled, replaced   by another order of its gateway

Of a gateway's timers with one key only the newest may be *live*: pending or fired. All
times here are milliseconds of the timers' clock: wall time as of the start, and monotonic
time since (see `timer_scheduler`).

Source: a table with states and a schedule of retries, as payment notifications have it.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple, TypeAlias

PENDING: Final = "pending"
FIRED: Final = "fired"
DONE: Final = "done"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
REPLACED: Final = "replaced"
LIVE: Final = (PENDING, FIRED)
STATES: Final = (*LIVE, DONE, FAILED, CANCELLED, REPLACED)

# What became of an attempt, as `liveness_timer_attempts_total{result}` shows it. Late: an
# answer that came after the run or the timer was over.
FAIL: Final = "fail"
UNANSWERED: Final = "unanswered"
LATE: Final = "late"
RESULTS: Final = (DONE, FAIL, UNANSWERED, LATE)


class TimerState(NamedTuple):
    """A timer as the table has it, without its payload."""

    id: int  # grows with every `after`
    gateway: str
    key: str
    ext: str | None
    state: str
    due: int  # when the next attempt is due; while one runs, when that was
    next: int | None  # when it comes due on the ring; None: never again
    attempts: int
    seq: int | None  # the record of the latest run
    since: int  # no record of this timer has a lower seq
    message: str | None  # of the latest answer, or why there was none
    created: int
    fired: int | None
    changed: int

    @property
    def is_live(self) -> bool:
        """Whether it is pending or fired."""
        return self.next is not None


class RetryPolicy(NamedTuple):
    """How long a run may take, and how long to wait before each further attempt."""

    run_ms: int
    waits_ms: tuple[int, ...]


# A minute for a run, and retries over a day, as is customary for payment notifications.
RETRY_POLICY: Final = RetryPolicy(
    60_000,
    tuple(
        1_000 * wait_s
        for wait_s in (
            15, 15, 30, 180, 600, 1200, 1800, 1800, 1800, 3600, 10800, 10800, 10800,
            21600, 21600,
        )
    ),
)  # fmt: skip


class CreateTimer(NamedTuple):
    """Create a timer; it replaces a live one of its key."""

    timer: TimerState
    payload: str | None


class CancelTimer(NamedTuple):
    """Cancel the live timer of a key, or all live timers of an ext with lower ids."""

    gateway: str
    key: str | None
    ext: str | None
    below: int
    at: int


class CompleteTimer(NamedTuple):
    """End a run by its gateway's answer."""

    gateway: str
    key: str
    seq: int | None
    is_done: bool
    message: str | None
    is_final: bool
    at: int


class Fire(NamedTuple):
    """Note that the record *seq* began a run.

    The record is in the log before the run is in the table. After a crash in between,
    this order is issued again, from the log; a run that the table has already stays as
    it is.
    """

    gateway: str
    key: str
    attempt: int
    seq: int
    at: int


class GiveUp(NamedTuple):
    """End the run that the record *seq* began, as it was not answered in time."""

    gateway: str
    key: str
    seq: int
    at: int


class LookLater(NamedTuple):
    """Let that run go on: its gateway could not have answered it yet."""

    gateway: str
    key: str
    seq: int
    until: int


class Undelivered(NamedTuple):
    """Take back the run that the record *seq* began: it cannot be delivered."""

    gateway: str
    key: str
    seq: int
    at: int


class RetryTimer(NamedTuple):
    """Fire the timer of a key now, as its first attempt; an operator's order."""

    gateway: str
    key: str
    at: int


TimerCommand: TypeAlias = (
    CreateTimer
    | CancelTimer
    | CompleteTimer
    | Fire
    | GiveUp
    | LookLater
    | Undelivered
    | RetryTimer
)


def key_of(order: TimerCommand) -> tuple[str, str] | None:
    """Gateway and key of an order's timer; None if the order names an ext."""
    if isinstance(order, CreateTimer):
        return order.timer.gateway, order.timer.key
    return None if order.key is None else (order.gateway, order.key)


def gateway_of(order: TimerCommand) -> str:
    """The gateway of an order's timers."""
    return order.timer.gateway if isinstance(order, CreateTimer) else order.gateway


def weight_of(order: TimerCommand) -> int:
    """How much an order adds to a transaction: 1, and 1 for each KiB of its text."""
    text = (
        order.payload
        if isinstance(order, CreateTimer)
        else order.message
        if isinstance(order, CompleteTimer)
        else None
    )
    return 1 + len(text.encode()) // 1024 if text else 1


def split_new_timers(
    orders: Iterable[TimerCommand], waiting: Collection[tuple[str, str]] | None = None
) -> tuple[list[TimerCommand], list[TimerCommand]]:
    """Separate orders that may need a larger table from those that do not.

    Args:
        orders: In the order in which they came.
        waiting: Gateway and key of new timers that wait for room already. None: all new
            timers wait now; otherwise only those of gateways that have one waiting.
    Returns:
        The orders that can be applied now; and new timers, with the later orders for
        their keys. A cancel by ext is in both lists: it ends timers of the table, and
        new timers that came before it.
    """
    now, later = list[TimerCommand](), list[TimerCommand]()
    keys = {*(waiting or ())}
    gateways = {gateway for gateway, _ in keys}
    for order in orders:
        key, gateway = key_of(order), gateway_of(order)
        is_new = isinstance(order, CreateTimer)
        if is_new and key is not None and (waiting is None or gateway in gateways):
            keys.add(key)
            gateways.add(gateway)
        # A run's timer is in the table.
        waits = not isinstance(order, Fire) and (
            gateway in gateways if key is None else key in keys
        )
        if waits:
            later.append(order)
        if not waits or key is None:
            now.append(order)
    return now, later


class TimerTransaction:
    """The rows that one transaction changes.

    Args:
        orders: In the order in which they came.
        found: The newest timer of every key that the orders name, where there is one,
            and the live timers of every ext that they name.
        retry_policy: When the next attempt is made.
    """

    def __init__(
        self,
        orders: Iterable[TimerCommand],
        found: Iterable[TimerState],
        retry_policy: RetryPolicy,
    ) -> None:
        self.added: list[CreateTimer] = []
        self.results: Counter[str] = Counter()  # of attempts
        self._retry_policy = retry_policy
        self.before: dict[int, TimerState] = {timer.id: timer for timer in found}
        self._after = dict(self.before)
        self._newest: dict[tuple[str, str], int] = {}
        self._by_ext: dict[tuple[str, str], list[int]] = {}
        for timer in self.before.values():
            self._index(timer)
        for order in orders:
            self._apply(order)
        # The timers that are new or changed, as they are now.
        self.changed = [
            timer
            for number, timer in self._after.items()
            if self.before.get(number) is not timer
        ]
        # By how much the number of timers in each state changes.
        self.states: Counter[str] = Counter()
        for timer in self.changed:
            self.states[timer.state] += 1
            if timer.id in self.before:
                self.states[self.before[timer.id].state] -= 1

    # --- orders ---------------------------------------------------------------

    def _apply(self, order: TimerCommand) -> None:
        match order:
            case CreateTimer():
                self._create(order)
            case CancelTimer():
                for timer in self._timers_to_cancel(order):
                    if timer.id < order.below:
                        self._end(timer, CANCELLED, order.at, timer.message)
            case CompleteTimer():
                self._complete(order)
            case Fire():
                self._fire(order)
            case GiveUp() | LookLater() | Undelivered():
                self._end_run(order)
            case RetryTimer():
                self._try_again(order)

    def _create(self, order: CreateTimer) -> None:
        timer = order.timer
        former = self._live(timer.gateway, timer.key)
        if former is not None:
            self._end(former, REPLACED, timer.created, former.message)
        self.added.append(order)
        self._set(timer)
        self._index(timer)

    def _fire(self, order: Fire) -> None:
        timer = self._newest_timer(order.gateway, order.key)
        if (
            timer is None
            or timer.attempts != order.attempt - 1
            or order.seq < max(timer.since, (timer.seq or 0) + 1)
        ):
            return
        state, next_ms, changed = timer.state, timer.next, timer.changed
        if state == PENDING:
            next_ms = order.at + self._retry_policy.run_ms
            state, changed = FIRED, order.at
        # Otherwise it was cancelled after the record was made, and only seq and attempt
        # change. Here and in `_end` the call is spelled out: `_replace` is half as fast.
        self._set(
            TimerState(
                timer.id, timer.gateway, timer.key, timer.ext, state, timer.due,
                next_ms, order.attempt, order.seq, timer.since, timer.message,
                timer.created, order.at, changed,
            )
        )  # fmt: skip

    def _end_run(self, order: GiveUp | LookLater | Undelivered) -> None:
        timer = self._live(order.gateway, order.key)
        if timer is None or timer.state != FIRED or timer.seq != order.seq:
            return
        if isinstance(order, LookLater):
            self._set(timer._replace(next=order.until))
        elif isinstance(order, Undelivered):
            self._set(
                timer._replace(
                    state=PENDING,
                    next=order.at,
                    attempts=timer.attempts - 1,
                    changed=order.at,
                )
            )
        else:
            self.results[UNANSWERED] += 1
            message = f"no answer within {self._retry_policy.run_ms / 1000:g} s"
            self._fail(timer, message, order.at, is_final=False)

    def _complete(self, reply: CompleteTimer) -> None:
        timer = self._live(reply.gateway, reply.key)
        if timer is None or timer.seq is None:
            self.results[LATE] += 1
        elif reply.is_done and (
            reply.seq is None
            # A timer with seq 0 was fired in another log, whose seqs are unknown here.
            or timer.since <= reply.seq <= (timer.seq or reply.seq)
        ):
            # Also if it is pending by now, for a retry: the work is done.
            self.results[DONE] += 1
            self._end(timer, DONE, reply.at, reply.message)
        elif (
            not reply.is_done
            and timer.state == FIRED
            and reply.seq in (None, timer.seq)
        ):
            self.results[FAIL] += 1
            self._fail(timer, reply.message, reply.at, is_final=reply.is_final)
        else:
            self.results[LATE] += 1

    def _try_again(self, order: RetryTimer) -> None:
        timer = self._newest_timer(order.gateway, order.key)
        if timer is not None and timer.state in (PENDING, FAILED):
            self._set(
                timer._replace(
                    state=PENDING,
                    due=order.at,
                    next=order.at,
                    attempts=0,
                    changed=order.at,
                )
            )

    def _fail(
        self, timer: TimerState, message: str | None, at: int, *, is_final: bool
    ) -> None:
        waits = self._retry_policy.waits_ms
        if is_final or timer.attempts > len(waits):
            self._end(timer, FAILED, at, message)
            return
        due = at + waits[timer.attempts - 1]
        self._set(
            timer._replace(
                state=PENDING, due=due, next=due, message=message, changed=at
            )
        )

    def _end(self, timer: TimerState, state: str, at: int, message: str | None) -> None:
        self._set(
            TimerState(
                timer.id, timer.gateway, timer.key, timer.ext, state, timer.due, None,
                timer.attempts, timer.seq, timer.since, message, timer.created,
                timer.fired, at,
            )
        )  # fmt: skip

    # --- rows -----------------------------------------------------------------

    def _newest_timer(self, gateway: str, key: str) -> TimerState | None:
        number = self._newest.get((gateway, key))
        return None if number is None else self._after[number]

    def _live(self, gateway: str, key: str) -> TimerState | None:
        timer = self._newest_timer(gateway, key)
        return timer if timer is not None and timer.is_live else None

    def _timers_to_cancel(self, order: CancelTimer) -> list[TimerState]:
        """The live timers that a cancel ends."""
        if order.key is not None:
            timer = self._live(order.gateway, order.key)
            return [] if timer is None else [timer]
        assert order.ext is not None
        ext = order.gateway, order.ext
        numbers = self._by_ext.get(ext, [])
        live = [
            self._after[number] for number in numbers if self._after[number].is_live
        ]
        # The same cancel may come a thousand times: only the live ones stay listed.
        self._by_ext[ext] = [timer.id for timer in live]
        return live

    def _index(self, timer: TimerState) -> None:
        """Make *timer* known by its key and ext."""
        key = (timer.gateway, timer.key)
        self._newest[key] = max(timer.id, self._newest.get(key, 0))
        if timer.ext is not None:
            self._by_ext.setdefault((timer.gateway, timer.ext), []).append(timer.id)

    def _set(self, timer: TimerState) -> None:
        self._after[timer.id] = timer
