"""A host on which the sidecar is installed, without a byte of this one being changed.

`make install` fills a folder with `DESTDIR`. That folder lies over this host's own root
in an overlay, as if its files had been unpacked there. What is run on such a host is run
by chroot, has everything at its real path, and writes to a file system in memory.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tests.helpers.needs import require, require_root
from tests.helpers.processes import Done, ran
from tests.helpers.tree import ROOT

INSTALL_S: Final = 1_200  # thirty times what it takes on a machine with time for it
SYSTEM: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# This very environment's is one that a host has no use for.
PYTHON: Final[str] = sys._base_executable  # type: ignore[attr-defined]  # no other name
# Where pip looks.
PIP: Final = {key: it for key, it in os.environ.items() if key.startswith("PIP_")}
OURS: Final = ("LIVENESS_", "MAKE", "VIRTUAL_ENV", "PYTHON", "PREFIX", "DESTDIR", "CI")


def installing() -> dict[str, str]:
    """The environment of who installs; it compiles quickly what nobody measures."""
    kept = {key: it for key, it in os.environ.items() if not key.startswith(OURS)}
    return kept | {"PYTHON": PYTHON, "CFLAGS": "-O0"}


def make(target: str, *variables: str, **environ: str) -> Done:
    """`make install` or `make uninstall` of this clone."""
    require("make")
    # With all that it started: what goes on would keep the next one waiting.
    bounded = ["timeout", str(INSTALL_S)]
    return ran(
        *(*bounded, "make", "--no-print-directory", target, *variables),
        cwd=ROOT,
        env=installing() | environ,
        umask=0o077,  # as of a root that keeps others out
    )


class Host:
    """Such a host; everything there is below *root*."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, path: str) -> Path:
        """Where we have what is at *path* there."""
        return self.root / path.lstrip("/")

    def command(self, *command: str, user: str = "") -> list[str]:
        as_user = [f"--userspec={user}"] if user else []
        return ["chroot", *as_user, str(self.root), *command]

    def run(
        self, *command: str, user: str = "", check: bool = True, **environ: str
    ) -> Done:
        """Runs *command* there, with no environment but a search path and *environ*."""
        line = self.command(*command, user=user)
        done = ran(*line, env={"PATH": SYSTEM, **environ}, timeout=INSTALL_S)
        assert done.returncode == 0 or not check, done.stderr
        return done

    def mode_of(self, path: str) -> str:
        """The mode, user and group of what is at *path*."""
        return self.run("stat", "-c", "%a %U %G", path).stdout.strip()

    def knows_user(self) -> bool:
        """Whether there is a user or a group of the units'."""
        databases = ("passwd", "group")
        asked = [self.run("getent", it, "liveness", check=False) for it in databases]
        return any(done.stdout for done in asked)


@contextmanager
def mounted(folder: Path, *arguments: str) -> Iterator[Path]:
    """A file system at *folder*, which is made."""
    require_root()
    mount = require("mount")
    folder.mkdir(exist_ok=True)
    subprocess.run([mount, *arguments, str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def hosting(installed: Path) -> Iterator[Host]:
    """A host like this one on which *installed*, in memory, was unpacked."""
    folder = Path(tempfile.mkdtemp(dir=installed.parent))
    folder.chmod(0o755)
    upper, work = folder / "upper", folder / "work"
    upper.mkdir()
    work.mkdir()
    # As on a disk, folders can be renamed.
    options = f"lowerdir={installed}:/,upperdir={upper},workdir={work},redirect_dir=on"
    overlay = ("-t", "overlay", "overlay", "-o", options)
    with ExitStack() as stack:
        root = stack.enter_context(mounted(folder / "root", *overlay))
        stack.enter_context(mounted(root / "run", "-t", "tmpfs", "tmpfs"))
        for name in ("resolv.conf", "hosts"):  # which are mounted in some containers
            (root / "etc" / name).unlink(missing_ok=True)
            shutil.copyfile(Path("/etc", name), root / "etc" / name)
        _forget_another(root, installed)
        for name in ("proc", "dev"):
            stack.enter_context(mounted(root / name, "--bind", f"/{name}"))
        yield Host(root)


def _forget_another(root: Path, installed: Path) -> None:
    """Take out what a sidecar that runs, or ran, on this very machine has left."""
    for name in ("var/lib/liveness", "etc/liveness", "opt/liveness"):
        if not (installed / name).exists() and (root / name).exists():
            shutil.rmtree(root / name)
    for name in ("passwd", "group", "shadow", "gshadow"):
        if (file := root / "etc" / name).exists():
            lines = file.read_text().splitlines(keepends=True)
            kept = [line for line in lines if not line.startswith("liveness:")]
            if kept != lines:
                file.write_text("".join(kept))
