"""The sidecar on a machine of its own, run by systemd: from one release to the next.

The tests are the days of one machine, in their order: the last release is installed and
serves 5,000 users, this version takes its place, it is restarted, killed and hung, and
both are removed. A gateway is connected for most of that time, see `load`.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from liveness import __version__
from tests.helpers.needs import require_root
from tests.helpers.tree import ROOT
from tests.machine.bases import base, wheels
from tests.machine.load import FALL_SILENT, Report
from tests.machine.nspawn import Machine, booted
from tests.upgrades.releases import RELEASES, export

# The first test waits for the base, which is fetched if the cache has none.
pytestmark = [pytest.mark.machine, pytest.mark.timeout(900)]

PACKAGES: Final = (
    *("systemd", "systemd-sysv", "dbus", "procps"),
    *("python3-venv", "python3-dev", "gcc", "libc6-dev", "make"),
)
LAST: Final = RELEASES[-1]
UNITS: Final = "/usr/lib/systemd/system"
SETTINGS: Final = "/etc/liveness/liveness.toml"
# Half a minute is the unit's own.
WATCHDOG: Final = "[Service]\nWatchdogSec=6s\n"
# A start takes half a second, and up to ten times that beside others.
START_S: Final = 10.0
# What the unit has systemd wait after an end for a wrong setting.
WRONG_SETTING_S: Final = 10.0


class Host(Machine):
    """A machine with the sources of both versions."""

    def make(self, target: str, source: str, *, purge: str = "") -> str:
        """`make install` or `make uninstall`; what it said."""
        given = (
            "PIP_NO_INDEX=1",
            "PIP_FIND_LINKS=/wheels",
            "CFLAGS=-O0",
            f"PURGE={purge}",
        )
        command = ("make", "--no-print-directory", "-C", source, target)
        return self.run("env", *given, *command).stderr

    def service(self, name: str) -> str:
        """A property of the service."""
        command = ["systemctl", "show", "--value", f"--property={name}"]
        return self.says(*command, "liveness.service")

    def restarted(self, pid: str, within_s: float = START_S) -> None:
        """Waits until the service is served by another process than this."""
        asked = "systemctl show --value --property=MainPID liveness.service"
        active = "systemctl is-active --quiet liveness.service"
        self.until(f'[ "$({asked})" != {pid} ] && {active}', within_s)

    def journal(self) -> list[dict[str, Any]]:
        """The lines of the sidecar's processes, without those of systemd."""
        own = "_SYSTEMD_UNIT=liveness.service"
        lines = self.says("journalctl", "--output=json", own)
        return [json.loads(line) for line in lines.splitlines()]


class Load:
    """The gateway of 5,000 users; a process of this host, not of the machine."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin
        assert process.stdout
        self._process, self._stdin, self._stdout = (
            process,
            process.stdin,
            process.stdout,
        )

    def online(self) -> None:
        assert self._stdout.readline() == "online\n"

    def silence(self) -> None:
        """Some users fall silent, before what comes next."""
        self._stdin.write("\n")
        self._stdin.flush()

    def report(self) -> Report:
        output, _ = self._process.communicate()
        return Report(**json.loads(output))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    require_root()
    released = export(LAST, tmp_path_factory.mktemp("released") / "source")
    (lock,) = [*released.glob("requirements.lock"), *released.glob("*/runtime.lock")]
    packages = wheels([ROOT / "requirements/runtime.lock", lock])
    places = {"/released": released, "/source": ROOT, "/wheels": packages}
    with booted(base(*PACKAGES), read_only=places) as pid:
        yield Host(pid)


@contextmanager
def loaded(host: Host) -> Iterator[Load]:
    socket = host.path("/run/liveness/gateway.sock")
    with subprocess.Popen(
        [sys.executable, "-m", "tests.machine.load", socket],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Load(process)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def load(host: Host) -> Iterator[Load]:
    """The gateway, of a sidecar that was installed, but not started."""
    host.make("install", "/released")
    drop_in = host.path("/etc/systemd/system/liveness.service.d/quick.conf")
    drop_in.parent.mkdir()
    drop_in.write_text(WATCHDOG)
    host.run("systemctl", "enable", "--now", "liveness.socket")
    with loaded(host) as load:
        yield load


def test_the_first_connection_starts_the_sidecar(host: Host, load: Load) -> None:
    load.online()
    assert host.service("ActiveState") == "active"
    assert (
        json.loads(host.says("liveness", "status", "--json"))["version"] == LAST.version
    )


def test_an_upgrade_takes_its_users_along(host: Host, load: Load) -> None:
    load.silence()
    pid = host.service("MainPID")
    said = host.make("install", "/source")
    assert "wheel: compiled" in said
    assert host.service("MainPID") == pid
    host.run("systemctl", "restart", "liveness.service")
    assert (
        json.loads(host.says("liveness", "status", "--json"))["version"] == __version__
    )


def test_a_killed_sidecar_is_started_again(host: Host, load: Load) -> None:
    load.silence()
    pid = host.service("MainPID")
    host.run("kill", "-KILL", pid)
    host.restarted(pid)


def test_the_watchdog_ends_a_hung_sidecar(host: Host, load: Load) -> None:
    load.silence()
    pid = host.service("MainPID")
    host.run("kill", "-STOP", pid)
    host.restarted(pid, within_s=6 + START_S)
    traces = [it["MESSAGE"] for it in host.journal() if it["_PID"] == pid]
    assert any("most recent call first" in line for line in traces)


def test_a_wrong_setting_is_retried_after_ten_seconds(host: Host, load: Load) -> None:
    load.silence()
    settings = host.path(SETTINGS)
    right = settings.read_text()
    settings.write_text(f"{right}\nwrong = 1\n")
    done = host.run("systemctl", "restart", "liveness.service", check=False)
    assert done.returncode
    first = int(host.service("ExecMainStartTimestampMonotonic"))
    settings.write_text(right)
    host.until(
        "systemctl is-active --quiet liveness.service", WRONG_SETTING_S + START_S
    )
    second = int(host.service("ExecMainStartTimestampMonotonic"))
    assert (second - first) / 1e6 > WRONG_SETTING_S


def test_a_stopped_sidecar_is_started_by_who_connects(host: Host, load: Load) -> None:
    load.silence()
    host.run("systemctl", "stop", "liveness.service")
    host.until("systemctl is-active --quiet liveness.service", START_S)


def test_nobody_was_missed_or_reported_falsely_or_refused(load: Load) -> None:
    report = load.report()
    assert report.probes > 100
    expected = Report(silent=5 * FALL_SILENT, probes=report.probes)
    assert report == expected


def test_the_journal_has_one_json_object_a_line(host: Host) -> None:
    entries = host.journal()
    hung = {it["_PID"] for it in entries if "call first" in it["MESSAGE"]}
    assert len(hung) == 1
    for entry in entries:
        # What Python writes while the watchdog ends it is text.
        assert entry["_PID"] in hung or isinstance(json.loads(entry["MESSAGE"]), dict)


def test_systemd_finds_no_fault_and_rates_it_as_the_manual_says(host: Host) -> None:
    units = ("liveness.service", "liveness.socket")
    verified = host.run("systemd-analyze", "verify", *units)
    assert verified.stdout + verified.stderr == ""
    rating = host.says("systemd-analyze", "security", "--no-pager", units[0])
    (exposure,) = re.findall(r"Overall exposure level .*: (\d\.\d)", rating)
    manual = (ROOT / "docs/deployment.md").read_text()
    assert f"rates it {exposure}." in manual, rating


def typed(host: Host, page: str, title: str, block: int = 0) -> None:
    """Type a document's lines, as root."""
    text = (ROOT / page).read_text().split(f"# {title}\n", 1)[1]
    blocks = re.findall(r"^```console\n(.*?)^```$", text, re.M | re.S)
    for line in re.findall(r"^\$ sudo (?!.* serve )(.*)$", blocks[block], re.M):
        host.run("bash", "-c", line)


def test_it_is_backed_up_and_restored_as_the_manual_says(host: Host) -> None:
    typed(host, "docs/backups.md", "Backups and the state")
    typed(host, "docs/backups.md", "Backups and the state", 1)
    host.run("liveness", "status")
    assert any("this is a backup, restored" in it["MESSAGE"] for it in host.journal())


def test_a_purge_that_is_refused_has_stopped_nothing(host: Host) -> None:
    host.run("systemd-run", "--uid=liveness", "--unit=other", "sleep", "infinity")
    assert "runs as the user liveness: end it first" in refused(host)
    host.run("systemctl", "stop", "other")
    host.run("useradd", "--gid", "liveness", "chat")
    assert "liveness is the primary group of the user chat" in refused(host)
    host.run("userdel", "chat")
    assert host.service("ActiveState") == "active"


def refused(host: Host, prefix: str = "/opt/liveness") -> str:
    """Why nothing was removed."""
    given = ("PURGE=1", f"PREFIX={prefix}")
    done = host.run("env", *given, "/source/deploy/install", "uninstall", check=False)
    assert done.returncode == 1
    return done.stderr


def test_uninstall_leaves_settings_state_and_user(host: Host) -> None:
    host.make("uninstall", "/source")
    for path in ("/run/liveness", "/opt/liveness", f"{UNITS}/liveness.socket"):
        assert not host.path(path).exists(), path
    assert host.path(SETTINGS).exists()
    assert host.path("/var/lib/liveness/liveness.db").exists()
    assert host.service("LoadState") == "not-found"


def test_purge_leaves_nothing(host: Host) -> None:
    host.make("uninstall", "/source", purge="1")
    assert not host.path("/etc/liveness").exists()
    assert not host.path("/var/lib/liveness").exists()
    assert host.run("getent", "passwd", "liveness", check=False).returncode


def test_without_systemd_the_manuals_commands_make_user_and_folders(host: Host) -> None:
    typed(host, "docs/deployment.md", "Without systemd")
    for folder, mode in (("/run/liveness", "755"), ("/var/lib/liveness", "700")):
        assert (
            host.says("stat", "-c", "%a %U %G", folder) == f"{mode} liveness liveness"
        )
