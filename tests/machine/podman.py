"""Podman with settings, storage and networks of its own, and in it the sidecar's image.

It is built as `docs/deployment.md` says, from bases of Debian in the place of the official
ones, and of wheels that were fetched before: without a network. What the documents have a
reader type is run as it is there.
"""

import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

import liveness
from tests.helpers.needs import require, require_root
from tests.helpers.pages import shell_lines
from tests.helpers.processes import Done, ran, succeeded
from tests.helpers.tree import ROOT
from tests.machine.bases import MAKE_S, base, wheels
from tests.system.sidecar import eventually

IMAGE: Final = f"localhost/liveness:{liveness.__version__}"
BASES: Final = {
    "BASE": ("python3", "ca-certificates"),
    "BUILD_BASE": ("python3-venv", "python3-dev", "gcc", "libc6-dev"),
}
SUITE: Final = "trixie"
PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"

# What needs no systemd, and no right to raise limits: runc also takes the older cgroups.
# Everything that Podman keeps is in one folder, so that the host's own has no part in it.
CONTAINERS: Final = "CONTAINERS_CONF"
STORAGE: Final = "CONTAINERS_STORAGE_CONF"
SETTINGS: Final = {
    CONTAINERS: """
[containers]
default_ulimits = ["nofile=16384:16384", "nproc=8192:8192"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
runtime = "runc"
tmp_dir = "{folder}/tmp"
[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
""",
    STORAGE: """
[storage]
driver = "overlay"
graphroot = "{folder}/storage"
runroot = "{folder}/run"
""",
}
# No index: the wheels are there.
PIP: Final = "[global]\nno-index = true\nfind-links = /wheels\n"


class Podman:
    """Runs commands with these settings.

    Args:
        folder: Where all is that Podman keeps, and its settings.
        under: A command that runs others, as `nsenter` does.
    """

    def __init__(self, folder: Path, under: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self._under = under
        self._environ = os.environ | {
            name: str(folder / name) for name in (CONTAINERS, STORAGE)
        }

    def within(self, network: int) -> "Podman":
        """The same in the network of this process."""
        return Podman(self.folder, ("nsenter", f"--net=/proc/{network}/ns/net", "--"))

    def ran(self, *words: str | Path, **options: Any) -> Done:
        """Run a command, whatever comes of it."""
        # Where it begins a container it leaves a file if that runs out of memory.
        return ran(
            *self._under,
            *words,
            env=self._environ,
            **{"cwd": self.folder} | options,
        )

    def __call__(self, *words: str | Path, **options: Any) -> str:
        """The output of a command of Podman, which must not fail."""
        return succeeded(self.ran("podman", *words, **options)).strip()

    def typed(self, line: str, **options: Any) -> str:
        """The output of a page's line in a shell, which must not fail."""
        return succeeded(self.ran("bash", "-euo", "pipefail", "-c", line, **options))

    def load(self, name: str, *packages: str) -> str:
        """An image of a Debian with these packages."""
        image = f"localhost/{name}"
        path = f"ENV=PATH={PATH}"
        self("import", "--quiet", "--change", path, base(*packages, suite=SUITE), image)
        return image

    def build(self, line: str) -> None:
        """Build the image by a page's line, from our bases and without a network."""
        pip = self.folder / "pip.conf"
        pip.write_text(PIP)
        packages = wheels([ROOT / "requirements" / "runtime.lock"], SUITE)
        more = [
            *("--network", "none", "--volume", f"{packages}:/wheels:ro"),
            *("--volume", f"{pip}:/etc/pip.conf:ro"),
        ]
        for name, names in BASES.items():
            more += ["--build-arg", f"{name}={self.load(name.lower(), *names)}"]
        build = f"podman build {shlex.join(more)} "
        whole = replaced(line, {"podman build ": build})
        self.typed(whole, cwd=ROOT, timeout=MAKE_S)

    def inspect(self, name: str, what: str) -> str:
        return self("inspect", "--format", f"{{{{{what}}}}}", name)

    def popen(self, *words: str | Path, **options: Any) -> subprocess.Popen[str]:
        """A command of Podman that goes on."""
        return subprocess.Popen(
            [*self._under, "podman", *words],
            env=self._environ,
            text=True,
            **options,
        )


@contextmanager
def kept(folder: Path) -> Iterator[Podman]:
    """A Podman in an empty folder, which is removed at the end."""
    require_root()
    for program in ("podman", "runc"):
        require(program)
    if not Path("/usr/lib/podman/netavark").exists():
        pytest.skip("netavark is missing: apt install netavark")
    for name, text in SETTINGS.items():
        (folder / name).write_text(text.format(folder=folder))
    podman = Podman(folder)
    try:
        yield podman
    finally:
        # What cleans up behind the last container may still write there.
        reset = ("podman", "system", "reset", "--force")
        eventually(lambda: podman.ran(*reset).returncode == 0)


def line_of(page: str, begin: str) -> str:
    """The one line of a page's shell blocks that begins so."""
    (found,) = (line for line in shell_lines(page) if line.startswith(begin))
    return found


def replaced(line: str, changes: Mapping[str, str]) -> str:
    """A page's line with some words changed, each of which is there."""
    for old, new in changes.items():
        assert old in line, (old, line)
        line = line.replace(old, new)
    return line
