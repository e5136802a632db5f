"""That patches which take protections out do so, and that a mutant is judged rightly."""

import os
import re
import subprocess
from collections.abc import Callable, Sequence
from difflib import unified_diff
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest
import trio

from tests.helpers.needs import needs
from tests.helpers.tree import ROOT, needs_a_clone
from tests.mutants import runner
from tests.mutants.runner import PATCHES, faults_of, mutants_of, run

pytestmark = needs("git")  # which applies the patches

GATE: Final = """\
def is_open():
    return False
"""
TESTS: Final = """\
import pytest
from liveness import gate

@pytest.fixture
def passers():
    assert not gate.is_open()

def test_it_is_shut():
    assert not gate.is_open()

def test_nobody_passes(passers):
    pass

@pytest.mark.parametrize("size", [1, 2])
def test_many_find_it_shut(size):
    assert not (size == 2 and gate.is_open())

def test_that_fails():
    assert False
"""
# Without what takes a second to load, and these tests do not use.
PYPROJECT: Final = """\
[tool.pytest.ini_options]
addopts = "-p no:trio -p no:hypothesispytest -p no:anyio"
"""
SHUT: Final = "tests/test_gate.py::test_it_is_shut"
OPENED: Final = GATE.replace("False", "True")

Patch = Callable[..., None]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one protection: its gate is shut."""
    root, scratch = tmp_path / "project", tmp_path / "scratch"
    for name, text in {
        "liveness/__init__.py": "",
        "liveness/gate.py": GATE,
        "tests/__init__.py": "",
        "tests/test_gate.py": TESTS,
        "pyproject.toml": PYPROJECT,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / PATCHES).mkdir()
    scratch.mkdir()
    temporary = partial(TemporaryDirectory[str], dir=scratch)
    monkeypatch.setattr(runner, "TemporaryDirectory", temporary)
    return root


@pytest.fixture
def patch(project: Path) -> Patch:
    return partial(write, project)


def write(
    project: Path,
    name: str,
    after: str = OPENED,
    tests: Sequence[str] = (SHUT,),
    *,
    what: str = "",
    before: str = GATE,
) -> None:
    """Write a patch that makes another gate."""
    a, b = "a/liveness/gate.py", "b/liveness/gate.py"
    old, new = (text.splitlines(keepends=True) for text in (before, after))
    head = [what or f"The gate is open: {name}.", "", *(f"Test: {it}" for it in tests)]
    diff = "".join(unified_diff(old, new, a, b, n=1))
    text = "\n".join([*head, "", f"diff --git {a} {b}", diff])
    (project / PATCHES / f"{name}.patch").write_text(text)


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def verdicts(printed: str) -> dict[str, str]:
    """By mutant: that it was killed, or why not."""
    found = re.findall(
        r"^(\w+): (killed|SURVIVED)(?:.*\n)(?:  ([^|].*))?", printed, re.M
    )
    return {name: why or verdict for name, verdict, why in found}


# --- the patches that there are ----------------------------------------------------------


def test_every_patch_says_what_it_takes_out_and_names_a_test_of_its_own() -> None:
    assert faults_of(mutants_of(ROOT)) == []


@needs_a_clone
def test_every_patch_applies() -> None:
    tried = {mutant.name: mutant.apply(ROOT, "--check") for mutant in mutants_of(ROOT)}
    assert tried
    assert {name: why for name, why in tried.items() if why} == {}


def test_every_test_that_a_patch_names_exists() -> None:
    for mutant in mutants_of(ROOT):
        for test in mutant.tests:
            file, _, name = test.partition("::")
            found = rf"^(?:async )?def {name.partition('[')[0]}\("
            assert re.search(found, (ROOT / file).read_text(), re.M), mutant.name


# --- how they are judged -----------------------------------------------------------------


async def test_a_mutant_is_killed_by_a_test_that_fails_in_its_call_and_by_nothing_else(
    project: Path, patch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    shut, file = SHUT, "tests/test_gate.py"
    patch("opened")
    patch("the_same", GATE.replace("False", "0 > 1"))
    patch("other_lines", before=GATE.replace("False", "not True"))
    patch("no_import", f"import nothing_of_that_name\n{GATE}")
    patch("crashed", GATE.replace("return False", "__import__('os')._exit(1)"))
    patch("setup", tests=[f"{file}::test_nobody_passes"])
    patch("one_case", tests=[f"{file}::test_many_find_it_shut"])
    patch("that_case", tests=[f"{file}::test_many_find_it_shut[2]"])
    patch("two_tests", tests=[shut, f"{file}::test_many_find_it_shut[1]"])
    before = files(project)
    assert await run(project) == 1
    printed = capsys.readouterr().out
    told = verdicts(printed)
    assert told.pop("other_lines").startswith("the patch does not apply (error: ")
    assert told == {
        "opened": "killed",
        "the_same": f"{shut} passes",
        "no_import": f"{shut} was not run",
        "crashed": f"{shut} was not run",
        "setup": f"{file}::test_nobody_passes fails, but not in its call",
        "one_case": f"{file}::test_many_find_it_shut fails in some of its cases",
        "that_case": "killed",
        "two_tests": f"{file}::test_many_find_it_shut[1] passes",
    }
    assert "No module named 'nothing_of_that_name'" in printed
    assert printed.endswith("\n2 killed, 7 survived\n")
    assert files(project) == before
    assert files(project.parent / "scratch") == {}


async def test_if_all_are_killed_it_ends_with_0(
    project: Path, patch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    patch("opened")
    patch("the_same", GATE.replace("False", "0 > 1"))
    assert await run(project, ["opened"]) == 0
    assert capsys.readouterr().out.endswith("\n1 killed, 0 survived\n")


HANGING: Final = """\
def is_open():
    import os, pathlib, time
    pathlib.Path({path!r}).write_text(str(os.getpid()))
    time.sleep(1e6)
"""


async def test_a_mutant_that_hangs_is_ended(
    project: Path, patch: Patch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    patch("hanging", HANGING.format(path=str(tmp_path / "pid")))
    assert await run(project, limit_s=1) == 1
    assert verdicts(capsys.readouterr().out) == {"hanging": "it was ended after 1 s"}
    assert files(project.parent / "scratch") == {}


async def test_whoever_interrupts_it_leaves_nothing_behind(
    project: Path, patch: Patch, tmp_path: Path
) -> None:
    path = tmp_path / "pid"
    patch("hanging", HANGING.format(path=str(path)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, project)
        with trio.fail_after(60):
            while not path.exists() or not path.read_text():  # noqa: ASYNC110 - another process's
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    with pytest.raises(ProcessLookupError):
        os.kill(int(path.read_text()), 0)
    assert files(project.parent / "scratch") == {}


@pytest.mark.parametrize(
    ("tests", "told"),
    [
        (["tests/test_gate.py::test_that_fails"], "does not pass without it"),
        ([SHUT, "tests/test_gate.py::test_of_no_such_name"], "ERROR: not found: "),
    ],
)
async def test_nothing_is_tried_if_a_named_test_does_not_pass_anyway(
    project: Path,
    patch: Patch,
    capsys: pytest.CaptureFixture[str],
    tests: list[str],
    told: str,
) -> None:
    patch("opened", tests=tests)
    assert await run(project) == 1
    printed = capsys.readouterr().out
    assert told in printed
    assert "killed" not in printed


async def test_a_patch_says_one_thing_and_names_tests(
    project: Path, patch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    patch("a", what="The gate is open.")
    patch("b", what="The gate is open.", tests=[])
    assert await run(project, ["c"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "b: has the head of a",
        "b: names no test (Test: tests/…::name)",
        "c: there is no such mutant",
    ]


@needs("git")
def test_what_a_change_concerns_is_chosen_and_of_the_others_a_few_in_turn(
    project: Path, patch: Patch
) -> None:
    def commit(*paths: str) -> None:
        git = ["git", "-C", str(project), "-c", "user.name=x", "-c", "user.email=x"]
        subprocess.run([*git, "add", *paths], check=True)
        told = ["commit", "-q", "--allow-empty", "-m", "x"]
        subprocess.run([*git, *told], check=True)

    names = {f"gate_{n:02}" for n in range(2 * runner.ONE_IN)}
    for name in names:
        patch(name)
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    commit(".")
    chosen = [runner.concerned(project)]
    for _ in range(runner.ONE_IN - 1):
        commit()
        chosen.append(runner.concerned(project))
    assert {len(few) for few in chosen} == {2}
    assert {name for few in chosen for name in few} == names
    patch("gate_17", what="Another head.")
    assert "gate_17" in runner.concerned(project)
    commit(".")
    assert "gate_17" in runner.concerned(project)
    assert len(runner.concerned(project)) <= 3
    (project / "liveness/gate.py").write_text(f"# Shut.\n{GATE}")
    assert set(runner.concerned(project)) == names
    subprocess.run(["git", "-C", str(project), "checkout", "-q", "."], check=True)
    (project / "tests/test_gate.py").write_text(f"# All.\n{TESTS}")
    assert set(runner.concerned(project)) == names


@needs("git")
def test_without_the_history_of_a_project_every_mutant_is_chosen(
    project: Path, patch: Patch, tmp_path: Path
) -> None:
    names = {f"gate_{n:02}" for n in range(2 * runner.ONE_IN)}
    for name in names:
        patch(name)
    assert set(runner.concerned(project)) == names
    who = ["-c", "user.name=x", "-c", "user.email=x"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "x"]):
        subprocess.run(["git", "-C", str(project), *words], check=True)
    clone, source = tmp_path / "shallow", project.as_uri()
    subprocess.run(["git", "clone", "-q", "--depth=1", source, str(clone)], check=True)
    assert set(runner.concerned(clone)) == names


def test_the_longest_it_waits_is_less_than_a_test_may_take() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text()
    (timeout,) = re.findall(r"^timeout = (\d+)$", pyproject, re.M)
    assert int(timeout) > runner.LIMIT_S
