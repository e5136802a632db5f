"""The random choices for one history: the set-up of the cluster, and its faults.

Each history has a random subset of the faults only, and each of them a weight of its own:
in a mix of everything the frequent ones hide the rare ones.

Source:
    Groce et al., Swarm Testing, ISSTA 2012.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

from tests.simulation.scales import by_scale, whole

# What happens to one host, and all events that are drawn.
OF_HOSTS: Final = ("pause", "cut", "restart", "replace", "names", "state", "trim")
EVENTS: Final = (
    *OF_HOSTS,
    *("failover", "old", "outage", "memory", "empty", "damage", "step", "idle"),
)
# How large a share of the calls is lost or made twice, is slow, or is answered by half.
SHARES: Final = {"net": (0.01, 0.3), "lag": (0.1, 1.0), "half": (0.01, 0.3)}
# What holds all the time: clocks of new masters, of hosts, and disks.
STANDING: Final = ("skew", "clock", "slow")
MOST_PARTITIONS: Final = 3
MOST_HOSTS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One history, before anything happened."""

    faults: Mapping[str, float] = field(default_factory=dict)
    hosts: int = 3
    partitions: int = 2
    users: int = 8
    separator: str = "/"
    lease_s: float = 30.0
    linger_s: float = 0.02
    keep_s: float = 3_600.0
    # Queues overflow, lists come in pieces, and a reap takes several steps.
    call_changes: int = 3
    most_queued: int = 4
    reap_users: int = 2
    rows: int = 2  # of a piece of a list
    read_at_once: int = 3  # records of the log
    scan_users: int = 1  # in one read of a list by a watcher


def plan_of(random: Random) -> Plan:
    """A plan, drawn."""
    share = by_scale(random, 0.08, 0.8)
    drawn = dict[str, float]()
    for kind in (*EVENTS, *SHARES, *STANDING):
        if random.random() < share:
            drawn[kind] = by_scale(random, *SHARES.get(kind, (0.1, 5)))
    changes = whole(random, 1, 8)
    return Plan(
        faults=drawn,
        hosts=whole(random, 2, MOST_HOSTS),
        partitions=whole(random, 1, MOST_PARTITIONS),
        users=whole(random, 2, 12),
        separator=random.choice(("/", "/", "")),
        lease_s=random.choice((30.0, by_scale(random, 3, 3_600))),
        linger_s=random.choice((0.02, by_scale(random, 0.001, 10))),
        keep_s=random.choice((3_600.0, by_scale(random, 60, 604_800))),
        call_changes=changes,
        most_queued=changes * whole(random, 1, 4),
        reap_users=whole(random, 1, 8),
        rows=whole(random, 1, 4),
        read_at_once=whole(random, 1, 8),
        scan_users=whole(random, 1, 8),
    )
