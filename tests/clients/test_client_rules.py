"""The example gateway of each client keeps the rules of the protocol."""

import json
import sys
from typing import Final

import pytest

from tests.clients.programs import CLIENTS
from tests.helpers.processes import environment, ran
from tests.helpers.tree import ROOT

RUN_S: Final = 240
UNTRIED: Final = {"G32"}  # timers, for which users of the demo's lines cannot ask


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CLIENTS)
def test_the_gateway_keeps_every_rule(name: str) -> None:
    command = CLIENTS[name].gateway_command()
    words = [sys.executable, "-m", "liveness", "conformance", "--json"]
    done = ran(*words, "--command", command, cwd=ROOT, env=environment(), timeout=RUN_S)
    rules = json.loads(done.stdout)["rules"]
    wrong = {rule["rule"] for rule in rules if rule["verdict"] != "pass"}
    assert wrong == UNTRIED, done.stdout
    assert done.returncode == 0, done.stderr
