"""The example gateway of each client keeps the rules, and serves users while all is killed.

One file, so that one process builds each client once.
"""

import json
import re
import sys
from typing import Final

import pytest

from tests.clients.programs import CLIENTS
from tests.helpers.processes import environment, ran
from tests.helpers.tree import ROOT

RULES_S: Final = 240
UNTRIED: Final = {"G32"}  # timers, for which users of the demo's lines cannot ask
DEMO_S: Final = 15
# Of a busy machine: the demo itself takes as long as it is told to.
ENDS_S: Final = 120
SCRIPT: Final = "3 kill, 6 gateway, 9 restart"

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
each_client = pytest.mark.parametrize("name", CLIENTS)


@each_client
def test_the_gateway_keeps_every_rule(name: str) -> None:
    command = CLIENTS[name].gateway_command()
    words = [sys.executable, "-m", "liveness", "conformance", "--json"]
    done = ran(
        *words, "--command", command, cwd=ROOT, env=environment(), timeout=RULES_S
    )
    rules = json.loads(done.stdout)["rules"]
    wrong = {rule["rule"] for rule in rules if rule["verdict"] != "pass"}
    assert wrong == UNTRIED, done.stdout
    assert done.returncode == 0, done.stderr


@each_client
def test_no_user_is_reported_wrongly(name: str) -> None:
    command = CLIENTS[name].gateway_command()
    words = [sys.executable, "-m", "liveness", "demo", "--gateway", command]
    size = f"--seconds {DEMO_S} --timeout 2 --users 100".split()
    done = ran(
        *(*words, *size, "--script", SCRIPT),
        cwd=ROOT,
        env=environment(),
        timeout=DEMO_S + ENDS_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\nfaults: early 0, missed 0, false 0\n" in done.stdout
    # How many were missed, the demo itself has judged.
    assert re.search(r"^fall silent +\d+ +\d+ +[1-9]", done.stdout, re.M), done.stdout
