"""Counts and groups commands for timers, and applies them to rows."""

from collections import Counter
from collections.abc import Iterable
from itertools import chain
from operator import itemgetter
from typing import Any, Final, NamedTuple

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
    gateway_of,
    key_of,
    weight_of,
)

# The columns written for a new timer, for a changed one, and for one that only ended:
# nearly all do, and these few columns take half the work.
ADDED: Final = (
    "id", "gateway", "key", "ext", "state", "due", "next", "min_seq", "created", "changed",
)  # fmt: skip
CHANGED: Final = (
    "id", "state", "due", "next", "attempts", "seq", "message", "fired", "changed",
)  # fmt: skip
ENDED: Final = ("id", "state", "message", "changed")
_BY_ATTEMPT: Final = ("due", "attempts", "seq", "fired")


def _values_of(columns: tuple[str, ...]) -> "itemgetter[Any]":
    return itemgetter(*map(TimerState._fields.index, columns))


_added_values, _changed_values, _ended_values, _attempt_values = map(
    _values_of, (ADDED, CHANGED, ENDED, _BY_ATTEMPT)
)


class CommandsUnderWay:
    """Counts the commands that were issued and are not applied yet."""

    def __init__(self) -> None:
        self.new = 0  # the number of them that create a timer
        # Their number, by gateway and then by key or ext. Counters would be slower.
        self._of_keys: dict[str, dict[str, int]] = {}
        self._of_exts: dict[str, dict[str, int]] = {}

    def issue(self, command: TimerCommand) -> None:
        """Note that a command is issued."""
        name, counts = self._counts_for(command)
        counts[name] = counts.get(name, 0) + 1
        self.new += isinstance(command, CreateTimer)

    def settle(self, commands: Iterable[TimerCommand]) -> None:
        """Note that commands are applied."""
        for command in commands:
            name, counts = self._counts_for(command)
            if counts[name] == 1:
                del counts[name]
            else:
                counts[name] -= 1
            self.new -= isinstance(command, CreateTimer)

    def has(self, gateway: str, key: str, ext: str | None) -> bool:
        """Whether a command for this key or ext is under way."""
        return key in self._of_keys.get(gateway, ()) or (
            ext is not None and ext in self._of_exts.get(gateway, ())
        )

    def _counts_for(self, command: TimerCommand) -> tuple[str, dict[str, int]]:
        """The key under which a command is counted, and its counters."""
        name = key_of(command)
        if name is not None:
            return name[1], self._of_keys.setdefault(name[0], {})
        assert isinstance(command, CancelTimer)
        assert command.ext is not None
        return command.ext, self._of_exts.setdefault(command.gateway, {})


def by_gateway(
    commands: Iterable[TimerCommand],
) -> dict[str, tuple[list[TimerCommand], int]]:
    """Each gateway's commands, in order, and their total weight."""
    groups: dict[str, list[TimerCommand]] = {}
    for command in commands:
        groups.setdefault(gateway_of(command), []).append(command)
    return {
        gateway: (group, sum(map(weight_of, group)))
        for gateway, group in groups.items()
    }


class Named(NamedTuple):
    """The timers that some commands name."""

    keys: list[str]  # gateways and keys, alternating; each pair once
    exts: list[tuple[str, str, int]]  # a cancel: gateway, ext, below which id
    newest: int  # the highest seq of an attempt that began; 0: none


def named_by(commands: Iterable[TimerCommand]) -> Named:
    """The timers to read for a transaction of these commands, and their newest attempt."""
    keys: dict[tuple[str, str], None] = {}
    exts: dict[tuple[str, str, int], None] = {}
    newest = 0
    for command in commands:
        key = key_of(command)
        if key is not None:
            keys[key] = None
        else:
            assert isinstance(command, CancelTimer)
            assert command.ext is not None
            exts[command.gateway, command.ext, command.below] = None
        if isinstance(command, Fire):
            newest = max(newest, command.seq)
    return Named([*chain.from_iterable(keys)], [*exts], newest)


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
        self.payloads: dict[int, str | None] = {}  # of new timers
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
        # The values of the rows to write, row after row. A new row has its payload last;
        # a new timer that already had an attempt is in both.
        self.added_values: list[Any] = []  # for the columns `ADDED`
        self.changed_values: list[Any] = []
        self.ended_values: list[Any] = []
        for timer in self.changed:
            former = before.get(timer.id)
            if former is not None:
                self.states[former.state] -= 1
            if former is None:
                self.added_values += _added_values(timer)
                self.added_values.append(self.payloads[timer.id])
                if timer.seq is not None:
                    self.changed_values += _changed_values(timer)
            elif timer.is_live or _attempt_values(timer) != _attempt_values(former):
                self.changed_values += _changed_values(timer)
            else:
                self.ended_values += _ended_values(timer)

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
        self.payloads[timer.id] = command.payload
        self._set(timer)
        self._index(timer)

    def _fire(self, command: Fire) -> None:
        timer = self._newest_timer(command.gateway, command.key)
        if (
            timer is None
            or timer.attempts != command.attempt - 1
            or command.seq < max(timer.min_seq, (timer.seq or 0) + 1)
        ):
            return
        state, next_ms, changed = timer.state, timer.next, timer.changed
        if state == PENDING:
            next_ms = command.at + self._retry_policy.attempt_ms
            state, changed = FIRED, command.at
        # Otherwise it was cancelled after the record was made, and only seq and attempt
        # change. Here and in `_end` a new object is made: `_replace` is half as fast.
        self._set(
            TimerState(
                timer.id, timer.gateway, timer.key, timer.ext, state, timer.due,
                next_ms, command.attempt, command.seq, timer.min_seq, timer.message,
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
                timer.attempts, timer.seq, timer.min_seq, message, timer.created,
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
        """Index *timer* by its key and ext."""
        key = (timer.gateway, timer.key)
        self._newest[key] = max(timer.id, self._newest.get(key, 0))
        if timer.ext is not None:
            self._by_ext.setdefault((timer.gateway, timer.ext), []).append(timer.id)

    def _set(self, timer: TimerState) -> None:
        self._after[timer.id] = timer
