"""Timers that have fired, until somebody takes them.

Each firing is a *run*. It waits in the *lane* of the task whose prefix is the longest
that its key begins with, or, where no task takes it, for whoever reads. A lane is the
task's own, and so is its bound: one that stands still delays no other.

A run is acknowledged as it comes in, for acks are one number, and a slow task would
keep back the ends of connections. Nothing is lost by it: a run that nobody answers
comes again, from the sidecar's table. For the same reason a lane may be full: what is
not kept then comes again too, later and with one attempt less.

Of each key at most one run is under way and one more waits, the newest: a task that
never comes back from one timer is not given its next attempts too.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

from liveness.errors import ReportError

# In a lane: as many as the sidecar has in flight, at most some 45 MB of payloads.
MOST_WAITING: Final = 10_000
AT_ONCE: Final = 10
MOST_AT_ONCE: Final = 10_000
# About so many groups of keys it is said that nobody takes them.
MOST_GROUPS: Final = 100


class Run(NamedTuple):
    """One firing of a timer, as its record tells of it."""

    log: str
    seq: int
    key: str
    payload: str | None
    ext: str | None
    due: int  # ms
    attempt: int


class TaskQueue:
    """Runs that wait to be taken, the oldest first; of each key the newest."""

    def __init__(self) -> None:
        # Taking from the front of a plain dict takes the longer the more was taken.
        self.waiting: OrderedDict[str, Run] = OrderedDict()
        self.is_overfull = False  # since it was empty

    def add(self, run: Run) -> bool:
        """Have a run wait, in the place of an older one of its key; False: no room."""
        if len(self.waiting) >= MOST_WAITING and run.key not in self.waiting:
            return False
        self.waiting[run.key] = run
        return True

    def take(self) -> Run | None:
        """Take the first run that may be started now."""
        if self.waiting:
            return self.waiting.popitem(last=False)[1]
        self.is_overfull = False
        return None

    def forget(self, key: str) -> None:
        """Have a run of this key wait no more: the timer is cancelled or replaced."""
        self.waiting.pop(key, None)

    def __len__(self) -> int:
        """How many wait."""
        return len(self.waiting)

    def __iter__(self) -> Iterator[Run]:
        """Those that wait."""
        return iter(self.waiting.values())


class TaskLane(TaskQueue):
    """The runs of one task: those whose key begins with *prefix*.

    Args:
        prefix: Empty for every key.
        at_once: How many may be under way.
    """

    def __init__(self, prefix: str, at_once: int) -> None:
        super().__init__()
        self.prefix = prefix
        self.at_once = at_once
        self.running: dict[str, Run | None] = {}  # by key: the run to come after that

    def add(self, run: Run) -> bool:
        """Have a run wait; one whose key is under way, until that has ended."""
        if run.key in self.running:
            self.running[run.key] = run
            return True
        return super().add(run)

    def take(self) -> Run | None:
        """Take the first run, if another may be under way; `ended` has to follow."""
        if len(self.running) >= self.at_once:
            return None
        run = super().take()
        if run is not None:
            self.running[run.key] = None
        return run

    def ended(self, run: Run) -> None:
        """Note that a run that was taken is under way no more."""
        following = self.running.pop(run.key)
        if following is not None:
            self.waiting[run.key] = following

    def forget(self, key: str) -> None:
        """Have a run of this key wait no more; what is under way goes on."""
        super().forget(key)
        if key in self.running:
            self.running[key] = None

    def __len__(self) -> int:
        """How many wait."""
        return len(self.waiting) + sum(map(bool, self.running.values()))

    def __iter__(self) -> Iterator[Run]:
        """Those that wait."""
        yield from self.waiting.values()
        yield from filter(None, self.running.values())


class Tasks:
    """Who takes which run."""

    def __init__(self) -> None:
        self.rest = TaskQueue()  # what no task takes
        self.is_read = False  # whether anybody ever asked for the rest
        self.unkept = 0  # runs that there was no room for
        self._lanes: list[TaskLane] = []  # the longest prefix first
        self._groups: set[str] = set()  # of keys that nobody takes, which was said

    def open(self, prefix: str, at_once: int) -> TaskLane:
        """Open the lane of a task; what waits elsewhere and is for it changes over.

        Raises:
            ReportError: There is one of that prefix, or one of these cannot be.
        """
        if not isinstance(prefix, str):
            raise ReportError(
                f"prefix is {prefix!r:.80}; it must be a string that keys begin with"
            )
        if type(at_once) is not int or not 1 <= at_once <= MOST_AT_ONCE:
            raise ReportError(
                f"at_once is {at_once!r:.40}; it must be 1 to {MOST_AT_ONCE}"
            )
        if any(lane.prefix == prefix for lane in self._lanes):
            raise ReportError(
                f"there is a task for {prefix!r:.80} already; each prefix has one"
            )
        lane = TaskLane(prefix, at_once)
        before = self._lane_of(prefix)
        self._lanes.append(lane)
        self._lanes.sort(key=lambda one: len(one.prefix), reverse=True)
        for run in [run for run in before if run.key.startswith(prefix)]:
            before.forget(run.key)
            lane.add(run)
        return lane

    def add(self, run: Run) -> str | None:
        """Have a run wait for whoever takes it; return what should be logged of it."""
        lane = self._lane_of(run.key)
        if not lane.add(run):
            self.unkept += 1
            return self._say_overfull(lane)
        if lane is self.rest and not self.is_read:
            return self._say_unclaimed(run.key)
        return None

    def forget(self, key: str) -> None:
        """Let no run of this key be started any more."""
        self._lane_of(key).forget(key)

    def forget_ext(self, ext: str) -> None:
        """Let no run with this ext be started any more."""
        for lane in (*self._lanes, self.rest):
            for key in [run.key for run in lane if run.ext == ext]:
                lane.forget(key)

    @property
    def are_used(self) -> bool:
        """Whether anybody takes timers here."""
        return bool(self._lanes) or self.is_read

    @property
    def waiting(self) -> int:
        """How many runs wait."""
        return sum(map(len, self._lanes)) + len(self.rest)

    def _lane_of(self, key: str) -> TaskQueue:
        fitting = (lane for lane in self._lanes if key.startswith(lane.prefix))
        return next(fitting, self.rest)

    def _say_overfull(self, lane: TaskQueue) -> str | None:
        if lane.is_overfull:
            return None
        lane.is_overfull = True
        whose = (
            f"the task {lane.prefix!r}" if isinstance(lane, TaskLane) else "a reader"
        )
        return (
            f"{MOST_WAITING} timers wait for {whose}, and no more are kept; what comes "
            "beyond that is fired again after the run timeout"
        )

    def _say_unclaimed(self, key: str) -> str | None:
        group = key.partition(":")[0]
        if group in self._groups or len(self._groups) >= MOST_GROUPS:
            return None
        self._groups.add(group)
        return (
            f"the timer {key!r} has fired, and there is no task for it and nobody reads "
            "timers(); it comes again for a while, and ends as failed"
        )
