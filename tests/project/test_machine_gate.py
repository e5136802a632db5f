"""When `make system` runs, and what it says when it does not."""

import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

from tests.helpers.needs import as_root, needs
from tests.helpers.processes import Done, ran
from tests.helpers.tree import ROOT
from tests.machine.gate import LIBRARY, NEEDED, gate, is_concerned


def system(*arguments: str, path: Path) -> Done:
    """Run it where there are no other programs than those in a folder."""
    command = [sys.executable, "-m", "tests.machine", *arguments]
    return ran(*command, cwd=ROOT, env={"PATH": str(path)})


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ("README.md setup.py", True),
        ("deploy/install", True),
        ("docs/deploy/setup.py liveness/setup.py", False),
        ("", False),
    ],
)
def test_it_is_about_what_is_shipped(files: str, expected: bool) -> None:
    assert is_concerned(files.split()) == expected
    assert is_concerned(None)  # without history


@needs("git")
def test_the_gate_leaves_it_out_if_nothing_has_changed(tmp_path: Path) -> None:
    (tmp_path / "setup.py").touch()
    who = ["-c", "user.name=x", "-c", "user.email=x"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "x"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    assert gate(tmp_path) == "nothing that it is about has changed of late"


def test_without_its_packages_it_fails_and_names_them(tmp_path: Path) -> None:
    done = system(path=tmp_path)
    assert done.returncode == 1
    names = [name for name, its in NEEDED.items() if not which(its, path=LIBRARY)]
    assert done.stderr == f"make system: apt install {' '.join(names)}\n"


@as_root
def test_where_no_container_starts_the_gate_leaves_it_out(tmp_path: Path) -> None:
    for program in ("git", *NEEDED.values()):
        (tmp_path / program).write_text("#!/bin/sh\necho forbidden >&2; exit 1\n")
        (tmp_path / program).chmod(0o755)
    done = system("--changed", path=tmp_path)
    assert done.returncode == 0
    assert done.stderr.startswith("make system: NOT RUN, because `systemd-nspawn ")
    assert done.stderr.endswith("` says: forbidden\n")
