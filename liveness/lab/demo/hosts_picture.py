"""The live picture of several hosts: hosts, Redis, users on each and anywhere, faults, keys."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from liveness.lab.demo.cluster_referee import CLUSTER_FAULTS
from liveness.lab.demo.cluster_run import LEASE_S, ClusterRun
from liveness.lab.demo.gateway import HOST
from liveness.lab.demo.hosts_lines import (
    ANYWHERE,
    HOSTS_COLUMNS,
    cluster_record_line,
    hosts_table,
    local_faults,
    lost_lines,
)
from liveness.lab.demo.picture import Screen, faults_line, filled, keys_line, state_text
from liveness.lab.demo.referee import FAULTS, Record
from liveness.lab.demo.script import actions_of

BAR: Final = 18  # columns of the longest bar
# Heads of the columns that fit 80 columns beside the bars.
HOSTS_TITLES: Final = {
    **{name: name for name in HOSTS_COLUMNS},
    "gateway_lost": "gw lost",
    "host_lost": "host lost",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsScene:
    """The contents of one picture."""

    elapsed_s: float
    seconds: float
    timeout_s: float
    places: tuple[str, ...]  # where to look, and how to join, a line each
    states: tuple[tuple[str, str], ...]  # of each host, and of Redis
    hops: int
    rows: tuple[tuple[str, list[int]], ...]  # by host, as in `HOSTS_COLUMNS`
    newest: tuple[int, ...]  # by host: users whose newest session it has
    lost: tuple[str, ...]  # what became of the users of the last host that was killed
    faults: Counter[str]
    faults_anywhere: Counter[str]
    logged: tuple[str, ...]
    records: tuple[str, ...]  # the newest last
    has_keys: bool


class HostsPicture(Screen[ClusterRun]):
    """The picture of several hosts."""

    def _line(self, record: Record) -> str:
        return cluster_record_line(record)

    def _drawn(self, demo: ClusterRun, width: int, height: int) -> list[Text]:
        return hosts_drawn(self._scene(demo), width, height)

    def _scene(self, demo: ClusterRun) -> HostsScene:
        referee = demo.referee
        lost = lost_lines(referee.lost[-1]) if referee.lost else ()
        return HostsScene(
            elapsed_s=demo.elapsed_s,
            seconds=demo.seconds,
            timeout_s=demo.timeout_s,
            places=tuple(
                f"{host.name}   {host.page}   nc {HOST} {host.port}"
                for host in demo.hosts
            ),
            states=(
                *((host.name, host.state) for host in demo.hosts),
                ("Redis", demo.redis.state),
            ),
            hops=demo.hops,
            rows=tuple(hosts_table(demo)),
            newest=tuple(referee.online_on(host.name) for host in demo.hosts),
            lost=tuple(lost),
            faults=local_faults(demo),
            faults_anywhere=referee.faults_of,
            logged=tuple(self._logged),
            records=tuple(self._records),
            has_keys=self._terminal.has_keys,
        )


def hosts_drawn(scene: HostsScene, width: int, height: int) -> list[Text]:
    """The lines of a picture, for a terminal of this size."""
    lines = [
        *_head(scene),
        *_table(scene),
        *(Text(line) for line in scene.lost),
        faults_line("faults:", scene.faults, FAULTS),
        faults_line("faults anywhere:", scene.faults_anywhere, CLUSTER_FAULTS),
    ]
    return filled(lines, scene.logged, scene.records, width, height)


def _head(scene: HostsScene) -> Iterator[Text]:
    time = f"{scene.elapsed_s:.0f} s of {scene.seconds:g}"
    rule = f"timeout {scene.timeout_s:g} s, lease {LEASE_S:g} s"
    yield Text.assemble(("liveness demo", "bold"), f"   {time}   {rule}")
    states = Text()
    for name, state in scene.states:
        states.append_text(state_text(name, state))
    yield states.append(f"{scene.hops} hops")
    yield from (Text(place, style="dim") for place in scene.places)
    actions = actions_of(len(scene.newest)).values()
    keys = {**{action.key: action.what for action in actions}, "q": "end"}
    yield keys_line(keys if scene.has_keys else {})


def _table(scene: HostsScene) -> Iterator[Text]:
    """Users of each host; the bar is of those whose newest session it has."""
    titles = HOSTS_TITLES.values()
    head = f"{'':<9}" + "".join(f" {title:>7}" for title in titles)
    yield Text(head, style="dim")
    most = max(*scene.newest, 1)
    for number, (name, cells) in enumerate(scene.rows):
        line = Text(f"{name:<9}")
        for title, cell in zip(titles, cells, strict=True):
            line.append(f" {cell:>{max(len(title), 7)}}")
        if name != ANYWHERE:
            users = scene.newest[number]
            line.append("  " + "█" * round(users / most * BAR), style="green")
        else:
            line.stylize("bold")
        yield line
