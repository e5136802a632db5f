"""The example gateway of each client keeps the rules, and serves users while all is killed.

One file, so that one process builds each client once.
"""

import json
import re
import shlex
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.clients.programs import CLIENTS, FLAGS
from tests.helpers.processes import environment, ran
from tests.helpers.tcp import is_held, narrow_connection
from tests.helpers.tree import ROOT
from tests.integrations.conftest import listening
from tests.system.sidecar import Sidecar, eventually

RULES_S: Final = 240
UNTRIED: Final = {"G32"}  # timers, for which users of the demo's lines cannot ask
DEMO_S: Final = 15
# For a busy machine: the demo itself takes as long as its options say.
ENDS_S: Final = 120
SCRIPT: Final = "3 kill, 6 gateway, 9 restart"
DEMO_GATEWAY: Final = f"{sys.executable} -m liveness.lab.demo.gateway {FLAGS}"
# The kernel takes 26 of these lines for a user. So for the first of the silent ones others
# wait in the gateway, fewer than those for which it cuts a user off, and for the last none.
LINE: Final = "x" * 3_900
LINES: Final = 40
SILENT: Final = 16
PATIENCE_S: Final = 120.0

pytestmark = [pytest.mark.long, pytest.mark.timeout(1_800)]
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


@pytest.mark.parametrize("name", [*CLIENTS, "python"])
def test_users_who_read_nothing_are_let_go(name: str, tmp_path: Path) -> None:
    """Whether what they have not read is with the kernel, or waits in the gateway."""
    command = DEMO_GATEWAY if name == "python" else CLIENTS[name].gateway_command()
    with Sidecar(tmp_path, timeout_s=2) as sidecar, ExitStack() as stack:
        sidecar.start()
        words = shlex.split(command.format(socket=sidecar.socket, name="gw", port=0))
        _, port = stack.enter_context(listening(*words))

        def enter(uid: str) -> socket.socket:
            stream = stack.enter_context(narrow_connection(port, PATIENCE_S))
            asked(stream, "joined", login=uid)
            return stream

        ada = enter("ada")
        silent = list[socket.socket]()
        for number in range(LINES):
            if number < SILENT:
                silent.append(enter(f"silent-{number}"))
            asked(ada, "say", say=LINE)
        eventually(
            lambda: not any(is_held(each) for each in silent), within_s=PATIENCE_S
        )


def asked(stream: socket.socket, answer: str, **request: str) -> None:
    """Write a line, and read up to one that has this key."""
    stream.sendall(json.dumps(request).encode() + b"\n")
    read = b""
    while f'"{answer}"'.encode() not in read or not read.endswith(b"\n"):
        piece = stream.recv(4096)
        assert piece, read
        read += piece
