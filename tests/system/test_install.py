"""`make install` in a folder: what it makes, what it refuses, and that it can be removed.

The script is given a stand-in for Python, which makes environments of one file. A whole
installation, on a machine with systemd: `tests/machine/test_systemd.py`.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.helpers.needs import require_root
from tests.helpers.processes import Done, ran
from tests.helpers.tree import ROOT

# This very environment's is one that a host has no use for.
PYTHON: Final[str] = sys._base_executable  # type: ignore[attr-defined]  # no other name
SYSTEM: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SCRIPT: Final = ROOT / "deploy/install"
PREFIX: Final = "/opt/liveness"
SETTINGS: Final = "/etc/liveness/liveness.toml"
OUTSIDE: Final = {
    "/usr/local/bin/liveness",
    "/usr/lib/systemd/system/liveness.service",
    "/usr/lib/systemd/system/liveness.socket",
    "/usr/lib/sysusers.d/liveness.conf",
    "/usr/lib/tmpfiles.d/liveness.conf",
    "/usr/share/bash-completion/completions/liveness",
    "/usr/share/fish/vendor_completions.d/liveness.fish",
    "/usr/local/share/zsh/site-functions/_liveness",
}


def files(folder: Path) -> set[str]:
    """All files, without folders and the prefix."""
    found = (path for path in folder.rglob("*") if not path.is_dir())
    paths = {f"/{path.relative_to(folder)}" for path in found}
    return {path for path in paths if not path.startswith(f"{PREFIX}/")}


# --- what is refused


def refused(
    target: str, given: dict[str, str], user: int = 0, script: Path = SCRIPT
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


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_prefix_that_others_may_change_is_refused(tmp_path: Path, mode: int) -> None:
    loose = tmp_path / "loose"
    loose.mkdir()
    loose.chmod(mode)
    (tmp_path / "link").symlink_to(loose)
    # Were this not refused, the install would end at this Python.
    given = {"BINDIR": "/none", "PYTHON": "/bin/false"}
    for place in (loose, tmp_path / "link"):
        for target in ("install", "uninstall"):
            line = refused(target, given | {"PREFIX": f"{place}/liveness"})
            assert f"{place} can be changed by others than root: " in line
    assert not list(loose.iterdir())


# --- the script alone

# Makes environments of itself; of the rest it does what the script asks it for itself.
STAND_IN: Final = f"""#!/bin/bash
case "$*" in
*renameat2*) ${{CANNOT_EXCHANGE:-exec {PYTHON}}} "$@" ;;
*" -m venv "*) mkdir -p "${{!#}}/bin" && cp "$0" "${{!#}}/bin/python" && touch "${{!#}}/pyvenv.cfg" ;;
*_base_executable*) exec /usr/bin/python3 "$@" ;;
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

    def run(self, target: str, **environ: str) -> Done:
        """Run the script, as of a root that keeps others out."""
        return ran(SCRIPT, target, env=self.environ | environ, umask=0o077)

    def names(self) -> list[str]:
        return [path.name for path in self.prefix.parent.iterdir()]


@pytest.fixture
def quick(tmp_path: Path) -> Quick:
    return Quick(tmp_path)


def test_an_upgrade_keeps_settings_and_finishes_an_interrupted_one(
    quick: Quick,
) -> None:
    assert quick.run("install").returncode == 0
    settings = quick.dest / SETTINGS[1:]
    settings.write_text("edited")
    quick.prefix.rename(quick.prefix.with_name("liveness.old"))
    half = quick.prefix.with_name("liveness.new")
    half.mkdir()
    (half / ".made").touch()
    (half / "half").touch()
    (quick.dest / "usr/lib/systemd/system/liveness.socket").unlink()
    done = quick.run("install")
    assert done.returncode == 0, done.stderr
    assert f"kept {settings}" in done.stderr
    assert settings.read_text() == "edited"
    assert quick.names() == ["liveness"]
    assert not (quick.prefix / "half").exists()
    assert files(quick.dest) == {SETTINGS, *OUTSIDE}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_upgrade_that_is_interrupted_leaves_a_whole_program(
    quick: Quick, number: signal.Signals
) -> None:
    assert quick.run("install").returncode == 0
    (quick.prefix / "first").touch()
    move = quick.program(
        "mv",
        f'#!/bin/bash\n/usr/bin/mv "$@"\n[[ $* != *.old ]] || kill -{number} $PPID\n',
    )
    ended = quick.run("install", CANNOT_EXCHANGE="false")
    assert ended.returncode == -number
    if number != signal.SIGKILL:
        assert quick.names() == ["liveness"]
        assert (quick.prefix / "first").exists()
        # Where folders can be exchanged, nothing is moved.
        move.write_text("#!/bin/bash\nkill -KILL $PPID\n")
        assert quick.run("install").returncode == 0
    move.unlink()
    assert quick.run("install").returncode == 0
    assert quick.names() == ["liveness"]
    assert not (quick.prefix / "first").exists()
    assert files(quick.dest) == {SETTINGS, *OUTSIDE}
