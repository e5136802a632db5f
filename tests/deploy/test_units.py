"""The units are of the sidecar that there is.

How they are hardened, and what systemd does by them: `tests/machine/test_systemd.py`.
"""

import re
from pathlib import Path
from typing import Final

from liveness.config.settings import SETTINGS, HttpSettings
from liveness.config.sources import DEFAULT_FILE
from liveness.service.components import TURN_DEAD_S
from liveness.service.links.sockets import BACKLOG, SOCKET_MODE
from tests.helpers.command_lines import checked
from tests.helpers.tree import ROOT

FOLDER: Final = ROOT / "deploy/systemd"
SERVICE: Final = FOLDER / "liveness.service"
SOCKET: Final = FOLDER / "liveness.socket"


def settings(unit: Path) -> dict[str, list[str]]:
    """What each key is set to, in order."""
    found: dict[str, list[str]] = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", unit.read_text(), re.M):
        found.setdefault(key, []).append(value)
    return found


def setting(unit: Path, key: str) -> str:
    (value,) = settings(unit)[key]
    return value


def seconds(unit: Path, key: str) -> float:
    """A time of the units, which have milliseconds and seconds only."""
    number, scale = re.findall(r"^(\d+)(ms|s)$", setting(unit, key))[0]
    return int(number) / (1000 if scale == "ms" else 1)


def test_it_runs_what_there_is_with_the_settings_that_are_installed() -> None:
    program, *arguments, flag, file = setting(SERVICE, "ExecStart").split()
    assert (program, flag, file) == (
        "/opt/liveness/bin/liveness",
        "--config",
        str(DEFAULT_FILE),
    )
    config = checked(
        [program, *arguments, flag, file], file=FOLDER / "../liveness.toml"
    )
    assert str(config.socket.path) == setting(SOCKET, "ListenStream")
    assert int(setting(SOCKET, "SocketMode"), 8) == SOCKET_MODE
    assert int(setting(SOCKET, "Backlog")) == BACKLOG
    assert setting(SERVICE, "Sockets") == SOCKET.name
    assert str(config.state.dir) == f"/var/lib/{setting(SERVICE, 'StateDirectory')}"
    folder = str(config.socket.path.parent)
    assert setting(SERVICE, "ReadWritePaths") == folder
    assert f"\nd {folder} " in (FOLDER / "liveness.tmpfiles").read_text()
    assert "RuntimeDirectory" not in settings(SERVICE)
    assert config.http.host == "127.0.0.1"
    assert setting(SERVICE, "IPAddressAllow") == "localhost"


def test_its_limits_are_wider_than_its_own() -> None:
    most = {one.name: one.bounds[1] for one in SETTINGS if one.bounds}
    http = HttpSettings()
    files = 2 * most["limits.max_links"] + 2 * http.max_connections
    assert int(setting(SERVICE, "LimitNOFILE")) > files + http.max_streams + 100
    assert seconds(SERVICE, "WatchdogSec") > 2 * TURN_DEAD_S
    assert seconds(SERVICE, "TimeoutStopSec") > 5
