"""The compiled modules, and the fallback without them.

The builds are real, of a copy of the sources, with this environment's setuptools and Cython.
"""

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from liveness.config import compiled
from tests.helpers.needs import needs_compiler
from tests.helpers.processes import Done, ran
from tests.helpers.tree import ROOT

# What would steer a build or a run, were it set where the tests are started.
STEERING = {"CC", "CFLAGS", "CPPFLAGS", "LDFLAGS", "LDSHARED"}
STEERING |= {"CI", "REQUIRE_COMPILED"}
SHOW = "from liveness.config import compiled; print(compiled.WHEEL, compiled.WHY_PURE_PYTHON, sep=': ')"
NOT_COMPILED = (
    "it was not compiled for this Python; apt install gcc python3-dev, then install "
    "liveness again (in a clone: make setup)"
)


def environ(**more: str) -> dict[str, str]:
    """The environment of a machine's new user, and what a test adds to it."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in STEERING and not name.startswith("LIVENESS_")
    }
    return kept | more


def python(*arguments: str, cwd: Path, **more: str) -> Done:
    """Run this environment's Python; what lies in *cwd* is imported before all else."""
    return ran(sys.executable, *arguments, cwd=cwd, env=environ(**more))


def without(*patterns: str) -> Callable[[str, list[str]], set[str]]:
    return shutil.ignore_patterns("__pycache__", *patterns)


# --- which one serves


def test_the_gate_runs_on_the_compiled_wheel() -> None:
    assert compiled.WHEEL == "compiled" or not os.environ.get("CI")


def test_the_reference_serves_where_it_is_forced(tmp_path: Path) -> None:
    forced = python("-c", SHOW, cwd=tmp_path, LIVENESS_PURE_WHEEL="1")
    assert forced.stdout == "reference: LIVENESS_PURE_WHEEL is set\n"
    by_itself = python("-c", SHOW, cwd=tmp_path, LIVENESS_PURE_WHEEL="0")
    assert by_itself.stdout in ("compiled: \n", f"reference: {NOT_COMPILED}\n")


@pytest.mark.parametrize(
    "module",
    sorted(path.stem for path in ROOT.glob("liveness/core/*/_*.pyx")),
)
def test_half_of_what_is_compiled_does_not_serve(tmp_path: Path, module: str) -> None:
    shutil.copytree(
        ROOT / "liveness", tmp_path / "liveness", ignore=without(f"{module}.*.so")
    )
    half = python("-c", SHOW, cwd=tmp_path)
    assert half.stdout == f"reference: {NOT_COMPILED}\n"


def test_what_was_compiled_and_cannot_be_loaded_is_told(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "liveness", tmp_path / "liveness", ignore=without("*.so"))
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    broken = tmp_path / f"liveness/core/wheel/_table{suffix}"
    broken.write_bytes(b"\x7fELF, and no more")
    shown = python("-c", SHOW, cwd=tmp_path).stdout
    assert shown.startswith("reference: the compiled modules cannot be loaded (")
    assert broken.name in shown
    assert "; apt install gcc python3-dev, then install liveness again" in shown


@needs_compiler
@pytest.mark.slow
def test_where_one_module_does_not_compile_the_reference_serves(tmp_path: Path) -> None:
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "liveness", tmp_path / "liveness", ignore=without("*.so"))
    gcc = tmp_path / "gcc"
    gcc.write_text(
        '#!/bin/sh\ncase "$*" in *_wire*) echo out of order >&2; exit 1;; esac\n'
        f'exec {shutil.which("gcc")} "$@"\n'
    )
    gcc.chmod(0o755)
    build = ("setup.py", "-q", "build_ext", "--inplace")
    made = python(*build, cwd=tmp_path, CC=str(gcc), CFLAGS="-O0")
    assert made.returncode == 0, made.stderr
    assert "out of order" in made.stderr
    shown = python("-c", SHOW, cwd=tmp_path).stdout
    assert shown == f"reference: {NOT_COMPILED}\n"
    required = python(
        *build, cwd=tmp_path, CC=str(gcc), CFLAGS="-O0", REQUIRE_COMPILED="1"
    )
    assert required.returncode != 0
