"""The example gateway of each client serves the demo's users, whatever is killed."""

import re
import sys
from typing import Final

import pytest

from tests.clients.programs import CLIENTS
from tests.helpers.processes import environment, ran
from tests.helpers.tree import ROOT

SECONDS: Final = 15
# Of a busy machine: the demo itself takes as long as it is told to.
ENDS_S: Final = 120
SCRIPT: Final = "3 kill, 6 gateway, 9 restart"


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CLIENTS)
def test_no_user_is_reported_wrongly(name: str) -> None:
    command = CLIENTS[name].gateway_command()
    words = [sys.executable, "-m", "liveness", "demo", "--gateway", command]
    size = f"--seconds {SECONDS} --timeout 2 --users 100".split()
    done = ran(
        *words,
        *size,
        "--script",
        SCRIPT,
        cwd=ROOT,
        env=environment(),
        timeout=SECONDS + ENDS_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\nfaults: early 0, missed 0, false 0\n" in done.stdout
    assert re.search(r"^fall silent +\d+ +0 +[1-9]", done.stdout, re.M), done.stdout
