"""Timers that have fired, until a task takes them.

Each firing of a timer is an *attempt*. It waits in the queue of the task with the longest
matching prefix of its key. Attempts without a task wait for one that is added later. Each
task has its own queue with its own bound, so a hanging task delays no other.

Attempts are acknowledged when they arrive: an ack covers all records before it, so a slow
task would otherwise delay the ends of connections. Nothing is lost, as the sidecar fires a
timer again if its attempt is not answered. So a full queue may drop attempts; the timer
then has one attempt less.

For each key at most one attempt runs and at most one more waits, the newest. So a task that
hangs on a timer does not get the later attempts of that timer as well.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from liveness.errors import ReportError

# Most attempts in a queue: those of the sidecar's window; with payloads, about 45 MB.
MAX_WAITING: Final = 10_000
DEFAULT_AT_ONCE: Final = 10
MAX_AT_ONCE: Final = 10_000


class Timer(NamedTuple):
    """A timer that has fired, as a task gets it: one attempt of it.

    Attributes:
        key: As given to `after`; so are `payload` and `ext`, None if there was none.
        due: When this attempt was due, in Unix milliseconds.
        attempt: The number of this attempt, from 1.
        seq: The number of its record, in the log of this id, `log`.
    """

    key: str
    payload: str | None
    ext: str | None
    due: int
    attempt: int
    seq: int
    log: str


class AttemptQueue:
    """The attempts whose key begins with *prefix*; only the newest for each key.

    At most *at_once* run at the same time.
    """

    def __init__(
        self, prefix: str, at_once: int, function: Callable[[Timer], Any] | None
    ) -> None:
        self.prefix = prefix
        self.function = function
        self._at_once = at_once
        # An OrderedDict, as popping the front of a plain dict gets slower each time.
        self._waiting: OrderedDict[str, Timer] = OrderedDict()
        self._running: dict[str, Timer | None] = {}  # by key: the attempt to run next

    def add(self, attempt: Timer) -> bool:
        """Add an attempt; if its key is running, it waits until that has ended.

        Returns:
            False if the queue is full.
        """
        key = attempt.key
        if key in self._running:
            self._running[key] = attempt
        elif len(self._waiting) >= MAX_WAITING and key not in self._waiting:
            return False
        else:
            self._waiting[key] = attempt
        return True

    def take(self) -> Timer | None:
        """Take the first attempt if one more may run; call `ended` after it has run."""
        if not self._waiting or len(self._running) == self._at_once:
            return None
        attempt = self._waiting.popitem(last=False)[1]
        self._running[attempt.key] = None
        return attempt

    def ended(self, attempt: Timer) -> None:
        following = self._running.pop(attempt.key)
        if following is not None:
            self._waiting[attempt.key] = following

    def forget(self, key: str) -> None:
        """Drop the waiting attempt of this key; a running one continues."""
        self._waiting.pop(key, None)
        if key in self._running:
            self._running[key] = None

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Timer]:
        yield from self._waiting.values()
        yield from filter(None, self._running.values())


class TaskQueues:
    """The queues of all tasks, and one for attempts that belong to no task."""

    def __init__(self) -> None:
        self.unclaimed = AttemptQueue("", 0, None)
        self.dropped = 0  # attempts for which there was no room
        self.queues: list[AttemptQueue] = []  # the longest prefix first
        self._is_unclaimed_logged = False

    def add_task(
        self,
        prefix: str,
        at_once: int,
        function: Callable[[Timer], Any] | None = None,
    ) -> AttemptQueue:
        """Add the queue of a task, and move waiting attempts that belong to it.

        Raises:
            ReportError: An argument is invalid, or the prefix has a task already.
        """
        if not isinstance(prefix, str):
            raise ReportError(
                f"prefix is {prefix!r:.80}; it must be a string that keys begin with"
            )
        if type(at_once) is not int or not 1 <= at_once <= MAX_AT_ONCE:
            raise ReportError(
                f"at_once is {at_once!r:.40}; it must be 1 to {MAX_AT_ONCE}"
            )
        if any(queue.prefix == prefix for queue in self.queues):
            raise ReportError(
                f"there is a task for {prefix!r:.80} already; use another prefix"
            )
        queue = AttemptQueue(prefix, at_once, function)
        before = self._queue_of(prefix)
        self.queues.append(queue)
        self.queues.sort(key=lambda queue: len(queue.prefix), reverse=True)
        for attempt in [each for each in before if each.key.startswith(prefix)]:
            before.forget(attempt.key)
            queue.add(attempt)
        return queue

    def add(self, attempt: Timer) -> str | None:
        """Add an attempt to its queue; return what to log, if anything."""
        queue = self._queue_of(attempt.key)
        if not queue.add(attempt):
            self.dropped += 1
            return (
                f"{MAX_WAITING} timers wait for the task {queue.prefix!r}, and further ones "
                "are dropped; the sidecar fires those again after the run timeout"
            )
        if queue is self.unclaimed and not self._is_unclaimed_logged:
            self._is_unclaimed_logged = True
            return (
                f"the timer {attempt.key!r} has fired, and there is no task for it; such "
                "timers fire again a few times and then fail"
            )
        return None

    def forget(self, key: str) -> None:
        self._queue_of(key).forget(key)

    def forget_ext(self, ext: str) -> None:
        for queue in (*self.queues, self.unclaimed):
            for key in [attempt.key for attempt in queue if attempt.ext == ext]:
                queue.forget(key)

    @property
    def waiting(self) -> int:
        return sum(map(len, self.queues)) + len(self.unclaimed)

    def _queue_of(self, key: str) -> AttemptQueue:
        matching = (queue for queue in self.queues if key.startswith(queue.prefix))
        return next(matching, self.unclaimed)
