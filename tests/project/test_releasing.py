"""The parts of a release, and releases that `make release` refuses.

The wheels are made for real, of a copy of what git tracks, for this Python. What is locked is
downloaded for that.
"""

import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest
import yaml
from packaging.utils import parse_wheel_filename

import liveness
from tests.helpers.needs import needs_compiler
from tests.helpers.processes import succeeded
from tests.helpers.tree import ROOT
from tests.project.test_packaging import copy, run
from tests.project.test_repository import TARGETS

__all__ = ["copy"]  # a fixture

PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION: Final = liveness.__version__
TAG: Final = f"v{VERSION}"
WORKFLOW: Final = (ROOT / ".github/workflows/release.yml").read_text()
CI: Final = (ROOT / ".github/workflows/ci.yml").read_text()
HOST: Final = "https://code.invalid/liveness"
AGAIN: Final = f"git commit -a -m it; git tag -f -a -m it {TAG}"


# --- the wheels


@pytest.fixture(scope="module")
def dist(copy: Path) -> Path:
    """What `make wheels` makes for this Python; optimised it would take long."""
    chosen = {
        "PYTHONS": sys.executable,
        "CFLAGS": "-O0",
        "SOURCE_DATE_EPOCH": "1700000000",
    }
    succeeded(run("deploy/release", "wheels", cwd=copy, **chosen))
    return copy / "dist"


@needs_compiler
@pytest.mark.timeout(1_800)
def test_a_compiled_wheel_is_for_every_linux_and_the_pure_one_for_all(
    dist: Path,
) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    compiled, pure = sorted(dist.glob("*.whl"))
    assert {*dist.iterdir()} == {sdist, compiled, pure}
    tags = parse_wheel_filename(compiled.name)[3]
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    assert {(tag.interpreter, tag.abi) for tag in tags} == {(python, python)}
    assert all(tag.platform.startswith("manylinux") for tag in tags)
    assert "manylinux_2_17" in compiled.name
    assert [*map(str, parse_wheel_filename(pure.name)[3])] == ["py3-none-any"]


# --- what is refused


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A commit that may be released, in a clone of its own."""
    for name in ("deploy/release", "liveness/__init__.py", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").write_text(
        f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
    )
    (tmp_path / ".venv/bin/python").chmod(0o755)
    (tmp_path / ".gitignore").write_text("/.venv\n__pycache__\n")
    project = tmp_path / "pyproject.toml"
    project.write_text(project.read_text().replace(PROJECT["urls"]["Repository"], HOST))
    changes = f"# Changelog\n\n## [Unreleased]\n\n## [{VERSION}] - 2026-11-26\n\n- A.\n"
    (tmp_path / "CHANGELOG.md").write_text(changes)
    identity = "git config user.name a; git config user.email a@example.org"
    made = f"git init; {identity}; git add .; {AGAIN}"
    succeeded(run("sh", "-c", made, cwd=tmp_path))
    return tmp_path


def refusal(clone: Path, **chosen: str) -> str:
    """The error of a release from this clone, which lacks the tools."""
    released = run(
        "deploy/release", "release", cwd=clone, PYTHONS="", ENGINE="", **chosen
    )
    assert released.returncode != 0
    assert not (clone / "dist").exists()
    return released.stderr


def test_a_release_is_made_of_a_commit_with_its_tag_and_changes(clone: Path) -> None:
    runs = "setup.py"  # the first thing that it runs, and the clone lacks
    assert runs in refusal(clone, REPOSITORY=HOST)
    (clone / "new").touch()
    assert runs in refusal(clone, TRIAL="1")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("touch new", "the clone has changes that are not committed"),
        ("git commit --allow-empty -m it", f"does not have the tag {TAG}"),
        (
            f"sed -i 's/ - 2026-11-26//' CHANGELOG.md; {AGAIN}",
            "CHANGELOG.md does not have the section",
        ),
        (
            f"sed -i s#{HOST}#https://code.example/it# pyproject.toml; {AGAIN}",
            "is no host: set [project.urls]",
        ),
    ],
    ids=["changed", "the next one", "no date", "no host"],
)
def test_no_release_is_made_of_another_commit_nor_elsewhere(
    clone: Path, change: str, said: str
) -> None:
    succeeded(run("sh", "-c", change, cwd=clone))
    faults = refusal(clone, REPOSITORY="https://fork.invalid")
    assert said in faults
    assert "this is https://fork.invalid, but [project.urls] in pyproject" in faults


# --- the workflows


def test_the_workflows_use_what_is_pinned_and_make_what_there_is() -> None:
    used = re.findall(r"uses: (\S+)@(\S+)", WORKFLOW + CI)
    loose = {
        name for name, version in used if not re.fullmatch(r"[0-9a-f]{40}", version)
    }
    assert loose == {
        "pypa/gh-action-pypi-publish"
    }  # docs/releasing.md: pinned before its use
    assert {*re.findall(r"\bmake (\w+)", WORKFLOW)} <= {*TARGETS.split()}


def test_the_job_that_runs_our_code_may_publish_nothing() -> None:
    assert yaml.safe_load(CI)["permissions"] == {"contents": "read"}
    workflow = yaml.safe_load(WORKFLOW)
    assert workflow["permissions"] == {}
    jobs = workflow["jobs"]
    assert jobs["make"]["permissions"] == {"contents": "read"}
    for name, job in jobs.items():
        uses = " ".join(step.get("uses", "") for step in job["steps"])
        assert ("actions/checkout" in uses) == (name == "make")
