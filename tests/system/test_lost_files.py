"""The file of a socket, or the state folder, removed under a sidecar that runs."""

import re
import shutil
import subprocess
from typing import Final

from tests.helpers.tree import ROOT
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar, eventually

# Stands in for systemd's. A process that has ended and was not waited for is a zombie.
SYSTEMCTL: Final = """
systemctl() {{
    case $1 in
    show) echo {pid} ;;
    stop) kill -TERM {pid}; until grep -q zombie /proc/{pid}/status; do sleep 0.1; done ;;
    esac
}}
"""


def ready(sidecar: Sidecar) -> tuple[int, str]:
    return sidecar.get("/readyz")


def test_the_state_that_was_removed_is_said_and_can_be_copied_out(make: Start) -> None:
    sidecar = make().start()
    gateway = sidecar.gateway("gw")
    gateway.send("login", "ada", {"conn": 1})
    gateway.apply("after", "remind", 3_600)
    shutil.rmtree(sidecar.state)
    eventually(lambda: ready(sidecar)[0] == 503)
    assert f"state directory {sidecar.state}: liveness.db, " in ready(sidecar)[1]
    sidecar.line("what is in use is not where it was")
    gateway.send("login", "bob", {"conn": 2})
    gateway.send("after", "soon", 0.1)
    gateway.apply("after", "remind again", 3_600)
    gateway.until(
        lambda records: [record for record in records if record["kind"] == "timer"]
    )
    # What the runbook has an operator do, as it is there.
    runbook = (ROOT / "docs/runbook.md").read_text()
    section = runbook.split("### The state is gone", 1)[1]
    (script, *_) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    for was, its in {
        "/var/lib/liveness": str(sidecar.state),
        "-o liveness -g liveness ": "",
    }.items():
        assert was in script
        script = script.replace(was, its)
    script = SYSTEMCTL.format(pid=sidecar.pid) + script
    subprocess.run(["sh", "-euc", script], check=True)
    assert sidecar.ended() == 0
    sidecar.start()
    online, _ = sidecar.gateway("gw").listed()
    assert {*online} == {"ada", "bob"}
    query = "select key from timers where state = 'pending'"
    assert sidecar.timer_rows(query) == [("remind",), ("remind again",)]
