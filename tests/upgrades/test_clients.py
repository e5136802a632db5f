"""Client libraries and sidecars of neighbouring releases serve each other."""

import json
import sys
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

import liveness
from tests.helpers.processes import environment, ran, succeeded
from tests.helpers.tree import ROOT
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar
from tests.upgrades.releases import RELEASES

pytestmark = pytest.mark.long

GATEWAY: Final = Path(__file__).with_name("gateway.py")
BOUND_S: Final = 300.0  # of a test
# Of a user that another process keeps online, with room for its being slow.
TIMEOUT_S: Final = 1.5


@pytest.fixture(params=["older gateway", "older sidecar"])
def roots(request: pytest.FixtureRequest, previous: Path) -> tuple[Path, Path]:
    """The projects of the gateway and of the sidecar."""
    return (previous, ROOT) if request.param == "older gateway" else (ROOT, previous)


def started(make: Start, root: Path, timeout_s: float) -> Sidecar:
    sidecar = make(timeout_s)
    sidecar.root = root
    sidecar.start()
    assert sidecar.line("starting")["version"] == version_of(root)
    return sidecar


def version_of(root: Path) -> str:
    return liveness.__version__ if root == ROOT else RELEASES[-1].version


def printed(root: Path, *words: str) -> list[dict[str, Any]]:
    """The JSON lines of a Python program that runs with the package of a project."""
    command = [sys.executable, *words]
    env = environment(PYTHONPATH=str(root))
    lines = succeeded(ran(*command, timeout=BOUND_S, cwd=root, env=env)).splitlines()
    return [json.loads(line) for line in lines]


def test_a_gateway_reports_and_is_answered_across_releases(
    make: Start, roots: tuple[Path, Path]
) -> None:
    client, server = roots
    sidecar = started(make, server, TIMEOUT_S)
    watcher = sidecar.watcher()
    learned = printed(client, str(GATEWAY), str(sidecar.socket))
    assert learned == [
        {"version": version_of(client)},
        {"timer": ["remind:talks", "tea", 1]},
        {"end": ["silent", 2, "silence"]},
        {"stats": [1, 1, 0, 0]},
    ]
    watcher.sync()
    facts = [
        (record["kind"], record.get("uid", record.get("key")), record.get("reason"))
        for record in watcher.records
    ]
    assert facts[:3] == [
        ("online", uid, "login") for uid in ("talks", "silent", "leaves")
    ]
    assert sorted(facts[3:], key=str) == [
        ("offline", "leaves", "logout"),
        ("offline", "silent", "silence"),
        ("timer", "remind:talks", None),
    ]
    (silent,) = [r for r in watcher.records if r.get("reason") == "silence"]
    assert silent["silence"] >= TIMEOUT_S


def test_a_watch_asks_an_older_sidecar_and_reads_all_gateways(
    make: Start, previous: Path
) -> None:
    sidecar = started(make, previous, 60)
    for name, uid in (("g", "ada"), ("h", "bob")):
        link = sidecar.gateway(name, kinds=[])
        link.apply("login", uid, {"conn": 1})

    async def main() -> None:
        with anyio.fail_after(BOUND_S):
            async with liveness.watch(sidecar.socket, after=0) as watch:
                uids = [(await anext(watch))["uid"] for _ in range(2)]
                assert uids == ["ada", "bob"]
                assert await watch.online(["ada", "eve"], anywhere=True) == {"ada"}
                (found,) = await watch.where(["bob"])
                assert (found.gateway, found.conn) == ("h", 1)
                sessions = (await watch.list()).sessions
                assert {session.uid for session in sessions} == {"ada", "bob"}

    anyio.run(main, backend="trio")
