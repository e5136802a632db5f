"""Timers: their states, and the commands that take them from one state to the next.

A timer is a row of a table, which may have far more timers than fit into memory. A
*command* comes from its gateway, from the ring on which it comes due, or from an operator.
The writer of the table applies commands in the order of arrival. A `TimerTransaction`
computes the new rows, inside the database transaction that writes them (see
`timer_commands`).

    pending -> fired -> done                  it came due; its gateway did it
       ^         |----> pending               it failed or was not answered: a retry
       |         |----> pending               its record cannot be delivered: at once
       |         '----> failed                for good, or no retries are left
       '-- retry by an operator
    pending or fired -> cancelled, replaced   by another command of its gateway

Of a gateway's timers with one key only the newest may be *live*: pending or fired. All
times here are milliseconds of the state's clock (see `service.common.clock`).

Source: the retries of payment notifications: a table with states and a fixed schedule.
"""

from typing import Final, NamedTuple, TypeAlias

PENDING: Final = "pending"
FIRED: Final = "fired"
DONE: Final = "done"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
REPLACED: Final = "replaced"
LIVE: Final = (PENDING, FIRED)
STATES: Final = (*LIVE, DONE, FAILED, CANCELLED, REPLACED)

# Results of attempts, as in `liveness_timer_attempts_total{result}`. Late: an answer that
# came after the attempt or the timer was over.
FAIL: Final = "fail"
UNANSWERED: Final = "unanswered"
LATE: Final = "late"
RESULTS: Final = (DONE, FAIL, UNANSWERED, LATE)


class TimerState(NamedTuple):
    """A timer's row in the table, without its payload."""

    id: int  # grows with every `after`
    gateway: str
    key: str
    ext: str | None
    state: str
    due: int  # when the next attempt is due, or the current one was
    next: int | None  # when it comes due on the ring; None: never again
    attempts: int
    seq: int | None  # the record of the latest attempt
    min_seq: int  # no record of this timer has a lower seq
    message: str | None  # of the latest answer, or the reason for none
    created: int
    fired: int | None
    changed: int

    @property
    def is_live(self) -> bool:
        return self.next is not None


AWAY_ATTEMPTS: Final = 10
MOST_AWAY_MS: Final = 600_000


class RetryPolicy(NamedTuple):
    """How long an attempt may take, and how long to wait before each further one."""

    attempt_ms: int
    waits_ms: tuple[int, ...]

    @property
    def away_ms(self) -> int:
        """After how long to look again at an attempt whose record was not delivered.

        A gateway that is away for long may have a million of them.
        """
        return max(self.attempt_ms, min(AWAY_ATTEMPTS * self.attempt_ms, MOST_AWAY_MS))


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

    @property
    def gateway(self) -> str:
        return self.timer.gateway

    @property
    def key(self) -> str:
        return self.timer.key


class CancelTimer(NamedTuple):
    """Cancel the live timer of a key, or all live timers of an ext with lower ids.

    Of key and ext, one is None.
    """

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
    """Note that an attempt began by the record *seq*.

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
