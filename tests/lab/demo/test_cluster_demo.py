"""The demo with several hosts, in process: its referee, plans, picture, and what it refuses."""

import re
import shutil
import sys
from collections import Counter
from math import inf
from pathlib import Path
from typing import Final

import pytest

from liveness.cli import main
from liveness.cluster.events import Listed
from liveness.cluster.format import ClusterRecord, Place
from liveness.errors import StartError
from liveness.lab.demo.cluster_referee import (
    CLUSTER_FAULTS,
    ClusterReferee,
    OnlineCounts,
)
from liveness.lab.demo.hoppers import Move, journeys
from liveness.lab.demo.hosts_lines import HOSTS_COLUMNS, at_the_end, lost_lines
from liveness.lab.demo.hosts_picture import HostsScene, hosts_drawn
from liveness.lab.demo.plans import Behaviour
from liveness.lab.demo.redis_program import found_redis
from liveness.lab.demo.referee import Referee
from liveness.lab.demo.script import ScriptError, Step, actions_of, parsed_script

# --- the referee --------------------------------------------------------------------------

HOSTS: Final = ("a", "b", "c")


class Journal:
    """A referee of three hosts, with a timeout of 10 s and a lease of 5 s.

    A script such as "100 joins ann a, 101 offline ann a logout" says what happens at which
    moment, from 100 s on. Users that are on a host write there ten times a second, and as
    often the referee looks for what is missing.
    """

    def __init__(self, users: str) -> None:
        plans = dict.fromkeys(users.split(), Behaviour.KEEPALIVE)
        self.hosts = {name: Referee(plans, timeout_s=10, flush_s=0.3) for name in HOSTS}
        self.referee = ClusterReferee(self.hosts, lease_s=5)
        self._writing = set[tuple[str, str]]()  # users and their hosts
        self._next_tenth = 1_000

    def run(self, script: str) -> list[str]:
        """Play this; return the faults that the referee has found so far."""
        for step in script.split(", "):
            at, *words = step.split()
            self._look_until(float(at))
            if words:
                getattr(self, words[0])(float(at), *words[1:])
        faults = self.referee.faults
        assert self.referee.faults_of == Counter(fault.kind for fault in faults)
        assert self.referee.faults_of.keys() <= set(CLUSTER_FAULTS)
        return [f"{fault.kind} {fault.uid}" for fault in faults]

    def _look_until(self, at: float) -> None:
        while self._next_tenth <= int(at * 10):
            now = self._next_tenth / 10
            for uid, host in self._writing:
                self.hosts[host].wrote(uid, now)
            self.referee.check_overdue(now)
            self._next_tenth += 1

    # --- what users and operators do ------------------------------------------------

    def joins(self, at: float, uid: str, host: str) -> None:
        """On a host; the cluster does not know yet."""
        self.hosts[host].returns(uid)
        self.hosts[host].connects(uid, at)
        self.hosts[host].wrote(uid, at)
        self.hosts[host].joined(uid, at)
        self._writing.add((uid, host))

    def comes(self, at: float, uid: str, host: str) -> None:
        """On a host, and the cluster knows."""
        self.joins(at, uid, host)
        self.online(at, uid, host)

    def silent(self, _at: float, uid: str, host: str) -> None:
        self.hosts[host].falls_silent(uid)
        self._writing.remove((uid, host))

    def leaves(self, at: float, uid: str, host: str) -> None:
        self.silent(at, uid, host)
        self.hosts[host].leaves(uid, at)

    def kills(self, at: float, host: str) -> None:
        self.referee.host_killed(host, at)
        self.hosts[host].disruption_begins()
        self.hosts[host].gateway_killed(inf)
        for uid, place in [*self._writing]:
            if place == host:
                self._writing.remove((uid, host))
                self.hosts[host].hung_up(uid, "", at)

    def starts(self, at: float, host: str) -> None:
        self.hosts[host].gateway_killed(at)
        self.hosts[host].disruption_ends(at)
        self.referee.host_up(host)

    def redis_killed(self, at: float) -> None:
        self.referee.redis_killed(at)

    def redis_up(self, at: float) -> None:
        self.referee.redis_up(at)

    # --- what the cluster says ------------------------------------------------------

    def online(self, at: float, uid: str, host: str) -> None:
        self._record(at, "online", uid, host, "login")

    def moved(self, at: float, uid: str, host: str) -> None:
        self._record(at, "moved", uid, host, "login")

    def offline(
        self, at: float, uid: str, host: str, reason: str, decided: str = ""
    ) -> None:
        self._record(at, "offline", uid, host, reason, float(decided or at))

    def listed(self, at: float, *users: str) -> None:
        """Who is online, all on host c, by a list that is settled."""
        self._list(at, users, is_settled=True)

    def listed_early(self, at: float, *users: str) -> None:
        self._list(at, users, is_settled=False)

    def _list(self, at: float, users: tuple[str, ...], *, is_settled: bool) -> None:
        places = [Place(uid, "c", "gw", 1, 0, "") for uid in users]
        self.referee.take(Listed(0, 1, places, is_settled), decided=at, at=at)

    def _record(
        self,
        at: float,
        kind: str,
        uid: str,
        host: str,
        reason: str,
        decided: float | None = None,
    ) -> None:
        place = Place(uid, host, "gw", 1, 0, reason)
        record = ClusterRecord(0, 1, kind, place)
        self.referee.take(record, decided=at if decided is None else decided, at=at)


ROAMED: Final = "100 comes ann a, 105 silent ann a, 105 joins ann b, 105.1 moved ann b"
LOST: Final = "100 comes ann a, 100 comes bob a, 105 kills a"
EMPTIED: Final = "100 comes ann c, 105 redis_killed, 108 redis_up"
# Who there is, what happens, and which faults there are.
JUDGED: Final[dict[str, tuple[str, list[str]]]] = {
    "on a host, and online": ("100 comes ann a, 120", []),
    "on a host, not yet online": ("100 joins ann a, 102.2", []),
    "on a host, never online": ("100 joins ann a, 103", ["missed ann"]),
    "logout": (
        "100 comes ann a, 105 leaves ann a, 105.3 offline ann a logout, 120",
        [],
    ),
    "logout, still online": ("100 comes ann a, 105 leaves ann a, 108", ["missed ann"]),
    "silent, when due": (
        "100 comes ann a, 105 silent ann a, 115.2 offline ann a silence, 130",
        [],
    ),
    "silent, still online": (
        "100 comes ann a, 105 silent ann a, 117, 118",
        ["missed ann"],
    ),
    "roamed, offline on the old host only": (f"{ROAMED}, 130", []),
    "roamed, offline": (f"{ROAMED}, 115.1 offline ann a silence", ["false ann"]),
    "roamed, offline twice": (
        f"{ROAMED}, 115.1 offline ann a silence, 115.2 online ann b, "
        "115.3 offline ann b silence",
        ["false ann", "false ann"],
    ),
    "hopped, offline before anyone could know": (
        "100 comes ann a, 105 leaves ann a, 105 joins ann b, "
        "105.1 offline ann a logout, 105.2 online ann b, 120",
        [],
    ),
    "hopped, an old offline read late": (
        "100 comes ann a, 105 leaves ann a, 105 joins ann b, "
        "107 offline ann a logout 105.1, 107 online ann b, 120",
        [],
    ),
    "hopped, not online again": (
        "100 comes ann a, 105 leaves ann a, 105 joins ann b, "
        "105.1 offline ann a logout, 108",
        ["missed ann"],
    ),
    "back to a host that it left": (
        "100 comes ann a, 105 leaves ann a, 105.1 offline ann a logout, "
        "109 comes ann a, 130",
        [],
    ),
    "host lost, on another one": (
        f"{LOST}, 105.5 joins ann b, 105.7 moved ann b, 105.5 joins bob c, "
        "106 moved bob c, 130",
        [],
    ),
    "host lost, offline though on another one": (
        f"{LOST}, 105.5 joins ann b, 105.7 moved ann b, "
        "111 offline bob a host_lost, 111 offline ann b host_lost",
        ["false ann"],
    ),
    "host lost, not yet offline": (f"{LOST}, 117", []),
    "host lost, never offline": (f"{LOST}, 117.5", ["missed ann", "missed bob"]),
    "host lost, had left before": (
        "100 comes ann a, 103 leaves ann a, 105 kills a, 107",
        ["missed ann"],
    ),
    "host up again, settles its users itself": (
        f"{LOST}, 106 starts a, 111.2",
        [],
    ),
    "host up again, does not": (
        f"{LOST}, 106 starts a, 130",
        ["missed ann", "missed bob"],
    ),
    "Redis away": ("100 comes ann c, 105 redis_killed, 106 leaves ann c, 150", []),
    "Redis emptied, all listed again": (f"{EMPTIED}, 113 listed ann, 150", []),
    "Redis emptied, not settled yet": (
        f"{EMPTIED}, 108.5 listed_early, 109 online ann c, 150",
        [],
    ),
    "Redis emptied, told by one host before the other": (
        "100 comes ann a, 102 joins ann c, 102 moved ann c, 105 redis_killed, "
        "108 redis_up, 108.1 online ann a, 108.2 leaves ann a, "
        "108.3 offline ann a logout, 108.4 online ann c, 150",
        [],
    ),
    "Redis emptied, one forgotten": (
        f"{EMPTIED}, 113 listed, 114 online ann c, 150",
        ["false ann"],
    ),
    "Redis emptied, one never online again": (
        f"{EMPTIED}, 113 listed_early, 120",
        ["missed ann"],
    ),
    "Redis emptied, one that came meanwhile": (
        "100 comes ann a, 105 redis_killed, 106 leaves ann a, 106 joins ann b, "
        "108 redis_up, 109 offline ann a logout, 109.1 online ann b, 150",
        [],
    ),
}


@pytest.mark.parametrize("case", JUDGED)
def test_the_referee_of_hosts_finds_these_faults_and_no_others(case: str) -> None:
    script, faults = JUDGED[case]
    assert Journal("ann bob").run(script) == faults


def test_it_measures_how_long_the_users_of_a_lost_host_took() -> None:
    journal = Journal("ann bob eve")
    journal.run(
        f"{LOST}, 104 comes eve a, 105.5 joins ann b, 106.5 moved ann b, "
        "111 offline bob a host_lost"
    )
    journal.run("112 kills b, 113 starts b")
    first, second = journal.referee.lost
    assert (first.name, first.moved_s, first.offline_s) == ("a", [1.5], [6.0])
    assert list(lost_lines(first)) == [
        "a killed with 2 users:",
        "    1 on another host after 1.5 s (half of them), 1.5 s (all)",
        "    1 offline after 6.0 s (half of them), 6.0 s (all)",
    ]
    assert (second.users, second.kept) == (set(), 1)


def test_at_the_end_it_says_who_had_to_be_online_and_who_was() -> None:
    journal = Journal("ann bob eve fay")
    journal.run("100 comes ann a, 100 comes bob a, 105 leaves bob a, 109 comes fay c")
    counts = journal.referee.counts(110.0)
    assert counts == OnlineCounts(1, 1, 2, 1, 1, 1)
    assert list(at_the_end(counts)) == [
        "online anywhere at the end: 3 users",
        "    1 of 1 that have to be",
        "    1 of 2 that must not be",
        "    1 of 1 where both is right: they have",
        "    just come or gone, or their host or Redis was lost",
    ]
    journal.run("110 redis_killed")
    assert journal.referee.counts(110.0) == OnlineCounts(0, 0, 0, 0, 4, 3)


def test_a_guest_is_counted_and_not_judged() -> None:
    journal = Journal("ann")
    assert journal.run("100 online ada b, 105 offline ada b silence") == []
    journal.run("106 online ada b")
    assert (journal.referee.online, journal.referee.online_on("b")) == (1, 1)


# --- plans, scripts and the picture -----------------------------------------------------


def test_users_begin_on_all_hosts_and_most_of_them_move() -> None:
    plans = list(journeys(90, hosts=3, seconds=40, timeout_s=10, flush_s=0.3))
    assert Counter(plan.first for plan in plans) == {0: 30, 1: 30, 2: 30}
    moves = Counter(plan.move for plan in plans)
    assert moves.keys() == set(Move)
    assert moves[Move.HOP] + moves[Move.ROAM] >= 45
    ends = [plan.moment_s for plan in plans if plan.moment_s < inf]
    assert len(ends) == moves[Move.SILENT] + moves[Move.LOGOUT]
    assert max(ends) < 40 - 1


def test_a_script_of_hosts_is_followed() -> None:
    actions = actions_of(3)
    steps = parsed_script(
        "5 host 2, 8 redis, 9 hop, 10 silence 5", seconds=40, actions=actions
    )
    assert steps == [
        Step(5, "host", 2),
        Step(8, "redis", 0),
        Step(9, "hop", 20),
        Step(10, "silence", 5),
    ]
    with pytest.raises(ScriptError, match="host takes 1 to 3"):
        parsed_script("5 host 4", seconds=40, actions=actions)
    with pytest.raises(ScriptError, match="use silence, hop, host or redis"):
        parsed_script("5 gateway", seconds=40, actions=actions)


HOSTS_SCENE: Final = HostsScene(
    elapsed_s=12.3,
    seconds=40,
    timeout_s=10,
    places=tuple(
        f"host-{n}   http://127.0.0.1:34759/   nc 127.0.0.1 33253" for n in (1, 2, 3)
    ),
    states=(("host-1", "up"), ("host-2", "down"), ("host-3", "up"), ("Redis", "up")),
    hops=123,
    rows=(
        ("host-1", [70, 1, 2, 3, 4, 0]),
        ("host-2", [60, 1, 2, 3, 4, 0]),
        ("host-3", [50, 1, 2, 3, 4, 0]),
        ("anywhere", [150, 3, 6, 123, 0, 7]),
    ),
    newest=(60, 30, 0),
    lost=("host-2 killed with 60 users:", "    60 not known yet"),
    faults=Counter(),
    faults_anywhere=Counter(false=1),
    logged=("  5.0 s   host: kill -9 to sidecar and gateway of host-2",),
    records=tuple(f"record {number}" for number in range(50)),
    has_keys=True,
)


def test_the_picture_of_hosts_fits_a_usual_terminal() -> None:
    lines = [line.plain.rstrip() for line in hosts_drawn(HOSTS_SCENE, 80, 24)]
    assert len(lines) == 24
    assert not any(line.endswith("…") for line in lines)
    head, states, *_places, keys, titles, first, second, third, anywhere = lines[:11]
    assert head == "liveness demo   12 s of 40   timeout 10 s, lease 5 s"
    assert states == "host-1 up   host-2 down   host-3 up   Redis up   123 hops"
    assert keys == "s silence  h hop  1-3 kill/start host  r kill/start Redis  q end"
    assert len(titles.split()) == len(HOSTS_COLUMNS) + 2
    bars = [len(line.partition("  █")[2]) + 1 for line in (first, second)]
    assert bars[0] == 2 * bars[1]
    assert "█" not in third + anywhere
    assert "faults anywhere:  missed 0  false 1" in lines
    assert lines[-1] == "record 49"


@pytest.mark.parametrize("size", [(20, 5), (1, 1), (300, 100)])
def test_the_picture_of_hosts_never_outgrows_its_terminal(
    size: tuple[int, int],
) -> None:
    width, height = size
    lines = hosts_drawn(HOSTS_SCENE, width, height)
    assert all(line.cell_len <= width for line in lines)
    assert len(lines) <= height


# --- what it refuses ----------------------------------------------------------------------


def test_without_redis_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main.main(["demo", "--hosts", "3"]) == 1
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == (
        "",
        "liveness: the demo with several hosts needs redis-server, which is not on the "
        "PATH; run apt install redis-server\n",
    )


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "coredis", None)
    assert main.main(["demo", "--hosts", "3"]) == 1
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == (
        "",
        "liveness: the demo with several hosts needs the package coredis; run "
        "pip install 'liveness-sidecar[sidecar,cluster]'\n",
    )


@pytest.fixture
def old_redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that says to be Redis 6, alone on the PATH."""
    program = tmp_path / "redis-server"
    program.write_text(
        f"#!{shutil.which('sh')}\necho 'Redis server v=6.0.16 sha=00000000:0'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return program


def test_an_old_redis_is_refused(old_redis: Path) -> None:
    with pytest.raises(StartError) as refused:
        found_redis()
    assert str(refused.value) == (
        f"{old_redis} is version 6, and the demo with several hosts needs 7 or newer; "
        "install a newer Redis, or Valkey"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--users 501 --timeout 3", "use --users 500 or less"),
        ("--seconds 14.9", "use --seconds 15 or more"),
        ("--script 5_gateway", "unknown action; use silence, hop, host or redis"),
    ],
    ids=["users", "seconds", "script"],
)
def test_options_that_do_not_fit_several_hosts_are_refused(
    options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.replace("_", " ") for word in options.split()]
    assert main.main(["demo", "--hosts", "3", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.fullmatch(r"liveness: .*\n", shown.err)
    assert message in shown.err
