"""`liveness watch --cluster` and `liveness cluster` against a real Redis."""

import json
import re
from collections.abc import Callable

import pytest

from liveness.cli import main
from liveness.cluster.events import ClusterGap, Listed, Rollback
from liveness.cluster.format import Place, keys_of
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
    """Runs a command; returns its exit code, its lines, and its stderr."""
    monkeypatch.setenv("LIVENESS_CLUSTER_URL", redis.url)

    def result(*arguments: str) -> tuple[int, list[str], str]:
        code = main.main(arguments)
        said = capsys.readouterr()
        return code, said.out.splitlines(), said.err

    return result


@pytest.fixture
def host(redis: RedisServer) -> ClusterPublisher:
    host, other = ClusterPublisher(redis), ClusterPublisher(redis, "b")
    host.online("ada", 8)
    other.online("ada")
    host.offline("ada")
    return host


def test_the_records_of_all_hosts_are_shown(run: Run, host: ClusterPublisher) -> None:
    code, lines, said = run("watch", "--cluster", "--after", "0", "--count", "3")
    assert (code, said) == (0, "")
    shown = {re.sub(r"^\S+ \S+  |  p [01] v \d+$", "", line) for line in lines}
    assert shown == {
        "online   ada  gw on a  login",
        "online   8  gw on a  login",
        "moved    ada  gw on b from gw on a  login",
    }
    _, lines, _ = run("watch", "--cluster", "--after=0", "--count=1", "--json")
    assert json.loads(lines[0])["kind"] == "online"


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


def test_status_shows_hosts_and_partitions(run: Run, host: ClusterPublisher) -> None:
    code, lines, _ = run("cluster", "status")
    assert code == 0
    assert lines[0] == "users online  2"
    table = [line.split() for line in lines]
    assert ["a", "live", "1"] in [row[:3] for row in table]
    assert ["b", "live", "1"] in [row[:3] for row in table]
    assert ["0", "1"] in [row[:2] for row in table]


def test_status_shows_how_far_a_host_is_with_the_lists_of_its_sessions(
    run: Run, redis: RedisServer, host: ClusterPublisher
) -> None:
    host.begin(1)
    assert any(
        "asserting, 1 of 2 listed" in line for line in run("cluster", "status")[1]
    )
    found = json.loads("\n".join(run("cluster", "status", "--json")[1]))
    assert [row["listing"] for row in found["hosts"]] == [1, 0]


def test_what_cannot_be_done_is_said(run: Run, redis: RedisServer) -> None:
    code, _, line = run("cluster", "status")
    assert code == 1
    assert line.startswith("liveness: no host has published here yet")


def test_what_another_program_wrote_is_said(run: Run, redis: RedisServer) -> None:
    redis("HSET", keys_of("lv", 0).meta, "conf", "cake")
    for command in ("cluster status", "watch --cluster"):
        code, _, line = run(*command.split())
        assert code == 1
        assert "another program wrote this" in line


def test_a_redis_that_does_not_answer_is_said(
    run: Run,
    redis: RedisServer,
    host: ClusterPublisher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("liveness.cli.cluster_command.TIMEOUT_S", 0.2)
    redis.pause()
    code, _, line = run("cluster", "status")
    redis.resume()
    assert code == 1
    assert line == (
        f"liveness: {redis.url}: Redis did not answer within 0.2 s; see its log, and its "
        "load\n"
    )
