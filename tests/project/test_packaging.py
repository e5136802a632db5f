"""The packages: an sdist from which all can be made and tested, and wheels of it.

What `make dist` does is done for real, in a copy of what git tracks in which tools have
left their things. The environments are real ones and pip fills them, without a network:
each is given links to just those of the packages installed here that the metadata asks
for, so an installation succeeds only if these are enough.
"""

import re
import shutil
import sys
import sysconfig
import tarfile
import venv
import zipfile
from concurrent.futures import ThreadPoolExecutor
from email import message_from_bytes
from email.message import Message
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import liveness
from tests.helpers.needs import needs_compiler
from tests.helpers.processes import Done, environment, ran, succeeded
from tests.helpers.tree import ONLY_IN_A_CLONE, ROOT, tracked
from tests.system.sidecar import Sidecar

NAME: Final = f"liveness_sidecar-{liveness.__version__}"
SUFFIX: Final = sysconfig.get_config_var("EXT_SUFFIX")
MODULES: Final = {
    f"{path.relative_to(ROOT).with_suffix('')}{SUFFIX}"
    for path in ROOT.glob("liveness/core/*/_*.pyx")
}
# Of which no file may be handed on; one lists another, as what there was once.
LEFT: Final = (
    ".venv/lib/left.py",
    ".pytest_cache/left",
    "build/lib/liveness/left.py",
    f"liveness/core/wheel/_wheel{SUFFIX}",
    "liveness/core/wheel/__pycache__/wheel.cpython-311.pyc",
    "tests/__pycache__/tree.cpython-311.pyc",
    "liveness_sidecar.egg-info/SOURCES.txt",
    "notes.txt",
)
# What setuptools adds.
OF_SETUPTOOLS: Final = re.compile(
    r"PKG-INFO|setup\.cfg|liveness_sidecar\.egg-info/[\w.-]+"
)

# A gateway's own programs: a user logs in and falls silent.
WITH_A_LOOP: Final = """
import sys, anyio, liveness
async def main():
    async with liveness.connect(sys.argv[1], name="gw-" + sys.argv[2]) as sidecar:
        sidecar.login(sys.argv[2], conn=7)
        end = await anext(sidecar.ended())
    print(end.conn, end.reason)
anyio.run(main, backend=sys.argv[2])
"""
SILENT: Final = "7 silence\n"
PIP_WHEEL: Final = (
    *(sys.executable, "-m", "pip", "wheel"),
    *("--no-deps", "--no-build-isolation"),
)


def run(*command: str | Path, cwd: Path | None = None, **environ: str) -> Done:
    """Run a command, in an environment in which nothing of ours is set."""
    choices = {"CC", "CFLAGS", "CI", "REQUIRE_COMPILED", "VENV", "MAKEFLAGS"}
    kept = {key: it for key, it in environment().items() if key not in choices}
    return ran(*command, cwd=cwd, env=kept | environ)


# --- what is made ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git tracks, and what tools have left between it."""
    folder = tmp_path_factory.mktemp("copy")
    for name in [*tracked(ROOT), *LEFT]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if name in LEFT:
            (folder / name).write_text("notes.txt\n")
        else:
            shutil.copy(ROOT / name, folder / name)
    # This environment stands for the one that `make setup LEVEL=runtime` would make.
    python = folder / ".venv/bin/python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def dist(copy: Path) -> Path:
    """The folder of the results of `make dist`; optimised it would take long."""
    succeeded(run("deploy/release", "dist", cwd=copy, CFLAGS="-O0"))
    return copy / "dist"


def unpacked(dist: Path, folder: Path) -> Path:
    """The source distribution's folder, in *folder*; by tar, as people do."""
    succeeded(run("tar", "-xf", dist / f"{NAME}.tar.gz", "-C", folder))
    return folder / NAME


@pytest.fixture(scope="module")
def sdist(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked, and nothing above it."""
    return unpacked(dist, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheels(dist: Path, sdist: Path) -> dict[str, Path]:
    """The wheel that `make dist` made, and the one for every machine.

    That is made in the same folder, in which an older version was built, so that files lie
    there that are gone by now; and CI, as it is set wherever gateways are built, changes
    nothing.
    """
    (compiled,) = dist.glob("*.whl")
    machine = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    library = sdist / f"build/lib.{machine}/liveness"
    library.mkdir(parents=True)
    (library / "gone.py").touch()
    made = (*PIP_WHEEL, "-w", sdist.parent, sdist)
    succeeded(run(*made, CI="true", LIVENESS_PURE_WHEEL="1"))
    (pure,) = sdist.parent.glob("*.whl")
    return {"compiled": compiled, "pure": pure}


def test_the_sdist_is_what_git_tracks_but_for_the_corpus(dist: Path) -> None:
    with tarfile.open(dist / f"{NAME}.tar.gz") as archive:
        inside = [
            member.name.removeprefix(f"{NAME}/")
            for member in archive
            if not member.isdir()
        ]
    assert len(inside) == len(set(inside))
    added = {name for name in inside if OF_SETUPTOOLS.fullmatch(name)}
    wanted = {name for name in tracked(ROOT) if not ONLY_IN_A_CLONE.match(name)}
    assert set(inside) - added == wanted - added


def inside(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def metadata(wheel: Path) -> Message:
    return message_from_bytes(inside(wheel)[f"{NAME}.dist-info/METADATA"])


@needs_compiler
@pytest.mark.parametrize("kind", ["compiled", "pure"])
def test_a_wheel_has_the_package_only(wheels: dict[str, Path], kind: str) -> None:
    ours = {name for name in tracked(ROOT) if name.startswith("liveness/")}
    assert {"liveness/py.typed", "liveness/service/http/page/index.html"} < ours
    packed = inside(wheels[kind])
    files = {name for name in packed if ".dist-info/" not in name}
    assert files == (ours | MODULES if kind == "compiled" else ours)
    assert all(packed[name] == (ROOT / name).read_bytes() for name in ours)


def test_pypi_would_take_what_is_made(dist: Path) -> None:
    succeeded(run(sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir()))


def test_of_the_same_commit_the_same_is_made(copy: Path, tmp_path: Path) -> None:
    made = []
    chosen = {"SOURCE_DATE_EPOCH": "1700000000", "LIVENESS_PURE_WHEEL": "1"}
    for umask in ("022", "027"):
        place = tmp_path / umask
        succeeded(run("sh", "-c", f"umask {umask}; cp -r {copy} {place}"))
        succeeded(run("deploy/release", "dist", cwd=place, **chosen))
        made.append([path.read_bytes() for path in sorted((place / "dist").iterdir())])
    assert len(made[0]) == 2
    assert made[0] == made[1]


# --- what is installed -------------------------------------------------------------------


def needed(wheel: Path, extra: str) -> set[str]:
    """The packages that a wheel needs, by the installed metadata."""
    found, left = set[str](), metadata(wheel).get_all("Requires-Dist", [])
    while left:
        asked = Requirement(left.pop())
        name = canonicalize_name(asked.name)
        applies = asked.marker is None or asked.marker.evaluate({"extra": extra})
        if applies and name not in found:
            found.add(name)
            left += distribution(name).requires or []
    return found


def installed(wheel: Path, folder: Path, extra: str = "") -> Path:
    """An environment with *wheel* and its requirements; returns its programs' folder."""
    venv.create(folder, symlinks=True, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in needed(wheel, extra):
        package = distribution(name)
        tops = {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}
        for top in tops:
            (site / top).symlink_to(Path(str(package.locate_file(top))))
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin/python")
    what = f"{wheel}[{extra}]" if extra else str(wheel)
    succeeded(run(*pip, "install", "--no-index", "--no-compile", what))
    return folder / "bin"


@pytest.fixture(scope="module")
def gateway(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment of a gateway, that only has the client library."""
    return installed(wheels["pure"], tmp_path_factory.mktemp("gateway") / "venv")


@needs_compiler
@pytest.mark.parametrize(
    ("kind", "wheel"),
    [
        ("compiled", "wheel: compiled"),
        ("pure", "wheel: reference, because it was not "),
    ],
)
def test_a_silent_user_goes_offline_whatever_was_installed(
    wheels: dict[str, Path], gateway: Path, tmp_path: Path, kind: str, wheel: str
) -> None:
    programs = installed(wheels[kind], tmp_path / "venv", "sidecar")
    shown = succeeded(run(programs / "liveness", "version"))
    assert shown.startswith(f"liveness {liveness.__version__} ")
    assert shown.splitlines()[1].startswith(wheel)
    python = gateway / "python"
    with Sidecar(tmp_path, timeout_s=1) as sidecar:
        sidecar.program = [str(programs / "liveness")]
        sidecar.start()
        address = str(sidecar.socket)
        gateways = [
            [python, "-c", WITH_A_LOOP, address, "asyncio"],
            [programs / "python", "-c", WITH_A_LOOP, address, "trio"],
        ]
        with ThreadPoolExecutor() as pool:
            for done in pool.map(lambda gateway: run(*gateway), gateways):
                assert succeeded(done) == SILENT


def test_the_command_names_missing_packages(gateway: Path) -> None:
    refused = run(gateway / "liveness", "version")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == (
        "liveness: the sidecar's packages are not installed (no module cyclopts): "
        "pip install 'liveness-sidecar[sidecar]'\n"
    )
