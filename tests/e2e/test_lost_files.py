"""The file of a socket, or the state folder, removed under a sidecar that runs."""

import re
import shutil
import subprocess
from contextlib import closing
from typing import Final

from tests.e2e.client import Client
from tests.e2e.conftest import Start
from tests.e2e.sidecar import ROOT, Sidecar, eventually
from tests.e2e.test_activation import Manager

# In the place of systemd's. What has ended and was not waited for is a zombie.
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


def test_sockets_that_were_removed_are_made_anew_and_links_go_on(make: Start) -> None:
    sidecar = make(socket_mode="0600").start()
    early = sidecar.gateway("early")
    for path in (sidecar.socket, sidecar.admin):
        path.unlink()
    sidecar.line("ready")
    for path in (sidecar.socket, sidecar.admin):
        eventually(path.is_socket)
        assert path.stat().st_mode & 0o777 == 0o600
    for name in ("gateway", "admin"):
        sidecar.metric_until(lambda it: it == 1, "liveness_files_lost_total", file=name)
    late = sidecar.gateway("late")
    for gateway in (early, late):
        gateway.send("login", f"of-{gateway}", {"conn": 1})
        gateway.settle()
    assert sidecar.get("/readyz", admin=True)[0] == 200
    assert sidecar.stop() == 0
    assert not sidecar.socket.exists()


def test_a_socket_whose_place_another_sidecar_took_is_left_to_that(make: Start) -> None:
    first, second = make().start(), make()
    second.socket, second.admin = first.socket, first.admin
    for path in (first.socket, first.admin):
        path.unlink()
    second.launch()
    # Whoever comes second gives way: it ends, or is not ready.
    eventually(lambda: second.process.poll() is not None or ready(first)[0] == 503)
    if second.process.poll() is None:
        assert "another process serves there" in ready(first)[1]
        second.stop()
    else:
        second.ended()
    eventually(lambda: ready(first)[0] == 200)
    first.gateway("gw").settle()


def commands() -> str:
    """What the runbook has an operator do, as it is there."""
    text = (ROOT / "docs/runbook.md").read_text()
    section = text.split("### The state is gone", 1)[1]
    found = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert found
    return found[1]


def test_the_state_that_was_removed_is_said_and_can_be_copied_out(make: Start) -> None:
    sidecar = make().start()
    gateway = sidecar.gateway("gw")
    gateway.send("login", "ada", {"conn": 1})
    gateway.send("after", "remind", 3_600)
    gateway.settle()
    shutil.rmtree(sidecar.state)
    eventually(lambda: ready(sidecar)[0] == 503)
    assert f"state directory {sidecar.state}: liveness.db, " in ready(sidecar)[1]
    sidecar.line("what is in use is not where it was")
    gateway.send("login", "bob", {"conn": 2})
    gateway.send("after", "soon", 0.1)
    gateway.send("after", "remind again", 3_600)
    gateway.settle()
    gateway.until(lambda records: [it for it in records if it["kind"] == "timer"])
    script = commands()
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


def test_a_socket_of_a_manager_is_not_made_anew_and_that_is_said(make: Start) -> None:
    with closing(Manager(make())) as manager:
        sidecar = manager.sidecar
        sidecar.launch()
        sidecar.line("ready")
        with Client(sidecar.socket) as gateway:
            gateway.hello("gw")
            sidecar.socket.unlink()
            eventually(lambda: ready(sidecar)[0] == 503)
            assert "restart its unit" in ready(sidecar)[1]
            assert not sidecar.socket.exists()
            lines = list[str]()
            while not any(
                line.startswith("STATUS=not ready: socket") for line in lines
            ):
                lines = manager.told.sock.recv(4096).decode().split("\n")
            gateway.settle()
