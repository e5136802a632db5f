"""Timers that have fired, until a task or a reader takes them.

Each firing of a timer is an *attempt*. It waits in the queue of the task with the longest
matching prefix of its key. Attempts without a task wait for a reader of `timers()`. Each
task has its own queue with its own bound, so a hanging task delays no other.

Attempts are acknowledged when they arrive: an ack covers all records before it, so a slow
task would otherwise delay the ends of connections. Nothing is lost, as the sidecar fires a
timer again if its attempt is not answered. So a full queue may drop attempts; the timer
then has one attempt less.

For each key at most one attempt runs and at most one more waits, the newest. So a task that
hangs on a timer does not get the later attempts of that timer as well.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

from liveness.errors import ReportError

# Most attempts in a queue: those of the sidecar's window; with payloads, about 45 MB.
MAX_WAITING: Final = 10_000
DEFAULT_AT_ONCE: Final = 10
MAX_AT_ONCE: Final = 10_000
# A timer without a task is logged once for each group of keys, for this many groups.
MAX_LOGGED_GROUPS: Final = 100


class Attempt(NamedTuple):
    """One firing of a timer, from its record."""

    log: str
    seq: int
    key: str
    payload: str | None
    ext: str | None
    due: int  # ms
    attempt: int  # from 1


class AttemptQueue:
    """Waiting attempts, oldest first; only the newest for each key."""

    def __init__(self) -> None:
        # An OrderedDict, as popping the front of a plain dict gets slower each time.
        self.waiting: OrderedDict[str, Attempt] = OrderedDict()
        self.overflow_logged = False  # since the queue was last empty

    def add(self, attempt: Attempt) -> bool:
        """Add an attempt, which replaces an older one of its key; False if full."""
        if len(self.waiting) >= MAX_WAITING and attempt.key not in self.waiting:
            return False
        self.waiting[attempt.key] = attempt
        return True

    def take(self) -> Attempt | None:
        """Take the first attempt that may start now."""
        if self.waiting:
            return self.waiting.popitem(last=False)[1]
        self.overflow_logged = False
        return None

    def forget(self, key: str) -> None:
        """Drop the waiting attempt of a timer that was cancelled or replaced."""
        self.waiting.pop(key, None)

    def __len__(self) -> int:
        return len(self.waiting)

    def __iter__(self) -> Iterator[Attempt]:
        return iter(self.waiting.values())


class TaskQueue(AttemptQueue):
    """The attempts of one task: those whose key begins with *prefix*.

    Args:
        prefix: Empty for every key.
        at_once: How many attempts may run at the same time.
    """

    def __init__(self, prefix: str, at_once: int) -> None:
        super().__init__()
        self.prefix = prefix
        self.at_once = at_once
        self.running: dict[str, Attempt | None] = {}  # by key: the attempt to run next

    def add(self, attempt: Attempt) -> bool:
        """Add an attempt; if its key is running, it waits until that has ended."""
        if attempt.key in self.running:
            self.running[attempt.key] = attempt
            return True
        return super().add(attempt)

    def take(self) -> Attempt | None:
        """Take the first attempt if one more may run; call `ended` after it has run."""
        if len(self.running) >= self.at_once:
            return None
        attempt = super().take()
        if attempt is not None:
            self.running[attempt.key] = None
        return attempt

    def ended(self, attempt: Attempt) -> None:
        """Note that an attempt no longer runs."""
        following = self.running.pop(attempt.key)
        if following is not None:
            self.waiting[attempt.key] = following

    def forget(self, key: str) -> None:
        """Drop the waiting attempt of this key; a running one continues."""
        super().forget(key)
        if key in self.running:
            self.running[key] = None

    def __len__(self) -> int:
        return len(self.waiting) + sum(map(bool, self.running.values()))

    def __iter__(self) -> Iterator[Attempt]:
        yield from self.waiting.values()
        yield from filter(None, self.running.values())


class TaskQueues:
    """The queues of all tasks, and one for attempts that belong to no task."""

    def __init__(self) -> None:
        self.unclaimed = AttemptQueue()
        self.has_reader = False  # whether attempts without a task were ever read
        self.dropped = 0  # attempts for which there was no room
        self._queues: list[TaskQueue] = []  # the longest prefix first
        self._logged_groups: set[str] = set()  # of keys without a task

    def add_task(self, prefix: str, at_once: int) -> TaskQueue:
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
        if any(queue.prefix == prefix for queue in self._queues):
            raise ReportError(
                f"there is a task for {prefix!r:.80} already; use another prefix"
            )
        queue = TaskQueue(prefix, at_once)
        before = self._queue_of(prefix)
        self._queues.append(queue)
        self._queues.sort(key=lambda queue: len(queue.prefix), reverse=True)
        for attempt in [each for each in before if each.key.startswith(prefix)]:
            before.forget(attempt.key)
            queue.add(attempt)
        return queue

    def add(self, attempt: Attempt) -> str | None:
        """Add an attempt to its queue; return what to log, if anything."""
        queue = self._queue_of(attempt.key)
        if not queue.add(attempt):
            self.dropped += 1
            return self._overflow_line(queue)
        if queue is self.unclaimed and not self.has_reader:
            return self._unclaimed_line(attempt.key)
        return None

    def forget(self, key: str) -> None:
        """Drop the waiting attempt of this key."""
        self._queue_of(key).forget(key)

    def forget_ext(self, ext: str) -> None:
        """Drop all waiting attempts with this ext."""
        for queue in (*self._queues, self.unclaimed):
            for key in [attempt.key for attempt in queue if attempt.ext == ext]:
                queue.forget(key)

    @property
    def has_consumers(self) -> bool:
        """Whether there is a task, or has been a reader of `timers()`."""
        return bool(self._queues) or self.has_reader

    @property
    def waiting(self) -> int:
        """How many attempts wait."""
        return sum(map(len, self._queues)) + len(self.unclaimed)

    def _queue_of(self, key: str) -> AttemptQueue:
        matching = (queue for queue in self._queues if key.startswith(queue.prefix))
        return next(matching, self.unclaimed)

    def _overflow_line(self, queue: AttemptQueue) -> str | None:
        if queue.overflow_logged:
            return None
        queue.overflow_logged = True
        consumer = (
            f"the task {queue.prefix!r}"
            if isinstance(queue, TaskQueue)
            else "a reader of timers()"
        )
        return (
            f"{MAX_WAITING} timers wait for {consumer}, and further ones are dropped; the "
            "sidecar fires those again after the run timeout"
        )

    def _unclaimed_line(self, key: str) -> str | None:
        group = key.partition(":")[0]
        if (
            group in self._logged_groups
            or len(self._logged_groups) >= MAX_LOGGED_GROUPS
        ):
            return None
        self._logged_groups.add(group)
        return (
            f"the timer {key!r} has fired, and there is no task for it and no loop over "
            "timers(); it fires again a few times and then fails"
        )
