"""Timers: the states they go through, and what takes them from one to the next.

A timer is a row of a table, of which there may be far more than memory holds. What is
asked of it (by its gateway, by the ring on which it comes due, by an operator) is an
*order*. Whoever writes the table applies orders one after the other, in the order in
which they came, to the rows they are about: that is a `TimerTransaction`, made within the
transaction that writes what has changed.

    pending -> fired -> done                  it came due; its gateway did it
       ^         |----> pending               it failed or did not answer: a retry
       |         |----> pending               nobody will be told of it: tried at once
       |         '----> failed                for good, or the ladder has no more steps
       '-- retry of an operator
    pending or fired -> cancelled, replaced   told so meanwhile

Of the timers of one gateway with one key only the newest may be *live*: pending or
fired. All times here are milliseconds of the timers' clock: wall time as of the
start, and monotonic since (see `timer_scheduler`).

Source: a table with states and a ladder of retries, as payment notifications have it.
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

# What became of an attempt, as `liveness_timer_attempts_total{result}` shows it. Late:
# an answer that nobody waited for, since the run or the timer was over.
FAIL: Final = "fail"
UNANSWERED: Final = "unanswered"
LATE: Final = "late"
RESULTS: Final = (DONE, FAIL, UNANSWERED, LATE)


class TimerState(NamedTuple):
    """One timer as the table keeps it, but for its payload."""

    id: int  # grows with every `after`
    gateway: str
    key: str
    ext: str | None
    state: str
    due: int  # when the attempt is due that comes next, or was under way last
    next: int | None  # when it must be looked at; None: no more
    attempts: int
    seq: int | None  # the record of the latest run
    since: int  # no record of this timer has a lower seq
    message: str | None  # of the latest answer, or why there was none
    created: int
    fired: int | None
    changed: int

    @property
    def is_live(self) -> bool:
        """Whether something may still become of it."""
        return self.next is not None


class RetryPolicy(NamedTuple):
    """How long a run may take, and how long to wait before each further attempt."""

    run_ms: int
    waits_ms: tuple[int, ...]


# A minute for a run, and the waits that payment notifications made customary: a day.
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
    """A timer is asked for; it replaces a live one of its key."""

    timer: TimerState
    payload: str | None


class CancelTimer(NamedTuple):
    """The live timer of a key is to be cancelled, or all of an ext with lower ids."""

    gateway: str
    key: str | None
    ext: str | None
    below: int
    at: int


class CompleteTimer(NamedTuple):
    """A gateway's answer to a run."""

    gateway: str
    key: str
    seq: int | None
    is_done: bool
    message: str | None
    is_final: bool
    at: int


class Fire(NamedTuple):
    """A run has begun, by the record *seq*.

    The record is in the log before the table knows of it. After a crash in between it
    is given anew, from the log, and whatever the table has already is left as it is.
    """

    gateway: str
    key: str
    attempt: int
    seq: int
    at: int


class GiveUp(NamedTuple):
    """The run that the record *seq* began has not been answered in time."""

    gateway: str
    key: str
    seq: int
    at: int


class LookLater(NamedTuple):
    """That run goes on, for no fault of whoever has not answered it."""

    gateway: str
    key: str
    seq: int
    until: int


class Undelivered(NamedTuple):
    """Of the run that the record *seq* began its gateway will not be told."""

    gateway: str
    key: str
    seq: int
    at: int


class RetryTimer(NamedTuple):
    """An operator wants the timer of a key tried now, from the first attempt on."""

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
    """Gateway and key of the one timer an order is about; None: of an ext's."""
    if isinstance(order, CreateTimer):
        return order.timer.gateway, order.timer.key
    return None if order.key is None else (order.gateway, order.key)


def gateway_of(order: TimerCommand) -> str:
    """The gateway of the timers an order is about."""
    return order.timer.gateway if isinstance(order, CreateTimer) else order.gateway


def weight_of(order: TimerCommand) -> int:
    """What it is to a transaction: one, and one more for each KiB of text that it carries."""
    text = (
        order.payload
        if isinstance(order, CreateTimer)
        else order.message
        if isinstance(order, CompleteTimer)
        else None
    )
    return 1 + len(text.encode()) // 1024 if text else 1


def without_new(
    orders: Iterable[TimerCommand], waiting: Collection[tuple[str, str]] | None = None
) -> tuple[list[TimerCommand], list[TimerCommand]]:
    """Part orders that may need a larger table from those that need none.

    Args:
        orders: In the order in which they came.
        waiting: Gateway and key of new timers that wait already. None: no new timer may
            be among the first; else only none of a gateway that has one waiting.
    Returns:
        Those that can be applied now; and new timers, with what is asked of their keys
        after them. A cancel by ext is among both: it is about what is there, and about
        new timers that were asked for before it.
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
        # A run is of a timer that the table has.
        waits = not isinstance(order, Fire) and (
            gateway in gateways if key is None else key in keys
        )
        if waits:
            later.append(order)
        if not waits or key is None:
            now.append(order)
    return now, later


class TimerTransaction:
    """What one transaction makes of its orders.

    Args:
        orders: In the order in which they came.
        found: Of every key that an order is about the newest timer, where there is one;
            and the live timers of every ext.
        ladder: How attempts follow each other.
    """

    def __init__(
        self,
        orders: Iterable[TimerCommand],
        found: Iterable[TimerState],
        ladder: RetryPolicy,
    ) -> None:
        self.added: list[CreateTimer] = []
        self.results: Counter[str] = Counter()  # of attempts
        self._retry_policy = ladder
        self.before: dict[int, TimerState] = {timer.id: timer for timer in found}
        self._after = dict(self.before)
        self._newest: dict[tuple[str, str], int] = {}
        self._by_ext: dict[tuple[str, str], list[int]] = {}
        for timer in self.before.values():
            self._index(timer)
        for order in orders:
            self._apply(order)
        # Those that are not what they were, or were not there, as they are now.
        self.changed = [
            timer
            for number, timer in self._after.items()
            if self.before.get(number) is not timer
        ]
        # How many more, or fewer, there now are in each state.
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
        number = self._newest.get((order.gateway, order.key))
        timer = None if number is None else self._after[number]
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
        # Else it was cancelled after that was decided, and before the table heard of it.
        # Spelled out here and in `_end`, where `_replace` takes twice as long.
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
            told = f"no answer within {self._retry_policy.run_ms / 1000:g} s"
            self._fail(timer, told, order.at, is_final=False)

    def _complete(self, reply: CompleteTimer) -> None:
        timer = self._live(reply.gateway, reply.key)
        if timer is None or timer.seq is None:
            self.results[LATE] += 1
        elif reply.is_done and (
            reply.seq is None
            # By record 0 it was fired in another log, whose numbers nobody knows here.
            or timer.since <= reply.seq <= (timer.seq or reply.seq)
        ):
            # Also while it waits for another attempt: the work was done.
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
        number = self._newest.get((order.gateway, order.key))
        timer = None if number is None else self._after[number]
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

    def _live(self, gateway: str, key: str) -> TimerState | None:
        number = self._newest.get((gateway, key))
        timer = None if number is None else self._after[number]
        return timer if timer is not None and timer.is_live else None

    def _timers_to_cancel(self, order: CancelTimer) -> list[TimerState]:
        """The live timers that a cancel is about."""
        if order.key is not None:
            timer = self._live(order.gateway, order.key)
            return [] if timer is None else [timer]
        assert order.ext is not None
        ext = order.gateway, order.ext
        numbers = self._by_ext.get(ext, [])
        live = [
            self._after[number] for number in numbers if self._after[number].is_live
        ]
        # The same cancel may come a thousand times, for a thousand timers.
        self._by_ext[ext] = [timer.id for timer in live]
        return live

    def _index(self, timer: TimerState) -> None:
        """Have *timer* found by its key and ext."""
        key = (timer.gateway, timer.key)
        self._newest[key] = max(timer.id, self._newest.get(key, 0))
        if timer.ext is not None:
            self._by_ext.setdefault((timer.gateway, timer.ext), []).append(timer.id)

    def _set(self, timer: TimerState) -> None:
        self._after[timer.id] = timer
