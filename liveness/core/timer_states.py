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
times here are milliseconds of the state's clock (see `state_time`).

Source: the retries of payment notifications: a table with states and a fixed schedule.
"""

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
        """Whether it is pending or fired."""
        return self.next is not None


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
    """The weight of a command in a transaction: 1, and 1 for each KiB of its text."""
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
        commands: In the order of arrival.
        waiting: Gateway and key of new timers that already wait for room. None: all new
            timers wait now; otherwise only those of gateways with a waiting one.
    Returns:
        The commands that can be applied now; and new timers, with the later commands for
        their keys. A cancel by ext is in both lists: it ends timers of the table, and
        earlier new timers.
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
