"""A storm in a running sidecar, shown by the commands an operator has."""

import json
import re

import pytest

from liveness.cli.main import main
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar

# Long enough for a busy machine not to be over before the test has looked.
HOLD_S = 600


def test_a_storm_is_shown_by_status(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    sidecar = start(1, guard_enabled="true", guard_least_users=20, guard_hold_s=HOLD_S)

    def run(*command: str) -> str:
        assert main([*command, "--socket", str(sidecar.socket)]) == 0
        shown, told = capsys.readouterr()
        assert told == ""
        return shown

    gateways = {name: sidecar.gateway(name) for name in ("gw-1", "gw-2")}
    for name, gateway in gateways.items():
        gateway.send("login", [f"{name} {n}" for n in range(40)])
    is_held(sidecar, 80)
    assert sidecar.metric("liveness_storms_total") == 2
    shown = run("status")
    assert re.search(r"^held +storm 80, ", shown, re.M)
    assert re.search(
        r"^storm +gw-[12] 40 users, \d+ s left; gw-[12] 40 users, ", shown, re.M
    )
    storms = json.loads(run("status", "--json"))["storms"]
    assert sorted(storm["gateway"] for storm in storms) == [*gateways]


def is_held(sidecar: Sidecar, users: int) -> None:
    sidecar.metric_until(lambda held: held == users, "liveness_users_held", why="storm")
