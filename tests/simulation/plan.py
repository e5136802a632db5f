"""The plan of a run, drawn from a seed before it begins.

A plan is a list of steps, each a plain value with a moment. So a run can be written as text,
and a shorter one found by leaving steps out.

Each run has some features and some faults only, and so rare ones meet; each feature draws
by a random of its own, so that a new one changes the runs that have it, and no other.
Most settings and durations are drawn by log scale. Limits are also drawn below what an
operator may set, so that a few users reach them.

Source:
    Groce et al., 2012: swarm testing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, TypeAlias

from liveness.client.protocol import LEAST_PING_S, PING_S
from liveness.config.cluster import ClusterSettings
from liveness.config.settings import (
    Config,
    GuardSettings,
    PresenceSettings,
    SocketSettings,
    StateSettings,
    TimerSettings,
)
from liveness.core.limits import Limits
from tests.promises.run_history import Uid
from tests.simulation.receivers import (
    FAILURES,
    FIRST_PORT,
    ReceiverPlan,
    drawn_receiver,
)
from tests.simulation.redis_server import CLUSTER
from tests.simulation.redis_server import FAILURES as REDIS_FAILURES
from tests.simulation.scales import by_scale, whole

# Beside plain ones those that are easily taken for each other.
UIDS: Final[list[Uid]] = [7, "7", "user:phone", "user:desk", "é", "E\u0301", 0]
WEEK_S: Final = 604_800.0
RETRIES_S: Final = (1, 2, 3)
DAY_S: Final = 86_400.0  # the longest timeout
# By how much a wall clock is wrong at most: from 1970 to 2100.
WRONG_S: Final = 2.4e9
# Everybody has connected by then, and what the disk owed is written.
SETTLE_S: Final = 5.0
# After all was done to anybody a run goes on no longer than this; what is due later is not
# waited for.
MOST_REST_S: Final = 40.0
# A call that fails as Redis is mended, the longest pauses, and one before a list.
CALLS_PAUSE_S: Final = 40.0
NO_GUARD: Final = GuardSettings()


class Visit(NamedTuple):
    at: float
    gateway: int
    uid: Uid
    talks_for_s: float  # 0: says nothing after its login
    every_s: float
    logs_out: bool
    timeout: float | None


class Remind(NamedTuple):
    """A gateway asks for a timer, and may cancel it."""

    at: float
    gateway: int
    key: str
    seconds: float
    cancelled_after_s: float | None


class Fault(NamedTuple):
    """Something is done to somebody."""

    at: float
    what: str
    target: int  # which gateway or watcher, if it is done to one
    lasts_s: float
    by_s: float = 0.0  # by how much a clock is wrong afterwards


@dataclass(frozen=True, slots=True)
class Greedy:
    """A watcher connects, asks for more than a socket holds, and does not read."""

    at: float
    unread_for_s: float


Step: TypeAlias = Visit | Remind | Fault | Greedy

# Of a gateway: what its hello says of its clock. In another time namespace it is shifted,
# and it goes on to say `began` although the sidecar has asked it not to.
CLOCKS: Final = ("host's", "host's", "host's", "not sent", "another namespace's")

# With how often each is drawn, of those that a run has.
FAULTS: Final = {
    "sidecar crashes": 4,
    "sidecar crashes in a write": 5,
    "sidecar restarts": 3,
    "sidecar paused": 4,
    "sidecar busy": 3,
    "sidecar slow": 3,
    "disk full": 2,
    "disk fails": 2,
    "disk stalls": 3,
    "disk gets no threads": 2,
    "disk rots": 2,
    "gateway crashes": 3,
    "gateway crashes, back fresh": 3,
    "gateway hangs": 4,
    "gateway loses its link": 4,
    "gateway connects anew": 3,
    "gateway floods": 2,
    "gateway repeats itself": 2,
    "gateway dies unread": 2,
    "watcher slow": 2,
    "watcher lost": 3,
    "socket removed": 1,
    "host sleeps": 2,
    "host boots": 2,
    "wall clock stepped": 3,
    "wall clock set right": 3,
    "state put back": 2,
}
# Of a disk that stalls for some time a call takes at most this share of it.
STALL_SHARE: Final = 1 / 3
ORDERS: Final = "gateway orders without end"
NOBODYS_KEY: Final = "nobody's"
CLOCK_FAULTS: Final = ("wall clock stepped", "host boots")
# The share of boots, or steps of a clock, that go wrong.
WRONG_SHARE: Final = 0.6


# Of a gateway with the library: whose ids its connections have.
CONNS: Final = ("its own", "the library's", "none")
LIBRARY_FAULTS: Final = ("gateway closes", "gateway blocks", "gateway connects anew")


@dataclass(frozen=True, slots=True)
class LibraryPlan:
    """How a gateway uses the project's own library."""

    conns: str  # see `CONNS`
    handler_s: float  # an end takes up to so long
    fails: float  # the share of its ends that raise


@dataclass(frozen=True, slots=True)
class GatewayPlan:
    name: str
    timeout: float | None
    ping: float | None
    other_timeout: float | None  # of its links in turns
    pings_every: float = 1 / 3  # of what it promised
    clock: str = "host's"  # by which its logins tell when they began: see `CLOCKS`
    library: LibraryPlan | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about a run that is settled beforehand."""

    seed: int
    timeout_s: float
    gateways: tuple[GatewayPlan, ...]
    watchers: int
    lasts_s: float
    steps: tuple[Step, ...]
    hold_s: float = 4.0
    run_timeout_s: float = 2.0
    max_pending: int = 30_000
    retention_s: float = WEEK_S
    unread_s: float = 30.0
    # "user:phone" and "user:desk", or "u-1" to "u-29"
    device_separator: str = ""
    slots: int = 30
    guard: GuardSettings = NO_GUARD
    limits: Mapping[str, int] = field(default_factory=dict)  # the others, by name
    receivers: tuple[ReceiverPlan, ...] = ()
    cluster: ClusterSettings | None = None
    watch_settle_s: float = 0.0  # of a watch of the library; 0: there is none

    @property
    def consequences_s(self) -> float:
        """How long after all was done to anybody its last consequence may come."""
        visits = [it for it in self.steps if isinstance(it, Visit)]
        timeouts = [visit.timeout or 0.0 for visit in visits]
        for it in self.gateways:
            timeouts += [of or self.timeout_s for of in (it.timeout, it.other_timeout)]
        rest_s = max(timeouts) + self.hold_s + self.guard_hold_s + SETTLE_S
        asked = [it.seconds for it in self.steps if isinstance(it, Remind)]
        if asked:
            # Four runs, and what is waited in between.
            rest_s += max(asked) + 4 * self.run_timeout_s + sum(RETRIES_S)
        return rest_s

    @property
    def rest_s(self) -> float:
        """How long a run goes on after all was done to anybody."""
        return min(self.consequences_s, MOST_REST_S) + max(
            (it.settings.settle_s for it in self.receivers), default=0.0
        )

    @property
    def publishes_in_s(self) -> float:
        """So long after Redis was mended it knows all: a call fails last, or it was emptied."""
        return self.cluster.lease_s / 6 + CALLS_PAUSE_S if self.cluster else 0.0

    @property
    def guard_hold_s(self) -> float:
        """How long the storm guard may hold a user."""
        return self.guard.hold_s if self.guard.enabled else 0.0

    def config(self, state: Path, socket: Path) -> Config:
        retries = ",".join(map(str, RETRIES_S))
        config = Config(
            timeout_s=self.timeout_s,
            slots=self.slots,
            socket=SocketSettings(path=socket),
            presence=PresenceSettings(device_separator=self.device_separator),
            state=StateSettings(dir=state),
            guard=self.guard,
            timers=TimerSettings(run_timeout_s=self.run_timeout_s, retries=retries),
        )
        limits = Limits(
            gateway_hold_s=self.hold_s,
            unread_s=self.unread_s,
            max_pending=self.max_pending,
            **self.limits,
        )
        # Lower bounds than an operator may set, so that a few users meet them.
        object.__setattr__(config, "limits", limits)
        object.__setattr__(config.state, "retention_s", self.retention_s)
        webhooks = {it.name: it.settings for it in self.receivers}
        object.__setattr__(config, "webhooks", webhooks)
        if self.cluster is not None:
            object.__setattr__(config, "cluster", self.cluster)
        return config


@dataclass(slots=True)
class Draft:
    timeout_s: float
    lasts_s: float
    gateways: list[GatewayPlan]
    uids: list[Uid]
    steps: list[Step] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)

    def moment(self, random: Random) -> float:
        return random.uniform(0, self.lasts_s - 5)


def plan_of(seed: int) -> Plan:
    random = Random(seed)
    # Mostly such that a user falls silent some times in a run.
    timeout_s = by_scale(random, 1.0, 10.0 if random.random() < 0.9 else DAY_S)
    draft = Draft(
        timeout_s,
        by_scale(random, 15, 90),
        [
            GatewayPlan(f"gw-{number}", None, None, None)
            for number in range(random.randint(1, 4))
        ],
        UIDS + [f"u-{n}" for n in range(random.choice([0, 5, 30]))],
    )
    _visits(draft, random)
    for name, (share, feature) in FEATURES.items():
        random = Random(f"{seed}, {name}")
        if random.random() < share:
            feature(draft, random)
    return Plan(
        seed=seed,
        timeout_s=timeout_s,
        gateways=tuple(draft.gateways),
        watchers=Random(f"{seed}, watchers").randint(0, 3),
        lasts_s=draft.lasts_s,
        steps=tuple(sorted(draft.steps, key=lambda step: step.at)),
        limits=draft.limits,
        **draft.settings,
    )


# --- users and gateways ---------------------------------------------------------


def _visits(draft: Draft, random: Random) -> None:
    for _ in range(random.randint(5, 20 + 2 * len(draft.uids))):
        gateway = random.randrange(len(draft.gateways))
        draft.steps.append(
            _visit(random, draft, draft.moment(random), gateway, draft.timeout_s)
        )


def _visit(
    random: Random, draft: Draft, at: float, gateway: int, timeout_s: float
) -> Visit:
    return Visit(
        at=at,
        gateway=gateway,
        uid=random.choice(draft.uids),
        talks_for_s=random.choice([0.0, random.uniform(0, 4), random.uniform(0, 10)])
        * timeout_s,
        every_s=random.uniform(0.15, 0.45) * timeout_s,
        logs_out=random.random() < 0.4,
        timeout=None,
    )


def _own_timeouts(draft: Draft, random: Random) -> None:
    """Some users have a timeout of their own."""
    most = random.choice([10.0, DAY_S])
    for number, step in enumerate(draft.steps):
        if isinstance(step, Visit) and random.random() < 0.4:
            own = by_scale(random, 1.0, most)
            draft.steps[number] = step._replace(
                timeout=own, every_s=random.uniform(0.15, 0.45) * own
            )


def _timeouts_of_gateways(draft: Draft, random: Random) -> None:
    """Gateways say a timeout, some of them another one on every second link."""
    most = random.choice([15.0, 15.0, DAY_S])
    for number, gateway in enumerate(draft.gateways):
        timeout = random.choice([None, by_scale(random, 1.0, most)])
        other = random.choice([timeout, timeout, by_scale(random, 1.0, most)])
        draft.gateways[number] = replace(gateway, timeout=timeout, other_timeout=other)


def _pings(draft: Draft, random: Random) -> None:
    """Gateways promise to ping; some do so at the last moment, and one hangs often."""
    for number, gateway in enumerate(draft.gateways):
        draft.gateways[number] = replace(
            gateway,
            ping=random.choice([None, by_scale(random, 0.2, 5.0)]),
            pings_every=random.choice([1 / 3, 1.0, 1.0, 1.5]),
        )
    if random.random() < 0.7:
        return
    at, target = draft.moment(random), random.randrange(12)
    hangs_s = random.uniform(0.5, 2) * min(draft.timeout_s, 10.0)
    apart_s = random.uniform(0.1, 1.5)
    for _ in range(12):
        if at > draft.lasts_s - 5:
            break
        draft.steps.append(Fault(at, "gateway hangs", target, hangs_s))
        at += hangs_s + apart_s


def _clocks(draft: Draft, random: Random) -> None:
    """Gateways say more or less of their clock."""
    for number, gateway in enumerate(draft.gateways):
        draft.gateways[number] = replace(gateway, clock=random.choice(CLOCKS))


def _races(draft: Draft, random: Random) -> None:
    """A user connects some times while the sidecar is paused, through any gateway."""
    for _ in range(random.randint(1, 5)):
        at, seconds = draft.moment(random), by_scale(random, 0.02, 3.0)
        uid = random.choice(draft.uids)
        draft.steps.append(Fault(at, "sidecar paused", 0, seconds))
        for _ in range(random.randint(2, 4)):
            gateway = random.randrange(len(draft.gateways))
            when = at + random.uniform(0, seconds)
            visit = _visit(random, draft, when, gateway, draft.timeout_s)
            draft.steps.append(visit._replace(uid=uid))


def _twice_at_once(draft: Draft, random: Random) -> None:
    """A user connects some times through one gateway, which has no link meanwhile or hangs.

    So logins and logouts of its connections come in one batch.
    """
    for _ in range(random.randint(1, 4)):
        at, seconds = draft.moment(random), by_scale(random, 0.05, 2.0)
        uid, target = random.choice(draft.uids), random.randrange(len(draft.gateways))
        what = random.choice(["gateway loses its link", "gateway hangs"])
        if draft.gateways[target].library is not None:
            what = random.choice([what, "gateway blocks"])
        draft.steps.append(Fault(at, what, target, 4 * seconds))
        for _ in range(random.randint(2, 4)):
            talks_s = random.uniform(0, seconds)
            draft.steps.append(
                Visit(
                    at=at + random.uniform(0, seconds),
                    gateway=target,
                    uid=uid,
                    talks_for_s=talks_s,
                    every_s=random.uniform(0.1, 1.0) * talks_s + 0.01,
                    logs_out=random.random() < 0.7,
                    timeout=None,
                )
            )


def _libraries(draft: Draft, random: Random) -> None:
    """Gateways use the library, which pings as it thinks best."""
    for target, gateway in enumerate(draft.gateways):
        if random.random() < 0.4:
            continue
        own = gateway.timeout
        ping = PING_S if own is None else min(PING_S, max(own / 4, LEAST_PING_S))
        library = LibraryPlan(
            conns=random.choice(CONNS),
            handler_s=random.choice([0.0, by_scale(random, 0.1, 10.0)]),
            fails=random.choice([0.0, 0.0, 0.3]),
        )
        random.random()  # so that the seeds in mutants draw what they always drew
        draft.gateways[target] = replace(
            gateway, other_timeout=own, ping=ping, pings_every=1 / 3, library=library
        )
        for _ in range(random.randint(0, 4)):
            what = random.choice(LIBRARY_FAULTS)
            lasts_s = by_scale(random, 0.02, 2.0) * min(draft.timeout_s, 10.0)
            draft.steps.append(Fault(draft.moment(random), what, target, lasts_s))
    if random.random() < 0.2:
        # Another log, while ends are handled and tasks run.
        lasts_s = by_scale(random, 0.2, 10.0)
        draft.steps.append(Fault(draft.moment(random), "state put back", 0, lasts_s))


def _reminders(draft: Draft, random: Random) -> None:
    """Gateways ask for timers, cancel some, and replace some by others of their key."""
    keys = whole(random, 1, 20)
    for number in range(whole(random, 1, 20)):
        seconds = by_scale(random, 0.1, random.choice([40.0, 40.0, 3.1e7]))
        draft.steps.append(
            Remind(
                at=draft.moment(random),
                gateway=random.randrange(len(draft.gateways)),
                key=f"key-{number % keys}",
                seconds=seconds,
                cancelled_after_s=random.choice(
                    [None, None, random.uniform(0, 1.5 * min(seconds, 60.0))]
                ),
            )
        )


def _greed(draft: Draft, random: Random) -> None:
    draft.settings["unread_s"] = random.choice([4.0, 30.0])
    draft.limits["max_unread_bytes"] = whole(random, 1_000_000, 64 << 20)
    for _ in range(random.randint(1, 6)):
        at = random.uniform(0, max(1.0, draft.lasts_s - 45))
        draft.steps.append(Greedy(at, by_scale(random, 0.1, 45.0)))


# --- settings -------------------------------------------------------------------


def _limits(draft: Draft, random: Random) -> None:
    """Bounds that a few users meet."""
    for name, least, most in (
        ("window", 1, random.choice([20, 1_000_000])),
        ("pause_firing", 2, random.choice([10, 10_000])),
        ("pause_reading", 6, random.choice([60, 30_000])),
        ("tail", 1, random.choice([20, 1_000_000])),
        ("max_batch", 1, 100_000),
        ("max_spool_bytes", 64 << 10, 256 << 20),
    ):
        if random.random() < 0.5:
            draft.limits[name] = whole(random, least, most)


def _times(draft: Draft, random: Random) -> None:
    """How long anything is waited for."""
    settings = draft.settings
    settings["hold_s"] = by_scale(random, 1.0, random.choice([30.0, 3_600.0]))
    settings["run_timeout_s"] = by_scale(random, 1.0, random.choice([6.0, DAY_S]))


def _wheel(draft: Draft, random: Random) -> None:
    draft.settings["slots"] = whole(random, 2, 3_600)


def _devices(draft: Draft, random: Random) -> None:
    draft.settings["device_separator"] = random.choice([":", "-"])


def _guard(draft: Draft, random: Random) -> None:
    draft.settings["guard"] = GuardSettings(
        enabled=True,
        share=by_scale(random, 0.01, 0.99),
        least_users=whole(random, 1, 100),
        hold_s=by_scale(random, 1.0, random.choice([30.0, DAY_S])),
    )


def _retention(draft: Draft, random: Random) -> None:
    """Records are kept shortly, and gateways are away or hang for longer."""
    draft.settings["retention_s"] = by_scale(random, 5.0, WEEK_S)
    for _ in range(random.randint(0, 3)):
        draft.steps.append(
            Fault(
                at=draft.moment(random),
                what=random.choice(["gateway hangs", "gateway crashes"]),
                target=random.randrange(12),
                lasts_s=random.uniform(0.5, 3)
                * min(draft.settings["retention_s"], 20.0),
            )
        )


def _orders(draft: Draft, random: Random) -> None:
    """A gateway asks for more than is written."""
    draft.settings["max_pending"] = whole(random, 20, 30_000)
    for _ in range(random.randint(1, 3)):
        lasts_s = random.uniform(0, 2) * min(draft.timeout_s, 10.0)
        target = random.randrange(len(draft.gateways))
        draft.steps.append(Fault(draft.moment(random), ORDERS, target, lasts_s))


# --- outlets --------------------------------------------------------------------


def _webhooks(draft: Draft, random: Random) -> None:
    draft.settings["receivers"] = tuple(
        drawn_receiver(
            random,
            FIRST_PORT + number,
            has_devices="device_separator" in draft.settings,
        )
        for number in range(random.randint(1, 3))
    )
    _server_failures(draft, random, "receiver", FAILURES)


def _cluster(draft: Draft, random: Random) -> None:
    lease_s, linger_s = by_scale(random, 3, 3_600), by_scale(random, 0.001, 10)
    draft.settings["cluster"] = replace(
        CLUSTER,
        lease_s=lease_s,
        linger_s=linger_s,
        partitions=whole(random, 1, 16),
    )
    _server_failures(draft, random, "redis", REDIS_FAILURES)


def _server_failures(
    draft: Draft, random: Random, whose: str, failures: Sequence[str]
) -> None:
    """Some kinds of failures, each some times."""
    kinds = random.sample(failures, whole(random, 1, len(failures)))
    for _ in range(random.randint(0, 8)):
        failure = f"{whose} {random.choice(kinds)}"
        lasts_s = by_scale(random, 0.1, 60)
        draft.steps.append(
            Fault(draft.moment(random), failure, random.randrange(12), lasts_s)
        )


def _damped_watch(draft: Draft, random: Random) -> None:
    """A program watches by the library, and hears of no short absence."""
    draft.settings["watch_settle_s"] = by_scale(random, 0.1, 20)


# --- faults ---------------------------------------------------------------------


def _faults(draft: Draft, random: Random) -> None:
    kinds = random.sample([*FAULTS], whole(random, 1, len(FAULTS)))
    weights = [FAULTS[what] for what in kinds]
    for what in random.choices(kinds, weights, k=whole(random, 1, 25)):
        draft.steps.append(_fault(random, draft, what))
    for step in [*draft.steps]:
        is_wrong = isinstance(step, Fault) and step.what == "host boots" and step.by_s
        if is_wrong and random.random() < 0.5:
            # As a host does that asks a server for the time.
            set_at = step.at + random.uniform(1, 20)
            draft.steps.append(Fault(set_at, "wall clock set right", 0, 0.0))


def _fault(random: Random, draft: Draft, what: str) -> Fault:
    is_wrong = what in CLOCK_FAULTS and random.random() < WRONG_SHARE
    return Fault(
        at=draft.moment(random),
        what=what,
        target=random.randrange(12),
        lasts_s=by_scale(random, 0.02, 4.0) * min(draft.timeout_s, 10.0),
        by_s=random.choice([-1, 1]) * by_scale(random, 0.01, WRONG_S)
        if is_wrong
        else 0.0,
    )


def _sleeps(draft: Draft, random: Random) -> None:
    """The host sleeps for long."""
    for _ in range(random.randint(1, 3)):
        slept_s = by_scale(random, 0.3, WEEK_S)
        draft.steps.append(Fault(draft.moment(random), "host sleeps", 0, slept_s))


def _slow_commits(draft: Draft, random: Random) -> None:
    """A commit takes longer than any timeout."""
    lasts_s = random.uniform(1, 4) * min(draft.timeout_s, 10.0) / STALL_SHARE
    draft.steps.append(Fault(draft.moment(random), "disk stalls", 0, lasts_s))


def _stops(draft: Draft, random: Random) -> None:
    """The sidecar is asked to stop while nothing can be written."""
    at, lasts_s = draft.moment(random), random.uniform(1, 20)
    what = random.choice([it for it in FAULTS if it.startswith("disk")])
    stops_at = at + random.uniform(0, min(lasts_s, 5.0))
    draft.steps.append(Fault(at, what, 0, lasts_s))
    draft.steps.append(Fault(stops_at, "sidecar restarts", 0, 0.5))


# By name: how many runs have each, and what draws it.
FEATURES: Final[Mapping[str, tuple[float, Callable[[Draft, Random], None]]]] = {
    "own timeouts": (0.5, _own_timeouts),
    "timeouts of gateways": (0.5, _timeouts_of_gateways),
    "pings": (0.5, _pings),
    "clocks": (0.5, _clocks),
    "libraries": (0.4, _libraries),
    "races": (0.3, _races),
    "twice at once": (0.3, _twice_at_once),
    "reminders": (0.6, _reminders),
    "greed": (0.2, _greed),
    "limits": (0.5, _limits),
    "times": (0.5, _times),
    "wheel": (0.3, _wheel),
    "devices": (0.4, _devices),
    "guard": (0.2, _guard),
    "webhooks": (0.4, _webhooks),
    "cluster": (0.25, _cluster),
    "damped watch": (0.3, _damped_watch),
    "retention": (0.4, _retention),
    "orders": (0.2, _orders),
    "faults": (0.9, _faults),
    "sleeps": (0.2, _sleeps),
    "slow commits": (0.15, _slow_commits),
    "stops": (0.15, _stops),
}
