"""Takes the product's protections out, one at a time, and sees the tests notice.

A patch in this folder is a *mutant*: the project without one protection. Its head says in
a sentence which, and what breaks; then it names tests, each of which must fail with it:

    Users are judged though nobody has read what their gateway says: false silence.

    Test: tests/core/sessions/test_clearance.py::test_a_new_link_has_to_be_read_empty_itself

Any test will do, a whole simulation as well as one of a function. Named without its
parameters it stands for all its cases.

Each mutant is a copy of its own, in a temporary folder. It is *killed* if the tests that
it names fail by themselves, in their call. Whatever else becomes of it, it has survived: a
patch that does not apply, an import that breaks, a run that hangs or crashes show nothing.
"""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NoReturn
from xml.etree import ElementTree

import pytest
import trio

from tests.helpers.changes import changed, git

PATCHES: Final = Path("tests", "mutants")
# What tests need of the project, and a build.
COPIED: Final = (
    *("liveness", "tests", "proto"),
    *("pyproject.toml", "setup.py", "README.md", "LICENSE"),
)
SAID: Final = "said"  # a file, in a copy

# Tests by the second are named, and one may be preceded by a build of ten. What a mutant
# leaves out is waited for as long as a busy machine may need, a minute for a page: three
# cases take three. Less than pytest's own limit for a test, which would be taken for a
# failure.
LIMIT_S: Final = 450.0
# Most tests wait more than they compute. Tests of time keep to virtual time or to what
# holds on a busy machine, so these do not disturb each other.
AT_ONCE: Final = 2 * (os.cpu_count() or 1)
# Fewer do not pay for the start of a process.
TESTS_A_WORKER: Final = 8
# `--changed`: the share of mutants without changes that runs too, others with each
# commit.
ONE_IN: Final = 24
# A process that has imported these is forked for each run of tests: a test takes half a
# second of a processor then, not one and a half. Nothing of the project is among them.
FORKS: Final = multiprocessing.get_context("forkserver")
PRELOADED: Final = (
    *("pytest", "_pytest.junitxml", "_hypothesis_pytestplugin", "pytest_trio.plugin"),
    *("hypothesis.stateful", "hypothesis.internal.conjecture.engine"),
    *(
        "trio.testing",
        "anyio.pytest_plugin",
        "xdist.plugin",
        "msgpack",
        "prometheus_client",
        "sqlite3",
    ),
    *("starlette.applications", "h11"),
)
# Of what a run said, so much tells why it was no good.
TOLD_LINES: Final = 15


@dataclass(frozen=True, slots=True)
class Mutant:
    """A patch, what it takes out, and the tests that must fail with it."""

    path: Path
    what: str
    tests: tuple[str, ...]
    files: tuple[str, ...]  # that it changes

    @classmethod
    def read(cls, path: Path) -> "Mutant":
        head, _, diff = path.read_text().partition("\ndiff --git ")
        lines = head.splitlines()
        tests = [line[5:].strip() for line in lines if line.startswith("Test:")]
        what = " ".join(line for line in lines if not line.startswith("Test:"))
        files = [line[6:] for line in diff.splitlines() if line.startswith("+++ b/")]
        return cls(path, " ".join(what.split()), tuple(tests), tuple(files))

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def is_compiled(self) -> bool:
        return any(file.endswith((".pyx", ".pxd")) for file in self.files)

    def apply(self, folder: Path, *options: str) -> str:
        """Apply the patch to *folder*; why it could not be, or nothing."""
        git = ["git", "apply", *options, str(self.path)]
        # Not to a repository that the folder may lie in.
        known = {key: it for key, it in os.environ.items() if key[:4] != "GIT_"}
        known["GIT_CEILING_DIRECTORIES"] = str(folder.parent)
        done = subprocess.run(
            git, cwd=folder, env=known, capture_output=True, text=True, check=False
        )
        if not done.returncode:
            return ""
        return (
            f"the patch does not apply ({done.stderr.strip()}): make it anew, by git "
            f"diff -U1, or remove it with what it took out"
        )


def concerned(root: Path) -> list[str]:
    """The names of mutants that a change of late concerns, and of a few others.

    A change concerns a mutant if it is of its patch, of a file that the patch changes, or
    of a file with a test that it names. Where there is no history to look into, as in a
    shallow clone, every mutant is taken.
    """

    files = changed(root)
    if files is None:
        return [mutant.name for mutant in mutants_of(root)]
    number = int(git(root, "rev-list", "--count", "HEAD")[0])
    names, others = list[str](), list[str]()
    for mutant in mutants_of(root):
        tests = [test.partition("::")[0] for test in mutant.tests]
        of = {str(mutant.path.relative_to(root)), *mutant.files, *tests}
        (names if of & files else others).append(mutant.name)
    return names + others[number % ONE_IN :: ONE_IN]


class Survived(Exception):
    """A mutant that the tests it names do not kill, or a run that shows nothing."""


def mutants_of(root: Path) -> list[Mutant]:
    """Every mutant of a project, by name."""
    return [Mutant.read(path) for path in sorted((root / PATCHES).glob("*.patch"))]


def faults_of(mutants: Sequence[Mutant]) -> list[str]:
    """What is wrong with patches before any is tried."""
    faults, heads = list[str](), dict[str, str]()
    for mutant in mutants:
        if not mutant.what:
            faults.append(f"{mutant.name}: its head does not say what is taken out")
        elif mutant.what in heads:
            faults.append(f"{mutant.name}: has the head of {heads[mutant.what]}")
        heads.setdefault(mutant.what, mutant.name)
        if not mutant.tests:
            faults.append(f"{mutant.name}: names no test (Test: tests/…::name)")
    return faults


async def run(
    root: Path, names: Sequence[str] = (), *, limit_s: float = LIMIT_S
) -> int:
    """Try a project's mutants, or those of these names; the exit code."""
    mutants = mutants_of(root)
    faults = faults_of(mutants)
    known = {mutant.name for mutant in mutants}
    faults += [
        f"{name}: there is no such mutant" for name in names if name not in known
    ]
    if faults:
        print(*faults, sep="\n")
        return 1
    mutants = [mutant for mutant in mutants if not names or mutant.name in names]
    with TemporaryDirectory(prefix="mutants-") as scratch:
        return await _Attempts(root, Path(scratch), limit_s).all_of(mutants)


class _Attempts:
    """Tries mutants.

    Args:
        root: The project.
        scratch: Where their copies go.
        limit_s: The longest that one may take, in seconds.
    """

    def __init__(self, root: Path, scratch: Path, limit_s: float) -> None:
        self._root = root
        self._scratch = scratch
        self._limit_s = limit_s
        self._survivors = 0

    async def all_of(self, mutants: Sequence[Mutant]) -> int:
        if not mutants:
            print("no mutant is here: they are in a clone, not in an sdist")
            return 1
        began = trio.current_time()
        async with _copied(self._root, self._scratch) as whole:
            if faults := await self._without(mutants, whole):
                print(*faults, sep="\n")
                return 1
            took = trio.current_time() - began
            print(
                f"{len(mutants)} mutants; without them their tests pass, {took:.1f} s"
            )
            room = trio.CapacityLimiter(AT_ONCE)
            async with trio.open_nursery() as nursery:
                for mutant in mutants:
                    nursery.start_soon(self._attempt, mutant, whole, room)
        killed = len(mutants) - self._survivors
        print(f"{killed} killed, {self._survivors} survived")
        return 1 if self._survivors else 0

    async def _without(self, mutants: Sequence[Mutant], whole: "_Copy") -> list[str]:
        """Run all named tests on the project as it is: what is wrong with them."""
        tests = sorted({test for mutant in mutants for test in mutant.tests})
        with trio.move_on_after(LIMIT_S * len(tests)) as limit:
            workers = min(AT_ONCE, len(tests) // TESTS_A_WORKER)
            report = await whole.test(tests, "--numprocesses", str(workers))
        if limit.cancelled_caught:
            return ["without any mutant the tests hang", whole.said()]
        faults = [
            f"{test}: is named by a mutant, and does not pass without it"
            for test in tests
            if report.code == 1 and any(report.of(test))
        ]
        return [*faults, whole.said()] if report.code else []

    async def _attempt(
        self, mutant: Mutant, whole: "_Copy", room: trio.CapacityLimiter
    ) -> None:
        async with room:
            began = trio.current_time()
            try:
                await self._kill(mutant, whole)
                verdict, why = f"killed by {', '.join(mutant.tests)}", ""
            except Survived as survived:
                self._survivors += 1
                verdict, why = "SURVIVED", f": {mutant.what}\n  {survived}"
            took = trio.current_time() - began
        print(f"{mutant.name}: {verdict}, {took:.1f} s{why}", flush=True)

    async def _kill(self, mutant: Mutant, whole: "_Copy") -> None:
        """Try one, on a copy of the whole project and of what its tests had compiled.

        Raises:
            Survived: One of its tests does not fail, or none could be run.
        """
        # A patch and a build replace files: they write into none, so links do.
        async with _copied(whole.folder, self._scratch, os.link) as copy:
            with trio.move_on_after(self._limit_s) as limit:
                if why := await trio.to_thread.run_sync(mutant.apply, copy.folder):
                    raise Survived(why)
                if mutant.is_compiled and await copy.compile():
                    raise Survived(f"it does not compile\n{copy.said()}")
                report = await copy.test(mutant.tests, "-p", "no:xdist")
            if limit.cancelled_caught:
                why = f"it was ended after {self._limit_s:g} s"
                raise Survived(f"{why}\n{copy.said()}")
            for test in mutant.tests:
                if not (cases := report.of(test)):
                    raise Survived(f"{test} was not run\n{copy.said()}")
                if not all("failure" in kinds for kinds in cases):
                    how = "passes"
                    if any(cases):
                        how = "fails in some of its cases"
                    if any("error" in kinds for kinds in cases):
                        how = "fails, but not in its call"
                    raise Survived(f"{test} {how}\n{copy.said()}")
            if report.code != 1:
                raise Survived(f"pytest ended with {report.code}\n{copy.said()}")


@asynccontextmanager
async def _copied(
    root: Path, scratch: Path, place: Callable[[str, str], object] = shutil.copy2
) -> AsyncIterator["_Copy"]:
    """A copy of the project, until left; *place* copies a file."""
    with TemporaryDirectory(dir=scratch) as folder:
        await trio.to_thread.run_sync(_copy, root, Path(folder), place)
        yield _Copy(Path(folder))


def _copy(root: Path, folder: Path, place: Callable[[str, str], object]) -> None:
    (folder / SAID).touch()
    for name in COPIED:
        if (root / name).is_dir():
            # With what is compiled already: that takes as long as most tests.
            shutil.copytree(root / name, folder / name, copy_function=place)
        elif (root / name).exists():
            place(str(root / name), str(folder / name))


@dataclass(frozen=True, slots=True)
class _Report:
    """What pytest said: its exit code, and of each case what else than that it passed."""

    code: int
    cases: dict[tuple[str, str], set[str]]

    def of(self, test: str) -> list[set[str]]:
        """Of each case of a test what became of it: nothing if it passed."""
        file, _, name = test.partition("::")
        module = file.removesuffix(".py").replace("/", ".")
        return [
            kinds
            for (of, case), kinds in self.cases.items()
            if of == module and name in (case, case.partition("[")[0])
        ]


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy of the project, and what is run in it."""

    folder: Path

    async def compile(self) -> int:
        # For what it does, not for its speed; and a failure is one (CI).
        environ = os.environ | {"CFLAGS": "-O0", "REQUIRE_COMPILED": "1"}
        with (self.folder / SAID).open("ab") as said:
            done = await trio.run_process(
                [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
                cwd=self.folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                check=False,
                start_new_session=True,
                deliver_cancel=_end_group,
            )
        return done.returncode

    async def test(self, tests: Sequence[str], *options: str) -> _Report:
        """Run tests to the end, or until cancelled, with all that they have started."""
        path = self.folder / "report.xml"
        FORKS.set_forkserver_preload(list(PRELOADED))
        process = FORKS.Process(
            target=_pytest, args=(self.folder, path, [*options, *tests])
        )
        process.start()
        try:
            await trio.lowlevel.wait_readable(process.sentinel)
        except trio.Cancelled:
            assert process.pid
            os.killpg(process.pid, signal.SIGKILL)
            raise
        finally:
            process.join()
        cases = dict[tuple[str, str], set[str]]()
        if path.exists():
            for case in ElementTree.parse(path).iter("testcase"):
                key = case.get("classname", ""), case.get("name", "")
                # One that fails in its call and again at its end is there twice.
                kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
                cases.setdefault(key, set()).update(kinds)
        assert process.exitcode is not None
        return _Report(process.exitcode, cases)

    def said(self) -> str:
        """The last lines of what was said."""
        lines = (self.folder / SAID).read_text(errors="replace").splitlines()
        return "\n".join(f"  | {line}" for line in lines[-TOLD_LINES:])


async def _end_group(process: trio.Process) -> None:
    os.killpg(process.pid, signal.SIGKILL)


def _pytest(folder: Path, report: Path, words: Sequence[str]) -> NoReturn:
    """Become `python -m pytest` in a copy, from a process that has imported much."""
    os.setsid()
    with (folder / SAID).open("ab") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    os.chdir(folder)
    # pytest compiles each test file anew, which takes half a second, unless it may keep it.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.update(PYTHONPATH=str(folder), MUTANT="true")
    # This function came with modules of the project itself; those of the copy are tested.
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("liveness", "tests"):
            del sys.modules[name]
    sys.path.insert(0, str(folder))
    options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    # What is preloaded is imported already, which is the point.
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    sys.exit(pytest.main([*options, *words]))
