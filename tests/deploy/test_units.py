"""The units are hardened, and are of the sidecar that there is."""

import os
import shlex
import subprocess
from pathlib import Path

from liveness.config.settings import SETTINGS, HttpSettings
from liveness.config.sources import DEFAULT_FILE
from liveness.service.components import TURN_DEAD_S
from liveness.service.links.sockets import BACKLOG, SOCKET_MODE
from tests.helpers.command_lines import checked
from tests.helpers.needs import require
from tests.helpers.processes import ran, succeeded
from tests.helpers.units import (
    FOLDER,
    SERVICE,
    SOCKET,
    allowed_calls,
    seconds,
    setting,
    settings,
)


def exposure(unit: Path) -> subprocess.CompletedProcess[str]:
    analyze = require("systemd-analyze", "systemd")
    return subprocess.run(
        [analyze, "security", "--offline=true", "--threshold=20", unit],
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_is_exposed_to_2_0_at_most(tmp_path: Path) -> None:
    assert exposure(SERVICE).returncode == 0, exposure(SERVICE).stdout
    bare = tmp_path / "bare.service"
    bare.write_text("[Service]\nExecStart=/opt/liveness/bin/liveness serve\n")
    assert exposure(bare).returncode == 1


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
    assert str(config.state.dir) == f"/var/lib/{setting(SERVICE, 'StateDirectory')}"
    folder = str(config.socket.path.parent)
    assert setting(SERVICE, "ReadWritePaths") == folder
    assert f"\nd {folder} " in (FOLDER / "liveness.tmpfiles").read_text()
    assert "RuntimeDirectory" not in settings(SERVICE)
    assert config.http.host == "127.0.0.1"
    assert setting(SERVICE, "IPAddressAllow") == "localhost"


def test_it_is_given_the_socket_that_it_takes() -> None:
    assert int(setting(SOCKET, "Backlog")) == BACKLOG
    assert setting(SERVICE, "Sockets") == SOCKET.name


def test_its_limits_are_wider_than_its_own() -> None:
    most = {one.name: one.bounds[1] for one in SETTINGS if one.bounds}
    http = HttpSettings()
    files = 2 * most["limits.max_links"] + 2 * http.max_connections
    assert int(setting(SERVICE, "LimitNOFILE")) > files + http.max_streams + 100
    assert seconds(SERVICE, "WatchdogSec") > 2 * TURN_DEAD_S
    assert seconds(SERVICE, "TimeoutStopSec") > 5


def test_only_a_wrong_setting_delays_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "sleep").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "sleep").chmod(0o755)
    command = shlex.split(setting(SERVICE, "ExecStopPost").replace("$$", "$"))
    delays = {
        status: succeeded(
            ran(*command, env={"PATH": str(tmp_path), "EXIT_STATUS": status})
        )
        for status in ("0", "1", str(os.EX_CONFIG), "KILL")
    }
    assert delays == {"0": "", "1": "", str(os.EX_CONFIG): "10\n", "KILL": ""}
    assert seconds(SERVICE, "TimeoutStopSec") > 10


def test_one_user_is_named_everywhere() -> None:
    users = {(FOLDER / "liveness.sysusers").read_text().split("\nu ")[1].split()[0]}
    users |= {*(FOLDER / "liveness.tmpfiles").read_text().split("\nd ")[1].split()[2:4]}
    for unit in (SERVICE, SOCKET):
        keys = ("User", "Group", "SocketUser", "SocketGroup")
        users |= {settings(unit)[key][0] for key in keys if key in settings(unit)}
    assert users == {"liveness"}


def test_what_is_not_its_business_is_refused() -> None:
    allowed = allowed_calls()
    assert {"read", "accept4", "fsync", "chown", "setrlimit"} <= allowed
    assert not {"mount", "setuid", "ptrace", "reboot", "bpf", "setpriority"} & allowed
