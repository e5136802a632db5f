"""`liveness watch --cluster` and `liveness cluster` against a real Redis."""

import json
import re
from collections.abc import Callable

import pytest

from liveness.cli import main
from liveness.cluster.events import ClusterGap, Listed, Rollback
from liveness.cluster.format import Place
from liveness.console.cluster_lines import event_line
from tests.helpers.cluster_publisher import ClusterPublisher
from tests.helpers.redis_servers import RedisServer

Run = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def run(
    redis: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Runs a command; returns its exit code, its lines, and what it says on stderr."""
    monkeypatch.setenv("LIVENESS_CLUSTER_URL", redis.url)

    def result(*arguments: str) -> tuple[int, list[str], str]:
        code = main.main(arguments)
        said = capsys.readouterr()
        return code, said.out.splitlines(), said.err

    return result


@pytest.fixture
def host(redis: RedisServer) -> ClusterPublisher:
    host, other = ClusterPublisher(redis), ClusterPublisher(redis, "b")
    host.online("ada", 7)
    other.online("ada")
    host.offline("ada")
    return host


# --- watch ----------------------------------------------------------------------------


def test_the_records_of_all_hosts_are_shown_and_the_position_to_go_on_from(
    run: Run, host: ClusterPublisher
) -> None:
    code, lines, said = run("watch", "--cluster", "--from", "oldest", "--count", "3")
    assert code == 0
    shown = {re.sub(r"^\S+ \S+  |  p [01] v \d+$", "", line) for line in lines}
    assert shown == {
        "online   ada  gw on a  login",
        "online   int:7  gw on a  login",
        "moved    ada  gw on b from gw on a  newest",
    }
    position = said.rpartition("--from ")[2].strip()
    host.online("bob")
    _, lines, _ = run("watch", "--cluster", "--from", position, "--count=1", "--json")
    record = json.loads(lines[0])
    assert (record["uid"], record["host"], record["kind"]) == ("bob", "a", "online")


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            Rollback(3, 5),
            "rollback  Redis lost what came after: those records are void  p 3",
        ),
        (ClusterGap(3, 0, 5), "records since the beginning are no longer kept  p 3"),
        (Listed(3, 5, [Place("a", "h", "g", 1, 2, "")], True), "1 users online  p 3"),
    ],
    ids=["rollback", "gap", "listed"],
)
def test_other_events_are_lines_too(
    event: Rollback | ClusterGap | Listed, line: str
) -> None:
    assert event_line(event).endswith(line)


# --- cluster --------------------------------------------------------------------------


def test_status_shows_servers_hosts_and_partitions(
    run: Run, host: ClusterPublisher
) -> None:
    code, lines, _ = run("cluster", "status")
    assert code == 0
    assert lines[0] == "users online  2"
    assert lines[1].endswith(" used, noeviction")
    table = [line.split() for line in lines]
    assert ["a", "live", "1"] in [row[:3] for row in table]
    assert ["b", "live", "1"] in [row[:3] for row in table]
    assert ["0", "1"] in [row[:2] for row in table]


def test_status_as_json(run: Run, redis: RedisServer, host: ClusterPublisher) -> None:
    found = json.loads("\n".join(run("cluster", "status", "--json")[1]))
    assert found["users"] == 2
    (server,) = found["servers"]
    assert server["address"] == redis.address
    assert server["policy"] == "noeviction"
    assert [host["state"] for host in found["hosts"]] == ["live", "live"]
    assert sum(partition["users"] for partition in found["partitions"]) == 2


def test_where_shows_each_session(run: Run, host: ClusterPublisher) -> None:
    code, lines, _ = run("cluster", "where", "ada", "int:7", "kim")
    assert code == 0
    assert [line.partition("  session")[0] for line in lines] == [
        "ada  gw on b",
        "int:7  gw on a",
    ]
    (line,) = run("cluster", "where", "ada", "--json")[1]
    assert json.loads(line)["host"] == "b"
    assert run("cluster", "where", "kim") == (1, [], "")


# --- mistakes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("cluster status", "no host has published here yet"),
        ("cluster where ada", "no host has published here yet"),
        ("watch --cluster --after 3", "--after is of one sidecar: leave it out"),
        ("watch --cluster --kind timer", "--kind timer is of one sidecar"),
        ("watch --cluster --from 3", "--from: position '3' is none"),
        ("watch --from oldest", "--from is of all hosts: add --cluster"),
    ],
)
def test_what_cannot_be_done_is_said(run: Run, arguments: str, said: str) -> None:
    code, _, line = run(*arguments.split())
    assert code == 1
    assert line.startswith(f"liveness: {said}")


@pytest.mark.parametrize("command", ["cluster status", "watch --cluster"])
def test_a_redis_that_is_away_is_said(
    run: Run, redis: RedisServer, command: str
) -> None:
    redis.kill()
    code, _, line = run(*command.split())
    assert code == 1
    assert line.startswith(f"liveness: Redis at {redis.address}: ")
    assert "is the address right" in line


def test_without_a_cluster_the_settings_are_named(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LIVENESS_CLUSTER_URL")
    for command in ("cluster status", "watch --cluster"):
        assert run(*command.split())[2].startswith(
            "liveness: no cluster is configured: set cluster.url"
        )
