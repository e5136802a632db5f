"""Timers: their states, and the commands that take them from one state to the next.

A timer is a row of a table, which may hold far more timers than memory. A *command* comes
from its gateway, from the ring on which it comes due, or from an operator. The writer of
the table applies commands in the order in which they came. A `TimerTransaction` works out
the new rows, inside the database transaction that writes them.

    pending -> fired -> done                  it came due; its gateway did it
       ^         |----> pending               it failed or was not answered: a retry
       |         |----> pending               its record cannot be delivered: at once
       |         '----> failed                for good, or no retries are left
       '-- retry by an operator
    pending or fired -> cancelled, replaced   by another command of its gateway

Of a gateway's timers with one key only the newest may be *live*: pending or fired. All
times here are milliseconds of the timers' clock: wall time as of the start, and monotonic
time since (see `timer_scheduler`).

Source: the retries of payment notifications: a table with states and a fixed schedule.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from operator import itemgetter
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
# answer that came after the attempt or the timer was over.
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
    due: int  # when the next attempt is due, or the present one was
    next: int | None  # when it comes due on the ring; None: never again
    attempts: int
    seq: int | None  # the record of the latest attempt
    since: int  # no record of this timer has a lower seq
    message: str | None  # of the latest answer, or why there was none
    created: int
    fired: int | None
    changed: int

    @property
    def is_live(self) -> bool:
        """Whether it is pending or fired."""
        return self.next is not None


_STATE: Final = itemgetter(TimerState._fields.index("state"))


class RetryPolicy(NamedTuple):
    """How long an attempt may take, and how long to wait before each further one."""

    attempt_ms: int
    waits_ms: tuple[int, ...]


# A minute for an attempt, and retries over a day, as is usual for payment notifications.
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
    """End an attempt by its gateway's answer."""

    gateway: str
    key: str
    seq: int | None
    is_done: bool
    message: str | None
    is_final: bool
    at: int


class Fire(NamedTuple):
    """Note that the record *seq* began an attempt.

    The record is in the log before the attempt is in the table. After a crash in between,
    this command is issued again, from the log; an attempt that the table has already
    stays as it is.
    """

    gateway: str
    key: str
    attempt: int
    seq: int
    at: int


class GiveUp(NamedTuple):
    """End the attempt that the record *seq* began: it was not answered in time."""

    gateway: str
    key: str
    seq: int
    at: int


class LookLater(NamedTuple):
    """Wait longer for an answer to that attempt: its gateway had too little time."""

    gateway: str
    key: str
    seq: int
    until: int


class Undelivered(NamedTuple):
    """Take back the attempt that the record *seq* began: it cannot be delivered."""

    gateway: str
    key: str
    seq: int
    at: int


class RetryTimer(NamedTuple):
    """Fire the timer of a key now, as its first attempt; for an operator."""

    gateway: str
    key: str
    at: int


# A text of fewer characters than this has less than a KiB, in any script.
SHORT_CHARACTERS: Final = 256

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


def key_of(command: TimerCommand) -> tuple[str, str] | None:
    """Gateway and key of a command's timer; None if the command names an ext."""
    if isinstance(command, CreateTimer):
        return command.timer.gateway, command.timer.key
    return None if command.key is None else (command.gateway, command.key)


def gateway_of(command: TimerCommand) -> str:
    """The gateway of a command's timers."""
    return (
        command.timer.gateway if isinstance(command, CreateTimer) else command.gateway
    )


def weight_of(command: TimerCommand) -> int:
    """How much a command adds to a transaction: 1, and 1 for each KiB of its text."""
    text = (
        command.payload
        if isinstance(command, CreateTimer)
        else command.message
        if isinstance(command, CompleteTimer)
        else None
    )
    if not text or len(text) < SHORT_CHARACTERS:
        return 1
    return 1 + len(text.encode()) // 1024


def split_new_timers(
    commands: Iterable[TimerCommand], waiting: Collection[tuple[str, str]] | None = None
) -> tuple[list[TimerCommand], list[TimerCommand]]:
    """Separate commands that may need a larger table from those that do not.

    Args:
        commands: In the command in which they came.
        waiting: Gateway and key of new timers that wait for room already. None: all new
            timers wait now; otherwise only those of gateways that have one waiting.
    Returns:
        The commands that can be applied now; and new timers, with the later commands for
        their keys. A cancel by ext is in both lists: it ends timers of the table, and
        new timers that came before it.
    """
    now, later = list[TimerCommand](), list[TimerCommand]()
    keys = {*(waiting or ())}
    gateways = {gateway for gateway, _ in keys}
    for command in commands:
        key, gateway = key_of(command), gateway_of(command)
        is_new = isinstance(command, CreateTimer)
        if is_new and key is not None and (waiting is None or gateway in gateways):
            keys.add(key)
            gateways.add(gateway)
        # A timer that fires is in the table.
        waits = not isinstance(command, Fire) and (
            gateway in gateways if key is None else key in keys
        )
        if waits:
            later.append(command)
        if not waits or key is None:
            now.append(command)
    return now, later


class TimerTransaction:
    """The rows that one transaction changes.

    Args:
        commands: In the command in which they came.
        found: The newest timer of every key that the commands name, where there is one,
            and the live timers of every ext that they name.
        retry_policy: When the next attempt is made.
    """

    def __init__(
        self,
        commands: Iterable[TimerCommand],
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
        for command in commands:
            self._apply(command)
        # The timers that are new or changed, as they are now.
        self.changed = [
            timer
            for number, timer in self._after.items()
            if self.before.get(number) is not timer
        ]
        # By how much the number of timers in each state changes.
        self.states = Counter(map(_STATE, self.changed))
        self.states.subtract(
            self.before[timer.id].state
            for timer in self.changed
            if timer.id in self.before
        )

    # --- commands -------------------------------------------------------------

    def _apply(self, command: TimerCommand) -> None:
        match command:
            case CreateTimer():
                self._create(command)
            case CancelTimer():
                for timer in self._timers_to_cancel(command):
                    if timer.id < command.below:
                        self._end(timer, CANCELLED, command.at, timer.message)
            case CompleteTimer():
                self._complete(command)
            case Fire():
                self._fire(command)
            case GiveUp() | LookLater() | Undelivered():
                self._end_attempt(command)
            case RetryTimer():
                self._try_again(command)

    def _create(self, command: CreateTimer) -> None:
        timer = command.timer
        number = self._newest.get((timer.gateway, timer.key))
        if number is not None and (former := self._after[number]).is_live:
            self._end(former, REPLACED, timer.created, former.message)
        self.added.append(command)
        self._set(timer)
        self._index(timer)

    def _fire(self, command: Fire) -> None:
        timer = self._newest_timer(command.gateway, command.key)
        if (
            timer is None
            or timer.attempts != command.attempt - 1
            or command.seq < max(timer.since, (timer.seq or 0) + 1)
        ):
            return
        state, next_ms, changed = timer.state, timer.next, timer.changed
        if state == PENDING:
            next_ms = command.at + self._retry_policy.attempt_ms
            state, changed = FIRED, command.at
        # Otherwise it was cancelled after the record was made, and only seq and attempt
        # change. Here and in `_end` the call is spelled out: `_replace` is half as fast.
        self._set(
            TimerState(
                timer.id, timer.gateway, timer.key, timer.ext, state, timer.due,
                next_ms, command.attempt, command.seq, timer.since, timer.message,
                timer.created, command.at, changed,
            )
        )  # fmt: skip

    def _end_attempt(self, command: GiveUp | LookLater | Undelivered) -> None:
        timer = self._live(command.gateway, command.key)
        if timer is None or timer.state != FIRED or timer.seq != command.seq:
            return
        if isinstance(command, LookLater):
            self._set(timer._replace(next=command.until))
        elif isinstance(command, Undelivered):
            self._set(
                timer._replace(
                    state=PENDING,
                    next=command.at,
                    attempts=timer.attempts - 1,
                    changed=command.at,
                )
            )
        else:
            self.results[UNANSWERED] += 1
            message = f"no answer within {self._retry_policy.attempt_ms / 1000:g} s"
            self._fail(timer, message, command.at, is_final=False)

    def _complete(self, command: CompleteTimer) -> None:
        timer = self._live(command.gateway, command.key)
        if timer is None or timer.seq is None:
            self.results[LATE] += 1
        elif command.is_done and (
            command.seq is None
            # A timer with seq 0 fired in another log, whose seqs are unknown here.
            or timer.since <= command.seq <= (timer.seq or command.seq)
        ):
            # Even if it is pending again, for a retry: the work is done.
            self.results[DONE] += 1
            self._end(timer, DONE, command.at, command.message)
        elif (
            not command.is_done
            and timer.state == FIRED
            and command.seq in (None, timer.seq)
        ):
            self.results[FAIL] += 1
            self._fail(timer, command.message, command.at, is_final=command.is_final)
        else:
            self.results[LATE] += 1

    def _try_again(self, command: RetryTimer) -> None:
        timer = self._newest_timer(command.gateway, command.key)
        if timer is not None and timer.state in (PENDING, FAILED):
            self._set(
                timer._replace(
                    state=PENDING,
                    due=command.at,
                    next=command.at,
                    attempts=0,
                    changed=command.at,
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

    def _timers_to_cancel(self, command: CancelTimer) -> list[TimerState]:
        """The live timers that a cancel ends."""
        if command.key is not None:
            timer = self._live(command.gateway, command.key)
            return [] if timer is None else [timer]
        assert command.ext is not None
        ext = command.gateway, command.ext
        numbers = self._by_ext.get(ext, [])
        live = [
            self._after[number] for number in numbers if self._after[number].is_live
        ]
        # The same cancel may come a thousand times: list only the live ones for it.
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
