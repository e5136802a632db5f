"""The demo with several hosts in plain lines, and its summary."""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import ceil
from typing import Final

from liveness.core.records import MOVED
from liveness.lab.demo.cluster_referee import CLUSTER_FAULTS, LostHost, OnlineCounts
from liveness.lab.demo.cluster_run import ClusterRun
from liveness.lab.demo.plain_lines import (
    DATE,
    ENDS,
    Lines,
    counted,
    listed_faults,
    what_was_done,
)
from liveness.lab.demo.referee import FAULTS, Record, Referee
from liveness.text import escaped, local_time, uid_text

ANYWHERE: Final = "anywhere"
HOSTS_COLUMNS: Final = ("online", *ENDS, "host_lost")


class HostsLines(Lines[ClusterRun]):
    """Those of the demo with several hosts: records are those of the cluster."""

    def _line(self, record: Record) -> str:
        return cluster_record_line(record)

    def _status(self, demo: ClusterRun) -> str:
        return hosts_status(demo)


def cluster_record_line(record: Record) -> str:
    """A record of the cluster in 80 columns, without the date."""
    place = f"{escaped(record['host'])}  {escaped(record['gateway'])}"
    if record["kind"] == MOVED:
        place += f" from {escaped(record['from_host'])}"
    when, uid = local_time(record["at"])[DATE:], escaped(uid_text(record["uid"]))
    return f"{when}  {record['kind']:<7}  {uid}  {place}  {record['reason']}"


def hosts_status(demo: ClusterRun) -> str:
    """The state of the run on one line."""
    referee = demo.referee
    hosts = " + ".join(
        str(host.referee.online) if host.state == "up" else host.state
        for host in demo.hosts
    )
    counts = [f"online {referee.online} ({hosts})", f"hops {demo.hops}"]
    counts += [f"{how} {referee.ends[how]}" for how in ("silence", "logout")]
    if lost := referee.ends["host_lost"]:
        counts.append(f"host_lost {lost}")
    if demo.redis.state != "up":
        counts.append("no Redis")
    faults = referee.faults_of + local_faults(demo)
    counts += [f"{kind} {count}" for kind, count in faults.items()]
    return f"{demo.elapsed_s:5.0f} s   " + ", ".join(counts)


def hosts_table(demo: ClusterRun) -> Iterator[tuple[str, list[int]]]:
    """For each host, and for the cluster, a number for each of `HOSTS_COLUMNS`."""
    for host in demo.hosts:
        yield host.name, [host.referee.online, *_ends(host.referee), 0]
    referee = demo.referee
    yield (
        ANYWHERE,
        [referee.online, *(referee.ends[how] for how in (*ENDS, "host_lost"))],
    )


def local_faults(demo: ClusterRun) -> Counter[str]:
    """The faults of all hosts by themselves."""
    return sum((host.referee.faults_of for host in demo.hosts), Counter[str]())


def hosts_summary(demo: ClusterRun) -> Iterator[str]:
    """What happened on the hosts and anywhere, and the faults."""
    yield ""
    yield _cells("", HOSTS_COLUMNS)
    for name, numbers in hosts_table(demo):
        yield _cells(name, numbers)
    yield ""
    yield from what_was_done(demo.director.done)
    yield f"hops: {demo.hops}"
    referee = demo.referee
    for lost in referee.lost:
        yield from lost_lines(lost)
    if referee.not_judged:
        count = referee.not_judged
        yield f"offlines not judged: {count} (the user or Redis had just come)"
    if demo.counts:
        yield from at_the_end(demo.counts)
    yield "faults: " + counted(local_faults(demo), FAULTS)
    for host in demo.hosts:
        total = host.referee.faults_of.total()
        for line in listed_faults(host.referee.faults, total):
            yield f"{line} ({host.name})"
    yield "faults anywhere: " + counted(referee.faults_of, CLUSTER_FAULTS)
    yield from listed_faults(referee.faults, referee.faults_of.total())


def lost_lines(lost: LostHost) -> Iterator[str]:
    """What became of the users of a host that was killed."""
    everyone = [*lost.moved_s, *lost.offline_s]
    count = len(everyone) + len(lost.users) + lost.kept
    yield f"{lost.name} killed with {count} users:"
    if lost.moved_s:
        yield f"    {len(lost.moved_s)} on another host after {_spread(lost.moved_s)}"
    if lost.offline_s:
        yield f"    {len(lost.offline_s)} offline after {_spread(lost.offline_s)}"
    if lost.kept:
        yield f"    {lost.kept} still there when it was up again"
    if lost.users:
        yield f"    {len(lost.users)} not known yet"


def at_the_end(counts: OnlineCounts) -> Iterator[str]:
    """Who had to be online anywhere at the end, and who was."""
    online = counts.required_online + counts.forbidden_online + counts.open_online
    yield f"online anywhere at the end: {online} users"
    yield f"    {counts.required_online} of {counts.required} that have to be"
    yield f"    {counts.forbidden_online} of {counts.forbidden} that must not be"
    if counts.open:
        yield f"    {counts.open_online} of {counts.open} where both is right: they have"
        yield "    just come or gone, or their host or Redis was lost"


def _ends(referee: Referee) -> list[int]:
    ends = Counter[str]()
    for (_, how), count in referee.ends.items():
        ends[how] += count
    return [ends[how] for how in ENDS]


def _spread(found: Sequence[float]) -> str:
    """The middle and the largest of some times."""
    ordered = sorted(found)
    p50 = ordered[ceil(len(ordered) / 2) - 1]
    return f"{p50:.1f} s (half of them), {ordered[-1]:.1f} s (all)"


def _cells(head: str, cells: Sequence[object]) -> str:
    return f"{head:<9}" + "".join(
        f"{cell:>{len(column) + 2}}"
        for column, cell in zip(HOSTS_COLUMNS, cells, strict=True)
    )
