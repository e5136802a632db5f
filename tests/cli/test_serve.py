"""What `liveness serve` says before it makes anything."""

import json
import sys
from pathlib import Path

from tests.helpers.processes import environment, ran


def test_the_places_are_said_before_anything_is_made(tmp_path: Path) -> None:
    socket, state = tmp_path / "no/such/gateway.sock", tmp_path / "state"
    words = ["serve", f"--socket={socket}", f"--state={state}", "--http=127.0.0.1:0"]
    done = ran(sys.executable, "-m", "liveness", *words, env=environment())
    assert done.returncode == 78
    starting, *_, failed = map(json.loads, done.stderr.splitlines())
    assert (starting["event"], starting["state"]) == ("starting", str(state))
    assert f"{socket.parent}: the socket's folder cannot be made" in failed["error"]
    assert list(tmp_path.iterdir()) == []
