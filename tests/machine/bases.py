"""The files for runs on whole machines: Debian's, and the locked wheels.

Both are kept from run to run in the user's cache folder, and made anew once they are old
or what they are made of has changed.
"""

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory, mkdtemp
from time import time_ns
from typing import Final

from packaging.markers import Marker

from tests.helpers.needs import require
from tests.helpers.processes import ran, succeeded

# Debian corrects what it has released; a base of last month lacks that.
MOST_AGE_S: Final = 14 * 86_400
MAKE_S: Final = 600.0
# By the Debian that has it.
PYTHONS: Final = {"bookworm": "3.11", "trixie": "3.13"}


def base(*packages: str, suite: str = "bookworm") -> Path:
    """A tar file with a root folder: a minimal Debian of this suite, and these packages."""
    name = f"{suite}-{_digest(' '.join(sorted(packages)).encode())}.tar"
    if _is_fresh(tar := _cache() / name):
        return tar
    made = Path(mkdtemp(dir=_cache()), name)
    include = f"--include={','.join(sorted(packages))}"
    words = [require("mmdebstrap"), "--quiet", "--variant=minbase", include]
    succeeded(ran(*words, suite, made, timeout=MAKE_S))
    return _kept(made, tar)


def wheels(locks: Sequence[Path], suite: str = "bookworm") -> Path:
    """A folder with each distribution that these locks name, for that Debian's Python."""
    python = PYTHONS[suite]
    contents = [_of_python(lock.read_text(), python) for lock in locks]
    folder = _cache() / f"wheels-{_digest(''.join([python, *contents]).encode())}"
    if _is_fresh(folder):
        return folder
    made = Path(mkdtemp(dir=_cache()), folder.name)
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    words += ["--require-hashes", "--python-version", python, "-d", str(made)]
    for content in contents:
        with NamedTemporaryFile("w") as lock:
            lock.write(content)
            lock.flush()
            succeeded(ran(*words, "-r", lock.name, timeout=MAKE_S))
    return _kept(made, folder)


def _of_python(lock: str, python: str) -> str:
    """What a lock asks for there, without markers: pip evaluates them for its own Python."""
    known = {"python_full_version": python, "python_version": python}
    return "\n".join(
        re.sub(r" ; .+", r" \\", entry, count=1)
        for entry in re.split(r"\n(?=\S)", lock)
        if not (found := re.search(r" ; (.+?) \\\n", entry))
        or Marker(found[1]).evaluate(known)
    )


@contextmanager
def unpacked(base: Path) -> Iterator[Path]:
    """The root folder of a base, without devices, until left."""
    with TemporaryDirectory(prefix="machine-") as folder:
        succeeded(ran("tar", "-xf", base, "-C", folder, "--exclude=./dev/*"))
        yield Path(folder)


def _kept(made: Path, place: Path) -> Path:
    """Moves the result to its place; another run may have put the same there."""
    if place.is_dir():
        shutil.rmtree(place)
    made.replace(place)
    made.parent.rmdir()
    return place


def _is_fresh(place: Path) -> bool:
    return place.exists() and time_ns() / 1e9 - place.stat().st_mtime < MOST_AGE_S


def _cache() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = home / "liveness"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
