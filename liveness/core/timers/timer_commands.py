"""Applies commands for timers to their rows."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from liveness.core.timer_states import (
    CANCELLED,
    DONE,
    FAIL,
    FAILED,
    FIRED,
    LATE,
    PENDING,
    REPLACED,
    UNANSWERED,
    CancelTimer,
    CompleteTimer,
    CreateTimer,
    Fire,
    GiveUp,
    LookLater,
    RetryPolicy,
    RetryTimer,
    TimerCommand,
    TimerState,
    Undelivered,
)


class TimerTransaction:
    """Applies commands to rows, in one transaction.

    Args:
        commands: In the order of arrival.
        found: Values of `TimerState`s: the newest timer of every key that the commands
            name, if it exists, and the live timers of every ext that they name.
        retry_policy: The times of further attempts.
    """

    def __init__(
        self,
        commands: Iterable[TimerCommand],
        found: Iterable[Iterable[Any]],
        retry_policy: RetryPolicy,
    ) -> None:
        self.results: Counter[str] = Counter()  # of attempts
        self.payloads: dict[int, str | None] = {}  # of new timers, by id
        self._retry_policy = retry_policy
        before = {timer.id: timer for timer in map(TimerState._make, found)}
        self._after = dict(before)
        self._newest: dict[tuple[str, str], int] = {}
        self._by_ext: dict[tuple[str, str], list[int]] = {}
        for timer in before.values():
            self._index(timer)
        for command in commands:
            self._apply(command)
        # The current state of new or changed timers.
        self.changed = [
            timer
            for number, timer in self._after.items()
            if before.get(number) is not timer
        ]
        # The change of the number of timers in each state.
        self.states = Counter(timer.state for timer in self.changed)
        self.states.subtract(
            before[timer.id].state for timer in self.changed if timer.id in before
        )

    # --- commands -------------------------------------------------------------

    def _apply(self, command: TimerCommand) -> None:
        match command:
            case CreateTimer():
                self._create(command)
            case CancelTimer(below=below, at=at):
                for timer in self._timers_to_cancel(command):
                    if timer.id < below:
                        self._end(timer, CANCELLED, at, timer.message)
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
        former = self._live(timer.gateway, timer.key)
        if former is not None:
            self._end(former, REPLACED, timer.created, former.message)
        self.payloads[timer.id] = command.payload
        self._after[timer.id] = timer
        self._index(timer)

    def _fire(self, command: Fire) -> None:
        timer = self._newest_timer(command.gateway, command.key)
        if (
            timer is None
            or timer.attempts != command.attempt - 1
            or command.seq < max(timer.min_seq, (timer.seq or 0) + 1)
        ):
            return
        if timer.state == PENDING:
            next_ms = command.at + self._retry_policy.attempt_ms
            timer = timer._replace(state=FIRED, next=next_ms, changed=command.at)
        # Otherwise it was cancelled after the record was made.
        self._after[timer.id] = timer._replace(
            attempts=command.attempt, seq=command.seq, fired=command.at
        )

    def _end_attempt(self, command: GiveUp | LookLater | Undelivered) -> None:
        timer = self._live(command.gateway, command.key)
        if timer is None or timer.state != FIRED or timer.seq != command.seq:
            return
        if isinstance(command, LookLater):
            self._after[timer.id] = timer._replace(next=command.until)
        elif isinstance(command, Undelivered):
            self._after[timer.id] = timer._replace(
                state=PENDING,
                next=command.at,
                attempts=timer.attempts - 1,
                changed=command.at,
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
            or timer.min_seq <= command.seq <= (timer.seq or command.seq)
        ):
            # The work is done, even if it is pending again for a retry.
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
            self._after[timer.id] = timer._replace(
                state=PENDING,
                due=command.at,
                next=command.at,
                attempts=0,
                changed=command.at,
            )

    def _fail(
        self, timer: TimerState, message: str | None, at: int, *, is_final: bool
    ) -> None:
        waits = self._retry_policy.waits_ms
        if is_final or timer.attempts > len(waits):
            self._end(timer, FAILED, at, message)
            return
        due = at + waits[timer.attempts - 1]
        self._after[timer.id] = timer._replace(
            state=PENDING, due=due, next=due, message=message, changed=at
        )

    def _end(self, timer: TimerState, state: str, at: int, message: str | None) -> None:
        self._after[timer.id] = timer._replace(
            state=state, next=None, message=message, changed=at
        )

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
        key = (timer.gateway, timer.key)
        self._newest[key] = max(timer.id, self._newest.get(key, 0))
        if timer.ext is not None:
            self._by_ext.setdefault((timer.gateway, timer.ext), []).append(timer.id)
