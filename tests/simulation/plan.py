"""What is going to happen in a run, drawn from a seed before it begins.

A plan is a list of steps, each a plain value with a moment. So a run can be told as text,
and a shorter one found by leaving steps out.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Final, NamedTuple, TypeAlias

from liveness.config.settings import (
    Config,
    LimitSettings,
    PresenceSettings,
    SocketSettings,
    StateSettings,
    TimerSettings,
)
from liveness.promises.run_history import Uid
from liveness.promises.run_terms import GatewayTerms, RunTerms

# Beside plain ones those that are easily taken for each other.
UIDS: Final[list[Uid]] = [7, "7", "user:phone", "user:desk", "é", "E\u0301", 0]
DAY_MS: Final = 86_400_000
WEEK_S: Final = 604_800.0
RETRIES_S: Final = (1, 2, 3)
# Everybody has connected by then, and what the disk owed is written.
SETTLE_S: Final = 5.0


class Visit(NamedTuple):
    """A user connects through a gateway, talks, and goes or falls silent."""

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
    whom: int  # which gateway or watcher, if it is done to one
    lasts_s: float


@dataclass(frozen=True, slots=True)
class Greedy:
    """A watcher connects, asks for more than a socket holds, and does not read."""

    at: float
    unread_for_s: float


Step: TypeAlias = Visit | Remind | Fault | Greedy

# Of the plans.
GREEDY_SHARE: Final = 0.25

# Of a gateway: what its hello says of its clock. In another time namespace it is shifted,
# and it goes on to say `began` although the sidecar has told it not to.
CLOCKS: Final = ("host's", "host's", "host's", "not told", "another namespace's")

# So many plans have users who connect through two gateways while the sidecar is paused.
RACES: Final = 0.3

# With how often each is drawn.
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
    "wall clock stepped": 2,
    "gateway crashes": 3,
    "gateway crashes, back fresh": 3,
    "gateway hangs": 4,
    "gateway loses its link": 4,
    "gateway connects anew": 3,
    "gateway floods": 2,
    "gateway repeats itself": 2,
    "watcher slow": 2,
    "watcher lost": 3,
}
# Of a disk that stalls for some time a call takes at most this share of it.
STALL_SHARE: Final = 1 / 3
# Drawn apart from those, so that what a seed draws besides stays as it was.
SOCKET_REMOVED: Final = "socket removed"
# In so many plans a gateway asks for more answers than may wait for a link, and crashes.
DIES_UNREAD: Final = "gateway dies unread"
UNREAD_DEATHS: Final = 0.3
# In so many plans the host starts no thread at times, so that the disk has to wait.
NO_THREADS: Final = "disk gets no threads"
THREADLESS: Final = 0.3
# In so many plans the host sleeps: only its CLOCK_MONOTONIC stands still.
HOST_SLEEPS: Final = "host sleeps"
SLEEPY: Final = 0.4
# As often as not there is none. It is the trouble of one gateway, and of no other.
ORDERS: Final = "gateway orders without end"
MOST_ORDERS: Final = 3
NOBODYS_KEY: Final = "nobody's"


# In so many of all runs pages of the log are damaged on the disk.
ROTTEN: Final = 0.4


@dataclass(frozen=True, slots=True)
class GatewayPlan:
    """One gateway, as it is throughout a run."""

    name: str
    timeout: float | None
    ping: float | None
    flush_s: float
    other_timeout: float | None  # of its links in turns
    pings_every: float = 1 / 3  # of what it promised
    clock: str = "host's"  # by which its logins tell when they began: see `CLOCKS`


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about a run that is settled beforehand."""

    seed: int
    timeout_s: float
    hold_s: float
    run_timeout_s: float
    window: int
    pause_firing: int
    pause_reading: int
    max_pending: int
    tail: int
    retention_s: float
    gateways: tuple[GatewayPlan, ...]
    watchers: int
    lasts_s: float
    steps: tuple[Step, ...]
    unread_s: float = 30.0
    max_unread_bytes: int = 64 << 20
    device_separator: str = ""  # "user:phone" and "user:desk", or "u-1" to "u-29"

    @property
    def rest_s(self) -> float:
        """How long after all was done to anybody the last consequence may take."""
        visits = [it for it in self.steps if isinstance(it, Visit)]
        own = {None, *(visit.timeout for visit in visits)}
        names = [gateway.name for gateway in self.gateways]
        timeouts = [
            max(self.terms.timeouts_of(name, it)) for name in names for it in own
        ]
        rest_s = max(timeouts) + self.hold_s + SETTLE_S
        asked = [it.seconds for it in self.steps if isinstance(it, Remind)]
        if asked:
            # Four runs, and what is waited in between.
            rest_s += max(asked) + 4 * self.run_timeout_s + sum(RETRIES_S)
        return rest_s

    @property
    def terms(self) -> RunTerms:
        """What the promises mean in it."""
        return RunTerms(
            timeout_s=self.timeout_s,
            hold_s=self.hold_s,
            retention_s=self.retention_s,
            unread_s=self.unread_s,
            device_separator=self.device_separator,
            gateways={
                it.name: GatewayTerms(
                    timeouts=(
                        it.timeout or self.timeout_s,
                        it.other_timeout or self.timeout_s,
                    ),
                    ping=it.ping,
                    pings_every=it.pings_every,
                )
                for it in self.gateways
            },
        )

    def config(self, state: Path, socket: Path) -> Config:
        """The sidecar's settings."""
        retries = ",".join(map(str, RETRIES_S))
        config = Config(
            timeout_s=self.timeout_s,
            socket=SocketSettings(path=socket),
            presence=PresenceSettings(device_separator=self.device_separator),
            state=StateSettings(dir=state),
            timers=TimerSettings(run_timeout_s=self.run_timeout_s, retries=retries),
        )
        object.__setattr__(config.timers, "max_pending", self.max_pending)
        limits = LimitSettings(
            gateway_hold_s=self.hold_s,
            window=self.window,
            pause_firing=self.pause_firing,
            pause_reading=self.pause_reading,
            tail=self.tail,
            unread_s=self.unread_s,
            max_unread_bytes=self.max_unread_bytes,
        )
        # Lower bounds than an operator may set, so that a few users meet them.
        object.__setattr__(config, "limits", limits)
        object.__setattr__(config.state, "retention_s", self.retention_s)
        return config


def plan_of(seed: int) -> Plan:
    """Draw a plan."""
    random = Random(seed)
    timeout_s = random.choice([2.0, 3.0, 5.0, 10.0])
    gateways = tuple(
        _gateway(random, seed, number) for number in range(random.randint(1, 4))
    )
    lasts_s = random.uniform(60, 240)
    uids = UIDS + [f"u-{n}" for n in range(random.choice([0, 5, 30]))]
    visits = random.randint(10, 30 + 4 * len(uids))
    steps: list[Step] = [
        *(_visit(random, uids, gateways, lasts_s, timeout_s) for _ in range(visits)),
        *(
            _reminder(random, n, gateways, lasts_s)
            for n in range(random.randint(0, 20))
        ),
        *(_fault(random, lasts_s, timeout_s) for _ in range(random.randint(1, 25))),
        *_lost_files(Random(f"{seed}-files"), lasts_s),
        *_rot(Random(f"{seed}-rot"), lasts_s),
    ]
    hold_s = random.choice([4.0, 15.0])
    run_timeout_s = random.choice([2.0, 6.0])
    window = random.choice([2, 10, 10_000])
    pause_firing = random.choice([2, 10_000])
    pause_reading = random.choice([6, 30_000])
    tail = random.choice([1, 20, 20_000])
    retention_s = random.choice([WEEK_S, WEEK_S, 20.0])
    watchers = random.randint(0, 3)
    # Drawn by themselves, so that every other plan stays as it was.
    steps += _long_absences(seed, retention_s, lasts_s)
    of_orders = Random(f"{seed}-orders")
    steps += [
        Fault(
            at=of_orders.uniform(0, lasts_s - 5),
            what=ORDERS,
            whom=of_orders.randrange(len(gateways)),
            lasts_s=of_orders.uniform(0, 2) * timeout_s,
        )
        for _ in range(of_orders.choice([0, of_orders.randint(1, MOST_ORDERS)]))
    ]
    gateways, hangs = _lateness(Random(f"{seed}-pings"), gateways, lasts_s, timeout_s)
    steps += hangs
    unread = Random(f"{seed}-unread")
    if unread.random() < GREEDY_SHARE:
        steps += [
            Greedy(
                at=unread.uniform(0, lasts_s - 45),
                unread_for_s=unread.choice([0.5, unread.uniform(0, 4), 40.0]),
            )
            for _ in range(unread.randint(1, 6))
        ]
    drawn = Random(f"{seed}-began")
    gateways = tuple(replace(it, clock=drawn.choice(CLOCKS)) for it in gateways)
    if drawn.random() < RACES:
        for _ in range(drawn.randint(1, 5)):
            steps += _race(drawn, uids, len(gateways), lasts_s, timeout_s)
    drawn = Random(f"{seed}, deaths")
    if drawn.random() < UNREAD_DEATHS:
        steps += _unread_deaths(drawn, lasts_s, timeout_s + hold_s)
    drawn = Random(f"{seed}, threads")
    if drawn.random() < THREADLESS:
        steps += _without_threads(drawn, lasts_s, timeout_s)
    drawn = Random(f"{seed}, sleeps")
    if drawn.random() < SLEEPY:
        steps += [
            Fault(
                at=drawn.uniform(0, lasts_s - 5),
                what=HOST_SLEEPS,
                whom=0,
                lasts_s=drawn.choice([drawn.uniform(0.3, 40), 28_800.0]),
            )
            for _ in range(drawn.randint(1, 3))
        ]
    return Plan(
        seed=seed,
        timeout_s=timeout_s,
        hold_s=hold_s,
        run_timeout_s=run_timeout_s,
        window=window,
        pause_firing=pause_firing,
        pause_reading=pause_reading,
        max_pending=of_orders.choice([20, 30_000]),
        tail=tail,
        retention_s=retention_s,
        gateways=gateways,
        watchers=watchers,
        lasts_s=lasts_s,
        steps=tuple(sorted(steps, key=lambda step: step.at)),
        unread_s=unread.choice([4.0, 30.0]),
        max_unread_bytes=unread.choice([1_000_000, 64 << 20]),
        device_separator=Random(f"{seed}-devices").choice(["", ":", "-"]),
    )


def _gateway(random: Random, seed: int, number: int) -> GatewayPlan:
    timeout = random.choice([None, None, 4.0, 8.0])
    # Drawn by itself, so that every other plan stays as it was.
    other = Random(f"{seed}, timeouts of {number}").choice([timeout] * 3 + [2.0, 12.0])
    return GatewayPlan(
        name=f"gw-{number}",
        timeout=timeout,
        ping=random.choice([None, None, 0.5, 1.5]),
        flush_s=random.choice([0.0, 0.0, 0.2]),
        other_timeout=other,
    )


def _long_absences(seed: int, retention_s: float, lasts_s: float) -> list[Step]:
    """Gateways that are away, or do not read, for longer than records are kept."""
    random = Random(f"{seed}, long absences")
    if retention_s == WEEK_S or random.random() < 0.5:
        return []
    return [
        Fault(
            at=random.uniform(0, lasts_s - 5),
            what=random.choice(["gateway hangs", "gateway crashes"]),
            whom=random.randrange(12),
            lasts_s=random.uniform(0.5, 3) * retention_s,
        )
        for _ in range(random.randint(1, 3))
    ]


def _lateness(
    random: Random,
    gateways: tuple[GatewayPlan, ...],
    lasts_s: float,
    timeout_s: float,
) -> tuple[tuple[GatewayPlan, ...], list[Step]]:
    """Have some ping at the last moment, and one hang again and again."""
    every = (1 / 3, 1.0, 1.0, 1.5)
    gateways = tuple(replace(it, pings_every=random.choice(every)) for it in gateways)
    if random.random() < 0.7:
        return gateways, []
    at, whom = random.uniform(0, lasts_s - 5), random.randrange(12)
    hangs_s, apart_s = random.uniform(0.5, 2) * timeout_s, random.uniform(0.1, 1.5)
    hangs = list[Step]()
    while at < lasts_s - 5 and len(hangs) < 12:
        hangs.append(Fault(at, "gateway hangs", whom, hangs_s))
        at += hangs_s + apart_s
    return gateways, hangs


def _unread_deaths(random: Random, lasts_s: float, held_s: float) -> list[Step]:
    """Gateways that crash with answers unread, for as long as users may be held."""
    return [
        Fault(
            at=random.uniform(0, lasts_s - 5),
            what=DIES_UNREAD,
            whom=random.randrange(12),
            lasts_s=random.uniform(0.1, 2) * held_s,
        )
        for _ in range(random.randint(1, 3))
    ]


def _without_threads(random: Random, lasts_s: float, timeout_s: float) -> list[Step]:
    """Times in which the host starts no thread."""
    return [
        Fault(
            at=random.uniform(0, lasts_s - 5),
            what=NO_THREADS,
            whom=0,
            lasts_s=random.uniform(0, 2) * timeout_s,
        )
        for _ in range(random.randint(1, 3))
    ]


def _rot(random: Random, lasts_s: float) -> list[Fault]:
    """Of a random of its own: where nothing rots a seed's plan is as it was before."""
    count = random.randint(1, 6) if random.random() < ROTTEN else 0
    return [
        Fault(random.uniform(0, lasts_s - 5), "disk rots", 0, 0.05)
        for _ in range(count)
    ]


def _visit(
    random: Random,
    uids: list[Uid],
    gateways: tuple[GatewayPlan, ...],
    lasts_s: float,
    timeout_s: float,
) -> Visit:
    gateway = random.randrange(len(gateways))
    own = random.choice([None, None, None, 1.0, 6.0])
    whole = own or gateways[gateway].timeout or timeout_s
    return Visit(
        at=random.uniform(0, lasts_s - 5),
        gateway=gateway,
        uid=random.choice(uids),
        talks_for_s=random.choice([0.0, random.uniform(0, 4), random.uniform(0, 10)])
        * whole,
        every_s=random.uniform(0.15, 0.45) * whole,
        logs_out=random.random() < 0.4,
        timeout=own,
    )


def _race(
    random: Random, uids: list[Uid], gateways: int, lasts_s: float, timeout_s: float
) -> list[Step]:
    """A user connects some times while the sidecar is paused, through any gateway."""
    at, seconds = random.uniform(0, lasts_s - 5), random.uniform(0.2, 3.0)
    uid = random.choice(uids)
    visits = [
        Visit(
            at=at + random.uniform(0, seconds),
            gateway=random.randrange(gateways),
            uid=uid,
            talks_for_s=random.uniform(1, 3) * timeout_s,
            every_s=0.3 * timeout_s,
            logs_out=random.random() < 0.5,
            timeout=None,
        )
        for _ in range(random.randint(2, 4))
    ]
    return [Fault(at, "sidecar paused", 0, seconds), *visits]


def _reminder(
    random: Random, number: int, gateways: tuple[GatewayPlan, ...], lasts_s: float
) -> Remind:
    seconds = random.choice([0.1, random.uniform(0.1, 3), random.uniform(1, 40)])
    return Remind(
        at=random.uniform(0, lasts_s - 5),
        gateway=random.randrange(len(gateways)),
        key=f"key-{number}",
        seconds=seconds,
        cancelled_after_s=random.choice([None, None, random.uniform(0, 1.5 * seconds)]),
    )


def _fault(random: Random, lasts_s: float, timeout_s: float) -> Fault:
    what = random.choices([*FAULTS], [*FAULTS.values()])[0]
    return Fault(
        at=random.uniform(0, lasts_s - 5),
        what=what,
        whom=random.randrange(12),
        lasts_s=random.choice([0.05, random.uniform(0, 1.5), random.uniform(0, 4)])
        * timeout_s,
    )


def _lost_files(random: Random, lasts_s: float) -> list[Step]:
    """Somebody removes the file of the socket."""
    moments = [
        random.uniform(0, lasts_s - 5) for _ in range(random.choice([0, 0, 1, 2]))
    ]
    return [Fault(at, SOCKET_REMOVED, 0, 0.0) for at in moments]
