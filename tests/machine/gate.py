"""Whether `make system` runs, and that it runs whole.

With `--changed`, as the gate has it, the tests run only if a file has changed of late that
they are about, and only where a machine can run at all. What is missing from Debian is
installed then. A run that is left out says why, and is no failure.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.helpers.changes import changed, git
from tests.helpers.processes import ran, succeeded
from tests.helpers.tree import ROOT
from tests.machine.bases import PYTHONS
from tests.machine.nspawn import SPAWN
from tests.upgrades.releases import RELEASES

# What is shipped, and how.
CONCERNED: Final = ("deploy/", "tests/machine/")
CONCERNED_FILES: Final = (
    *("MANIFEST.in", "Makefile", "README.md", "pyproject.toml", "setup.py"),
    *("requirements/runtime.lock", "requirements/setup"),
)
# A program of each package. Podman's own lacks its networks, for which netavark calls iptables.
NEEDED: Final = {
    "iptables": "iptables",
    "mmdebstrap": "mmdebstrap",
    "netavark": "netavark",
    "podman": "podman",
    "runc": "runc",
    "systemd-container": "systemd-nspawn",
}
LIBRARY: Final = "/usr/lib/podman"  # where Debian has programs that only Podman calls


def is_concerned(files: Iterable[str] | None) -> bool:
    """Whether one of these changed files is what the tests are about; None: any may be."""
    if files is None:
        return True
    return any(file.startswith(CONCERNED) or file in CONCERNED_FILES for file in files)


def missing() -> list[str]:
    """Packages of Debian that are not here."""
    path = f"{os.environ['PATH']}:{LIBRARY}"
    programs = NEEDED.items()
    return [name for name, program in programs if not shutil.which(program, path=path)]


def obstacle() -> str:
    """Why no machine can run here, though all packages are there; or nothing."""
    if os.geteuid():
        return "only root can start one"
    # The smallest run of each. This host's own files will do.
    container = ("systemd-nspawn", *SPAWN, "--pipe", "--directory=/", "--volatile=yes")
    mirror = ("mmdebstrap", "--quiet", "--simulate", "--variant=essential")
    mirrors = [(*mirror, suite, "/dev/null") for suite in PYTHONS]
    for command in ((*container, "true"), *mirrors):
        if (done := ran(*command)).returncode:
            return f"`{' '.join(command)}` says: {done.stderr.strip()}"
    last = RELEASES[-1]
    if git(ROOT, "cat-file", "-t", last.commit) != ["commit"]:
        return f"the clone lacks {last.tag}: git fetch origin {last.commit}"
    return ""


def gate(root: Path) -> str:
    """Install missing packages; return why the tests are left out, or nothing."""
    if not is_concerned(changed(root)):
        return "nothing that it is about has changed of late"
    if os.geteuid() == 0 and (packages := missing()):
        apt = ("apt-get", "--quiet", "--quiet", "--yes", "--no-install-recommends")
        succeeded(ran(*apt, "update"))
        succeeded(ran(*apt, "install", *packages))
    return obstacle()


def main(arguments: list[str]) -> int:
    if arguments == ["--changed"]:
        arguments = []
        if why := gate(ROOT):
            print(f"make system: NOT RUN, because {why}", file=sys.stderr)
            return 0
    elif packages := missing():
        print(f"make system: apt install {' '.join(packages)}", file=sys.stderr)
        return 1
    pytest = [sys.executable, "-m", "pytest", "-m", "machine"]
    # A base is fetched in the time of a test.
    pytest += ["-o", "faulthandler_timeout=2400"]
    pytest += arguments or ["tests/machine"]
    return subprocess.call(pytest, env=os.environ | {"CI": "true"})  # no skips
