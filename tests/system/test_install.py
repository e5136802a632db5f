"""`make install`, for real: what it makes, that it serves, and that it can be removed.

All tests share one installation in a folder (it takes as long as `make setup`), and one
upgrade of it on a host that is an overlay of this one. Tests of the script alone give it
a stand-in for Python, which makes environments of one file.
"""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from liveness.config.sources import load
from tests.helpers.command_lines import checked
from tests.helpers.needs import as_root, needs, require, require_root
from tests.helpers.processes import Done, ran
from tests.helpers.tree import ROOT
from tests.system.client import Client
from tests.system.host import PIP, PYTHON, SYSTEM, Host, hosting, make, mounted
from tests.system.os_users import NOBODY
from tests.system.sidecar import Sidecar, eventually

pytestmark = pytest.mark.timeout(1_800)  # builds, and fetches what is locked

PREFIX: Final = "/opt/liveness"
SETTINGS: Final = "/etc/liveness/liveness.toml"
SERVICE: Final = "/usr/lib/systemd/system/liveness.service"
OUTSIDE: Final = {
    "/usr/local/bin/liveness",
    SERVICE,
    "/usr/lib/systemd/system/liveness.socket",
    "/usr/lib/sysusers.d/liveness.conf",
    "/usr/lib/tmpfiles.d/liveness.conf",
    "/usr/share/bash-completion/completions/liveness",
    "/usr/share/fish/vendor_completions.d/liveness.fish",
    "/usr/local/share/zsh/site-functions/_liveness",
}
UNITS: Final = ("liveness.service", "liveness.socket")


def files(folder: Path) -> set[str]:
    """All files, without folders and the prefix."""
    found = (path for path in folder.rglob("*") if not path.is_dir())
    paths = {f"/{path.relative_to(folder)}" for path in found}
    return {path for path in paths if not path.startswith(f"{PREFIX}/")}


@contextmanager
def in_memory() -> Iterator[Path]:
    """A folder in memory. Not one of pytest's: paths of sockets within must be short."""
    with (
        tempfile.TemporaryDirectory() as name,
        mounted(Path(name), "-t", "tmpfs", "tmpfs") as memory,
    ):
        yield memory


@pytest.fixture(scope="module")
def installed() -> Iterator[Path]:
    """A folder, in memory, in which `make install` was run."""
    with in_memory() as memory:
        dest = memory / "dest"
        require("gcc")
        done = make("install", f"DESTDIR={dest}")
        assert done.returncode == 0, done.stderr
        assert done.stderr.splitlines()[-1].endswith(f"{dest}{PREFIX}, wheel: compiled")
        yield dest


@pytest.fixture(scope="module")
def host(installed: Path) -> Iterator[Host]:
    """A host on which that was unpacked; its tests leave it as it is."""
    with set_up(installed) as host:
        yield host


@pytest.fixture
def own_host(installed: Path) -> Iterator[Host]:
    """Another one, for one test alone."""
    with set_up(installed) as host:
        yield host


@contextmanager
def set_up(installed: Path) -> Iterator[Host]:
    """A host on which it was unpacked, and systemd has made user and folder."""
    for program in ("systemd-sysusers", "systemd-tmpfiles"):
        require(program, "systemd")
    with hosting(installed) as host:
        Path(host.root / "root").chmod(0o755)  # where the tests' Python may be
        host.run("systemd-sysusers")
        host.run("systemd-tmpfiles", "--create", "liveness.conf")
        pretend_systemd(host)
        yield host


def pretend_systemd(host: Host) -> None:
    """By all that can be seen, it runs there."""
    host.path("/run/systemd/system").mkdir(parents=True)
    systemctl = host.path("/usr/bin/systemctl")
    systemctl.unlink(missing_ok=True)
    systemctl.write_text('#!/bin/sh\necho "$@" >>/run/told\n')
    systemctl.chmod(0o755)


def told(host: Host) -> list[str]:
    """What systemd was told to do since this was asked last."""
    path = host.path("/run/told")
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


class Installed(Sidecar):
    """The sidecar as its unit starts it, as the unit's user."""

    def __init__(self, host: Host) -> None:
        super().__init__(host.path("/run/liveness"))
        self.host = host

    def command(self) -> list[str]:
        start = exec_start(self.host.path(SERVICE))
        return self.host.command(*start, user="liveness:liveness")

    def environment(self) -> dict[str, str]:
        return {"PATH": SYSTEM, "LIVENESS_HTTP_ADDRESS": self.http}


@contextmanager
def serving(host: Host) -> Iterator[Client]:
    """A sidecar, and a gateway's link to it."""
    host.run("install", "-d", "-m", "700", "-o", "liveness", "/var/lib/liveness")
    with Installed(host) as sidecar:
        yield sidecar.start().gateway("gw-1")
        assert sidecar.stop() == 0


def test_an_installation_is_these_files(installed: Path) -> None:
    assert files(installed) == {SETTINGS, *OUTSIDE}
    made = installed / "opt/liveness"
    assert {path.name for path in made.parent.iterdir()} == {"liveness"}
    packages = {path.name.split("-")[0].lower() for path in made.glob("lib/*/*/*-info")}
    assert packages >= {"liveness_sidecar", "trio", "cyclopts"}
    assert packages >= {"coredis", "h11", "confluent_kafka"}
    assert not packages & {"pip", "setuptools", "wheel", "cython"}
    assert list(made.glob("lib/*/site-packages/liveness/core/wheel/_wheel.*.so"))


def test_everybody_may_read_it_and_only_root_may_change_it(installed: Path) -> None:
    for path in installed.rglob("*"):
        if not path.is_symlink():
            mode = path.stat().st_mode & 0o777
            runs = path.is_dir() or mode & 0o100
            wanted = {0o755} if runs else {0o644}
            assert mode in wanted, f"{path} {mode:o}"
            assert path.owner() == "root"


def test_no_file_names_the_folder_that_it_was_staged_in(installed: Path) -> None:
    assert ran("grep", "-rlF", str(installed), str(installed)).stdout == ""
    program = (installed / "opt/liveness/bin/liveness").read_text()
    assert program.startswith(f"#!{PREFIX}/bin/python\n")
    link = installed / "usr/local/bin/liveness"
    assert str(link.readlink()) == f"{PREFIX}/bin/liveness"


def test_the_settings_are_the_example_with_a_services_paths(installed: Path) -> None:
    path = installed / SETTINGS[1:]
    sections = tomllib.loads(path.read_text())
    assert {name: section for name, section in sections.items() if section} == {
        "socket": {"path": "/run/liveness/gateway.sock"},
        "state": {"dir": "/var/lib/liveness"},
    }
    plain = path.read_text().replace("\npath", "\n#path").replace("\ndir", "\n#dir")
    example = (ROOT / "deploy/liveness.toml").read_text()
    shared = installed / "opt/liveness/share/liveness/liveness.toml"
    assert plain == shared.read_text() == example
    command = exec_start(installed / SERVICE[1:])
    assert command[-2:] == ["--config", SETTINGS]
    for unix_user in (0, 1000):  # the sidecar's, and that of a client
        config = load(file=path, environ={"HOME": "/"}, unix_user=unix_user)
        assert config == checked(command[:-2], unix_user=0, file=path)


def exec_start(unit: Path) -> list[str]:
    (command,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.M)
    return str(command).split()


@needs("systemd-analyze", "systemd")
@needs("kill", "procps")  # which the unit names
def test_systemd_finds_nothing_to_say_about_the_units(host: Host) -> None:
    said = host.run("systemd-analyze", "verify", *UNITS, check=False)
    assert (said.returncode, said.stdout + said.stderr) == (0, "")
    # It returns 0 for this one too.
    unit = host.path(SERVICE)
    wrong = unit.with_name("liveness-wrong.service")
    wrong.write_text(unit.read_text().replace("ProtectClock=", "ProtectClocks="))
    said = host.run("systemd-analyze", "verify", wrong.name)
    assert "'ProtectClocks'" in said.stderr
    wrong.unlink()


def test_user_group_and_folder_are_those_of_the_units(host: Host) -> None:
    assert host.run("id", "-un", "liveness").stdout == "liveness\n"
    assert host.run("id", "-gn", "liveness").stdout == "liveness\n"
    assert host.mode_of("/run/liveness") == "755 liveness liveness"
    assert "/usr/sbin/nologin" in host.run("getent", "passwd", "liveness").stdout


def test_what_is_installed_serves(host: Host) -> None:
    version = host.run("liveness", "version", user="nobody").stdout
    assert version.endswith("wheel: compiled\n")
    with serving(host) as gateway:
        gateway.send("login", "ada", {"conn": 1, "timeout": 1})
        ended = gateway.until(lambda found: found)
        assert [(one["kind"], one["uid"]) for one in ended] == [("offline", "ada")]
        assert host.run("liveness", "status", "--quiet").returncode == 0


def test_it_is_backed_up_and_restored_as_the_manual_says(own_host: Host) -> None:
    text = (ROOT / "docs/backups.md").read_text()
    backup, restore = re.findall(r"^```console\n(.*?)^```$", text, re.M | re.S)[:2]
    with serving(own_host) as gateway:
        gateway.apply("login", "of then", {"conn": 1, "timeout": 3_600})
        *_, line = follow(own_host, backup)
        assert ": records up to " in line
        gateway.apply("login", "of later", {"conn": 2, "timeout": 3_600})
    told(own_host)
    follow(own_host, restore)
    units = "liveness.socket liveness.service"
    assert told(own_host) == [f"stop {units}", f"start {units}"]
    with serving(own_host) as gateway:
        online, _ = gateway.listed()
        assert [*online] == ["of then"]


def follow(host: Host, block: str) -> list[str]:
    """Run a document's lines as root; what each printed."""
    lines = re.findall(r"^\$ sudo (.*)$", block, re.M)
    return [host.run("bash", "-c", line).stdout for line in lines]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("liveness sta", {"status"}),
        ("liveness timers ", {"list", "show", "cancel", "retry"}),
        ("liveness serve --s", {"--socket", "--state", "--slots"}),
        ("liveness serve --config /et", set[str]()),  # so bash offers files
    ],
)
def test_bash_completes(host: Host, line: str, offered: set[str]) -> None:
    script = f"""
        source /usr/share/bash-completion/completions/liveness
        [[ $(complete -p liveness) =~ -o\\ default\\ -F\\ (.*)\\ liveness ]]
        COMP_LINE={line!r} COMP_WORDS=({line} {"''" if line.endswith(" ") else ""})
        COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)) COMP_POINT=${{#COMP_LINE}}
        "${{BASH_REMATCH[1]}}"
        echo "${{COMPREPLY[@]}}"
    """
    assert {*host.run("bash", "-uc", script).stdout.split()} == offered


# --- again, and away


def test_a_second_install_upgrades_and_finishes_an_interrupted_one(
    own_host: Host,
) -> None:
    settings = own_host.path(SETTINGS)
    edited = settings.read_text().replace("#enabled = false", "enabled = true")
    settings.write_text(edited)
    with serving(own_host) as gateway:
        own_host.path(PREFIX).rename(own_host.path(f"{PREFIX}.old"))
        half = own_host.path(f"{PREFIX}.new")
        half.mkdir()
        (half / ".made").touch()
        (half / "half").touch()
        own_host.path("/usr/lib/systemd/system/liveness.socket").unlink()
        # To the clone it writes nothing.
        with mounted(own_host.path("/mnt"), "--bind", "-o", "ro", str(ROOT)):
            done = own_host.run(
                *("make", "-C", "/mnt", "install", f"PYTHON={PYTHON}", "CC=false"),
                check=False,
                **PIP,
            )
        assert done.returncode == 0, done.stderr
        gateway.sync()  # it goes on with what it has
    assert f"kept {SETTINGS}" in done.stderr
    assert done.stderr.splitlines()[-1].endswith(": systemctl restart liveness.service")
    assert "enabled = true" in edited == settings.read_text()
    names = {path.name for path in own_host.path("/opt").glob("liveness*")}
    assert names == {"liveness"}
    assert not own_host.path(f"{PREFIX}/half").exists()
    assert own_host.path("/usr/lib/systemd/system/liveness.socket").exists()
    assert told(own_host) == ["daemon-reload"]
    # Without a compiler it serves as well.
    assert "wheel: reference" in own_host.run("liveness", "version").stdout
    with serving(own_host) as gateway:
        gateway.sync()


@contextmanager
def running(host: Host, user: str) -> Iterator[int]:
    """A process of a user, by its number."""
    command = host.command("cat", user=f"{user}:{user}")
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        eventually(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "cat\n")
        yield process.pid
        process.communicate()


def test_a_purge_that_is_refused_has_stopped_nothing(host: Host) -> None:
    told(host)
    with mounted(host.path("/mnt"), "--bind", str(ROOT)):
        with running(host, "liveness") as pid:
            process = uninstall(host, PURGE="1")
        host.run("useradd", "--gid", "liveness", "chat")
        group = uninstall(host, PURGE="1")
        host.run("userdel", "chat")
    end = "Nothing was stopped or removed\n"
    assert process.stderr == (
        f"liveness: process {pid} runs as the user liveness: end it first. {end}"
    )
    assert group.stderr == (
        "liveness: liveness is the primary group of the user chat: "
        f"give it another by usermod -g. {end}"
    )
    assert told(host) == []
    assert host.path(SERVICE).exists()


def test_purge_of_a_host_stops_it_and_takes_its_user(own_host: Host) -> None:
    told(own_host)
    with mounted(own_host.path("/mnt"), "--bind", str(ROOT)):
        own_host.run("make", "-C", "/mnt", "uninstall", "PURGE=1")
    stopped = "disable --now liveness.socket liveness.service"
    assert told(own_host) == [stopped, "daemon-reload"]
    for path in (PREFIX, "/etc/liveness", "/var/lib/liveness", *OUTSIDE):
        assert not own_host.path(path).exists(), path
    assert not own_host.knows_user()


def refused(
    target: str,
    given: dict[str, str],
    user: int = 0,
    script: Path = ROOT / "deploy/install",
) -> str:
    """The one line of an error after which nothing was done."""
    require_root()
    done = ran(script, target, env=os.environ | given, user=user)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("liveness: ")
    return line


@pytest.mark.parametrize(
    ("there", "given", "why"),
    [
        ("opt/liveness/mine", {}, "opt/liveness was not made by make install: "),
        ("opt/liveness.new/mine", {}, "liveness.new was not made by make install: "),
        ("usr/local/bin/liveness", {}, "bin/liveness was not made by make install: "),
        ("mine", {"PREFIX": "opt/liveness"}, "PREFIX=opt/liveness is no folder that"),
        ("mine", {"PREFIX": "/opt/a|b"}, "PREFIX=/opt/a|b is no folder that"),
        ("mine", {"PREFIX": "/"}, "PREFIX=/ is no folder that"),
        ("mine", {"PREFIX": "/usr/local"}, "PREFIX=/usr/local is for more than"),
        ("mine", {"PREFIX": "/opt"}, "PREFIX=/opt is for more than"),
        ("mine", {"PREFIX": "/var/lib/liveness"}, "PREFIX=/var/lib/liveness is for"),
        ("mine", {"PREFIX": "/a", "BINDIR": "/a/bin"}, "PREFIX=/a is for more than"),
        ("mine", {"UNITDIR": "/a/../b"}, "UNITDIR=/a/../b is no folder that"),
    ],
    ids=lambda it: str(it)[:30],
)
def test_other_files_are_left_alone(
    tmp_path: Path, there: str, given: dict[str, str], why: str
) -> None:
    (tmp_path / there).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / there).touch()
    for target in ("install", "uninstall"):
        line = refused(target, {"DESTDIR": str(tmp_path), **given})
        assert why in line or target == "uninstall"
    assert files(tmp_path) | {f"/{there}"} == {f"/{there}"}
    assert (tmp_path / there).exists()


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_a_prefix_that_others_may_change_is_refused(tmp_path: Path, mode: int) -> None:
    loose = tmp_path / "loose"
    loose.mkdir()
    loose.chmod(mode)
    # Were this not refused, the install would end at this Python.
    given = {"PREFIX": f"{loose}/liveness", "BINDIR": "/none", "PYTHON": "/bin/false"}
    for target in ("install", "uninstall"):
        line = refused(target, given)
        assert f"{loose} can be changed by others than root: " in line
    assert not list(loose.iterdir())


@pytest.fixture
def public() -> Iterator[tuple[Path, Path]]:
    """A folder that every user may enter, and a copy of the script in it."""
    with tempfile.TemporaryDirectory() as name:
        script = Path(name) / "deploy/install"
        script.parent.mkdir()
        Path(name).chmod(0o755)
        shutil.copy(ROOT / "deploy/install", script)
        yield Path(name), script


@as_root
def test_only_root_installs_without_destdir(public: tuple[Path, Path]) -> None:
    assert refused("install", {}, NOBODY, public[1]) == (
        "liveness: only root can install in /opt/liveness: sudo make install, or name a "
        "folder of your own with DESTDIR="
    )


@as_root
def test_a_folder_that_cannot_be_written_is_refused(public: tuple[Path, Path]) -> None:
    folder, script = public
    why = ": it is no folder, or you may not write there"
    line = refused("install", {"DESTDIR": str(folder)}, NOBODY, script)
    assert line == f"liveness: nothing can be made in {folder}{why}"
    for file in ("dest", "usr/lib/systemd", "etc/liveness"):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
        dest = folder / "dest" if file == "dest" else folder
        line = refused("install", {"DESTDIR": str(dest)}, 0, script)
        assert line == f"liveness: nothing can be made in {folder / file}{why}"
        (folder / file).unlink()


# --- the script alone

# Makes environments of itself; of the rest it does what the script asks it for itself.
STAND_IN: Final = f"""#!/bin/bash
case "$*" in
*renameat2*) ${{CANNOT_EXCHANGE:-exec {PYTHON}}} "$@" ;;
*" -m venv "*) mkdir -p "${{!#}}/bin" && cp "$0" "${{!#}}/bin/python" && touch "${{!#}}/pyvenv.cfg" ;;
*_base_executable*) exec "${{SEEN:-/usr/bin/python3}}" "$@" ;;
esac
"""


class Quick:
    """Installations that take a moment, as a stand-in makes their environment.

    Args:
        folder: An empty one; its `dest` is installed in.
    """

    def __init__(self, folder: Path) -> None:
        self.dest, tools = folder / "dest", folder / "tools"
        self.prefix = self.dest / PREFIX[1:]
        tools.mkdir()
        self.python = tools / "python"
        self.program("python", STAND_IN)
        self.environ = {
            "PATH": f"{tools}:{SYSTEM}",
            "PYTHON": str(self.python),
            "DESTDIR": str(self.dest),
            "TMPDIR": str(tools),
        }

    def program(self, name: str, text: str) -> Path:
        """A program that is found before all others."""
        path = self.python.with_name(name)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def run(self, target: str, *under: str, **environ: str) -> Done:
        script = ROOT / "deploy/install"
        return ran(*under, script, target, env=self.environ | environ)


@pytest.fixture
def quick(tmp_path: Path) -> Quick:
    return Quick(tmp_path)


@pytest.mark.parametrize(
    ("seen", "is_told"),
    [
        ("/usr/bin/python3", False),
        ("/srv/open/python3", False),
        ("/srv/closed/python3", True),
        ("/srv/open/closed", True),  # by a link
        *((f"{home}/of/one/python3", True) for home in ("/home", "/root", "/run/user")),
    ],
)
def test_a_python_that_the_unit_may_not_see_is_warned_of(
    host: Host, quick: Quick, seen: str, is_told: bool
) -> None:
    for name, mode in (("closed", 0o700), ("open", 0o755)):
        host.path(f"/srv/{name}").mkdir(mode=mode, exist_ok=True)
    link = host.path(seen)
    link.parent.mkdir(parents=True, exist_ok=True)
    if seen == "/srv/open/closed":
        host.run("cp", "/usr/bin/python3", "/srv/closed/of-its-own")
        link.symlink_to("/srv/closed/of-its-own")
    elif not link.exists():
        host.run("cp", "/usr/bin/python3", seen)
    python, dest = str(quick.python), "/srv/open/dest"
    script = str(ROOT / "deploy/install")
    done = host.run(script, "install", PYTHON=python, DESTDIR=dest, SEEN=seen)
    assert ("may not see it" in done.stderr) == is_told


@pytest.mark.parametrize("name", ["liveness", "liveness.old", "liveness.new"])
def test_the_remains_of_an_interrupted_removal_go(quick: Quick, name: str) -> None:
    assert quick.run("install").returncode == 0
    whole = quick.prefix.with_name(name)
    quick.prefix.rename(whole)
    for number in range(20):  # whichever comes first
        (whole / f"{number}").touch()
    with mounted(whole / "busy", "-t", "tmpfs", "tmpfs"):
        assert quick.run("uninstall").returncode != 0
        assert (whole / ".made").exists()
    assert quick.run("uninstall").returncode == 0
    assert files(quick.dest) == {SETTINGS}
    assert not whole.exists()


@pytest.mark.parametrize("is_slow", [False, True])
@pytest.mark.parametrize(
    "number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
)
def test_an_upgrade_that_is_interrupted_leaves_a_whole_program(
    quick: Quick, number: signal.Signals, is_slow: bool
) -> None:
    if is_slow:
        require("strace")
    # Slow, the shell looks up only when what it called has ended already.
    under = ["strace", "-o", "/dev/null", "-e", "inject=clone:delay_exit=10ms"]
    opt = quick.prefix.parent
    assert quick.run("install").returncode == 0
    (quick.prefix / "first").touch()
    move = quick.program(
        "mv",
        f'#!/bin/bash\n/usr/bin/mv "$@"\n[[ $* != *.old ]] || kill -{number} $PPID\n',
    )
    ended = quick.run("install", *(under * is_slow), CANNOT_EXCHANGE="false")
    assert ended.returncode == -number
    if number != signal.SIGKILL:
        assert [path.name for path in opt.iterdir()] == ["liveness"]
        assert (quick.prefix / "first").exists()
        # Where folders can be exchanged, nothing is moved.
        move.write_text("#!/bin/bash\nkill -KILL $PPID\n")
        assert quick.run("install").returncode == 0
    move.unlink()
    assert quick.run("install").returncode == 0
    assert [path.name for path in opt.iterdir()] == ["liveness"]
    assert not (quick.prefix / "first").exists()
    assert files(quick.dest) == {SETTINGS, *OUTSIDE}


@pytest.mark.parametrize("purge", ["", "1"])
def test_uninstall_leaves_settings_and_state_and_purge_nothing(
    quick: Quick, purge: str
) -> None:
    state = "/var/lib/liveness/liveness.db"
    assert quick.run("install").returncode == 0
    (quick.dest / state[1:]).parent.mkdir(parents=True)
    (quick.dest / state[1:]).touch()
    done = make("uninstall", f"DESTDIR={quick.dest}", f"PURGE={purge}")
    assert done.returncode == 0, done.stderr
    there = {f"/{path.relative_to(quick.dest)}" for path in quick.dest.rglob("*")}
    left = {SETTINGS, state, "/etc", "/etc/liveness", "/var/lib/liveness"}
    not_made = {"/var", "/var/lib"}  # by the script
    assert there == not_made | (set() if purge else left)


def test_a_purge_needs_no_installation(quick: Quick) -> None:
    assert quick.run("install").returncode == 0
    assert quick.run("uninstall").returncode == 0
    assert files(quick.dest) == {SETTINGS}
    refused("uninstall", quick.environ)
    done = quick.run("uninstall", PURGE="1")
    assert (done.returncode, files(quick.dest)) == (0, set())
    assert done.stderr == (
        f"liveness: removed {quick.dest}/etc/liveness, {quick.dest}/var/lib/liveness\n"
    )


def test_two_at_once_take_turns_and_say_so(quick: Quick) -> None:
    assert quick.run("install").returncode == 0
    held = os.open(quick.dest, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with subprocess.Popen(
        [ROOT / "deploy/install", "uninstall"],
        env=quick.environ,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line == "liveness: waiting for another make install or uninstall\n"
        assert quick.prefix.exists()
        os.close(held)
        process.communicate()
    assert process.returncode == 0
    assert not quick.prefix.exists()


# --- a host on which nothing was installed


@pytest.fixture
def bare() -> Iterator[Host]:
    """Such a host, with the clone at /mnt."""
    with in_memory() as memory:
        (memory / "nothing").mkdir()
        with (
            hosting(memory / "nothing") as host,
            mounted(host.path("/mnt"), "--bind", str(ROOT)),
        ):
            host.path(PREFIX).mkdir(parents=True)
            yield host


def uninstall(host: Host, **environ: str) -> Done:
    return host.run("/mnt/deploy/install", "uninstall", check=False, **environ)


def test_a_list_of_files_that_another_user_wrote_is_not_removed(bare: Host) -> None:
    made = bare.path(f"{PREFIX}/.made")
    victim = bare.path("/etc/victim")
    victim.touch()
    made.write_text("/etc/victim\n")
    error = (
        "liveness: /opt/liveness was not made by make install: nothing was removed\n"
    )
    for path in (made, made.parent):
        os.chown(path, NOBODY, NOBODY)
        assert uninstall(bare).stderr == error
        os.chown(path, 0, 0)
    made.rename(made.with_name("list"))
    made.symlink_to("list")
    assert uninstall(bare).stderr == error
    assert victim.exists()
    made.with_name("list").replace(made)
    # By a link of root's it is the same folder.
    bare.path("/srv/link").symlink_to("/opt")
    done = uninstall(bare, PREFIX="/srv/link/liveness")
    assert done.returncode == 0, done.stderr
    assert not victim.exists()
    assert not made.parent.exists()


def test_uninstall_leaves_no_socket(bare: Host) -> None:
    pretend_systemd(bare)
    bare.path(f"{PREFIX}/.made").touch()
    socket = bare.path("/run/liveness/gateway.sock")
    socket.parent.mkdir()
    socket.touch()
    done = uninstall(bare)
    assert done.returncode == 0, done.stderr
    assert told(bare) == [
        "disable --now liveness.socket liveness.service",
        "daemon-reload",
    ]
    assert not socket.parent.exists()


def test_a_link_into_a_folder_of_others_is_no_way_to_a_program(bare: Host) -> None:
    loose = bare.path("/srv/loose")
    loose.mkdir()
    loose.chmod(0o777)
    bare.path("/srv/there").symlink_to("/srv/loose")
    (loose / "back").symlink_to("/opt")
    for prefix, named in (
        ("/srv/there/liveness", "/srv/there"),
        ("/srv/loose/back/liveness", "/srv/loose"),
    ):
        done = uninstall(bare, PREFIX=prefix)
        assert f"{named} can be changed by others than root: " in done.stderr
        assert done.returncode == 1


def test_without_systemd_the_manuals_commands_set_it_up(bare: Host) -> None:
    (block,) = re.findall(
        r"^### Without systemd$.*?```console\n(.*?)```",
        (ROOT / "docs/deployment.md").read_text(),
        re.M | re.S,
    )
    *prepare, serve = re.findall(r"^\$ sudo (.*)$", block, re.M)
    program = bare.path("/usr/local/bin/liveness")
    program.write_text('#!/bin/sh\necho "$(id -un) $(id -Gn) $*"\nexec cat\n')
    program.chmod(0o755)
    for command in prepare:
        bare.run(*command.split())
    for folder, mode in (("/run/liveness", "755"), ("/var/lib/liveness", "700")):
        assert bare.mode_of(folder) == f"{mode} liveness liveness"
    bare.path(f"{PREFIX}/.made").write_text("/usr/local/bin/liveness\n")
    with subprocess.Popen(
        bare.command(*serve.split()),
        env={"PATH": SYSTEM},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said == f"liveness liveness serve --config {SETTINGS}\n"
        done = uninstall(bare, PURGE="1")
        assert done.returncode == 1
        assert str(process.pid) in done.stderr
        assert program.exists()
        assert bare.path("/var/lib/liveness").exists()
        process.communicate()
    done = uninstall(bare, PURGE="1")
    assert done.returncode == 0, done.stderr
    for path in (PREFIX, "/var/lib/liveness", "/run/liveness"):
        assert not bare.path(path).exists(), path
    assert not bare.knows_user()
