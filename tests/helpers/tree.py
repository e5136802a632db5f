"""The files of the project: those in git, or without git, those that no tool made."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
# Of what git tracks an sdist lacks these, as MANIFEST.in says.
ONLY_IN_A_CLONE: Final = re.compile(r"tests/fuzz/corpus/")
needs_a_clone: Final = pytest.mark.skipif(
    not (ROOT / "tests/fuzz/corpus").exists(), reason="this is an sdist, and no clone"
)


def tracked(root: Path) -> list[str]:
    """The names of the files that git tracks, and that are there; without git all."""
    if not ((root / ".git").exists() and shutil.which("git")):
        return sorted(str(path.relative_to(root)) for path in files(root))
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True
    )
    names = [name for name in listed.stdout.decode().split("\0") if name]
    return [name for name in names if (root / name).is_file()]


def files(root: Path) -> Iterator[Path]:
    """Every file of the project, without what git, tools and builds leave."""
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        folders[:] = [name for name in folders if is_ours(here / name)]
        paths = [here / name for name in names if name != ".coverage"]
        yield from (path for path in paths if path.is_file() and path.suffix != ".so")


def is_ours(folder: Path) -> bool:
    if folder.name.startswith(".") and folder.name not in {".ci", ".github"}:
        return False
    if folder.name in {"__pycache__", "build", "dist"}:
        return False
    return folder.suffix != ".egg-info" and not (folder / "pyvenv.cfg").exists()
