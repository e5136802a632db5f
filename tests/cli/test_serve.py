"""What `liveness serve` says before it makes anything."""

import json
import sys
from pathlib import Path

from liveness.cli.serve import places
from liveness.config.settings import Config, HttpSettings, SocketSettings, StateSettings
from tests.helpers.processes import environment, ran


def said(address: str, *, unix_user: int) -> list[str]:
    config = Config(
        socket=SocketSettings(path=Path("/run/liveness/gateway.sock")),
        state=StateSettings(dir=Path("/var/lib/liveness")),
        http=HttpSettings(address=address),
    )
    return list(places(config, unix_user=unix_user))


def test_a_terminal_is_shown_the_places_of_all_there_is() -> None:
    assert said("[::1]:9874", unix_user=1000) == [
        "socket: /run/liveness/gateway.sock, with admin.sock beside it",
        "state: /var/lib/liveness",
        "live page: http://[::1]:9874/",
        "log: here, on stderr",
    ]
    assert "a free port of 127.0.0.1" in said("127.0.0.1:0", unix_user=1000)[2]


def test_the_places_are_said_before_anything_is_made(tmp_path: Path) -> None:
    socket, state = tmp_path / "no/such/gateway.sock", tmp_path / "state"
    words = ["serve", f"--socket={socket}", f"--state={state}", "--http=127.0.0.1:0"]
    done = ran(sys.executable, "-m", "liveness", *words, env=environment())
    assert done.returncode == 78
    starting, *_, failed = map(json.loads, done.stderr.splitlines())
    assert (starting["event"], starting["state"]) == ("starting", str(state))
    assert f"{socket.parent}: the socket's folder cannot be made" in failed["error"]
    assert list(tmp_path.iterdir()) == []


def test_root_is_told_so_first() -> None:
    as_root, places, *others = said("127.0.0.1:9874", unix_user=0)
    assert as_root.startswith("this sidecar runs as root")
    assert places == "other places: --socket, --state and --http name them"
    assert others == said("127.0.0.1:9874", unix_user=1000)
