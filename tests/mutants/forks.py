"""Tries mutations by fork: the tests of one are run in a child of a process that has them.

Nothing is imported, collected or compiled again: the child replaces the code of one
function, runs the tests that come by the changed line, and ends with the first that fails.
Which tests come by which line is found by running each once, in a child too, as no thread
of a test may live in the process that is forked.
"""

import ast
import gc
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final, NoReturn

import coverage
import pytest

from tests.mutants.operators import Mutation

# A mutation has been noticed that has a test wait, or compute, for longer than this and so
# many times what it took without it: most that hang do so in tests of a second.
LIMIT_S: Final = 10.0
LIMIT_TIMES: Final = 8
AT_ONCE: Final = os.cpu_count() or 1
KILLED, SURVIVED, UNREACHED = OUTCOMES = "killed", "survived", "unreached"
# Exit codes of a child.
_FAILED, _PASSED, _NOT_PUT = 1, 0, 3


@dataclass(frozen=True, slots=True)
class Module:
    """A module, by its path from the root of the project, and what is tried of it."""

    file: str
    tree: ast.Module
    mutations: Sequence[Mutation]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one mutation, and the test that failed with it, if one did."""

    file: str
    function: str
    operator: str
    text: str
    line: int
    outcome: str
    test: str = ""


@dataclass(slots=True)
class _Child:
    """A running child: what it tries, when it is ended, and where it writes."""

    module: Module
    mutation: Mutation
    pipe: int
    scratch: str
    ends_at: float


class Forks:
    """Of pytest, a plugin that tries mutations with the tests that were collected.

    Args:
        root: The project.
        modules: What is tried.
        most_s: See `try_room`.
    """

    def __init__(self, root: Path, modules: Sequence[Module], most_s: float) -> None:
        self._root = root
        self._modules = modules
        self._most_s = most_s
        self._failed = ""  # in a child, the test that failed
        self._at_line: dict[str, dict[int, list[str]]] = {}
        self._cost: dict[str, float] = {}  # seconds of a processor
        self._took: dict[str, float] = {}
        self._noticed: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._items: dict[str, pytest.Item] = {}
        self._functions: defaultdict[tuple[str, int, str], list[FunctionType]]
        self._functions = defaultdict(list)
        self.faults: list[str] = []
        self.verdicts: list[Verdict] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = {item.nodeid: item for item in session.items}
        if session.testsfailed:
            self.faults.append("tests could not be collected")
            return True
        if self._trace(session):
            for value in gc.get_objects():
                if isinstance(value, FunctionType):
                    self._functions[_key(value.__code__)].append(value)
            gc.freeze()  # a collection in a child would copy all
            self._try_all()
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed = report.nodeid

    # --- which tests come by which line

    def _trace(self, session: pytest.Session) -> bool:
        """Run all tests once in children, and read which lines each came by."""
        with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
            parts = [Path(scratch, str(number)) for number in range(AT_ONCE)]
            children = dict[int, Path]()
            for number, part in enumerate(parts):
                part.mkdir()
                pid = os.fork()
                if not pid:
                    try:
                        _become_child(str(part))
                        self._run_traced(session.items[number::AT_ONCE], part)
                    finally:
                        os._exit(_FAILED)
                children[pid] = part
            for pid, part in children.items():
                if os.waitpid(pid, 0)[1]:
                    self.faults.append("the tests end their process without a mutation")
                else:
                    self._read(part)
        return not self.faults

    def _run_traced(self, items: Sequence[pytest.Item], part: Path) -> NoReturn:
        files = [str(self._root / module.file) for module in self._modules]
        data = str(part / "lines")
        tracer = coverage.Coverage(data_file=data, include=files, config_file=False)
        cost, took, failed = dict[str, float](), dict[str, float](), list[str]()
        tracer.start()
        for item in items:
            tracer.switch_context(item.nodeid)
            self._failed = ""
            cost_began, began = time.process_time(), time.perf_counter()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            cost[item.nodeid] = time.process_time() - cost_began
            took[item.nodeid] = time.perf_counter() - began
            if self._failed:
                failed.append(item.nodeid)
        tracer.stop()
        tracer.save()
        told = json.dumps([cost, took, failed])
        (part / "tests").write_text(told, encoding="utf-8")
        os._exit(0)

    def _read(self, part: Path) -> None:
        cost, took, failed = json.loads((part / "tests").read_text(encoding="utf-8"))
        self._cost |= cost
        self._took |= took
        self.faults += [f"{test} fails without a mutation" for test in failed]
        data = coverage.CoverageData(str(part / "lines"))
        data.read()
        for module in self._modules:
            at_line = self._at_line.setdefault(module.file, {})
            found = data.contexts_by_lineno(str(self._root / module.file))
            for line, tests in found.items():
                at_line.setdefault(line, []).extend(tests)

    # --- one child for each mutation

    def _try_all(self) -> None:
        running: dict[int, _Child] = {}
        for module in self._modules:
            for mutation in module.mutations:
                if not (tests := self._tests_of(module.file, mutation)):
                    self._judge(module, mutation, UNREACHED)
                    continue
                while len(running) >= AT_ONCE:
                    self._reap(running)
                pid, child = self._fork(module, mutation, tests)
                running[pid] = child
        while running:
            self._reap(running)

    def _tests_of(self, file: str, mutation: Mutation) -> list[str]:
        """The tests that come by a mutation's lines, the likeliest to notice it first."""
        at_line = self._at_line[file]
        lines = range(mutation.line, mutation.last_line + 1)
        found = {test for line in lines for test in at_line.get(line, ())} - {""}
        noticed = self._noticed[file]
        quick = sorted(found, key=lambda test: (-noticed[test], self._cost[test], test))
        tests, cost = list[str](), 0.0
        for test in quick:
            cost += self._cost[test]
            if tests and cost > self._most_s:
                break
            tests.append(test)
        return tests

    def _fork(
        self, module: Module, mutation: Mutation, tests: Sequence[str]
    ) -> tuple[int, _Child]:
        scratch = tempfile.mkdtemp(prefix="mutants-")
        reads, writes = os.pipe()
        child = os.fork()
        if not child:
            os.close(reads)
            try:
                _become_child(scratch)
                if self._put(module, mutation):
                    self._run(tests, writes)
                os._exit(_NOT_PUT)
            finally:  # an interrupt would go on with the parent's work
                os._exit(_FAILED)
        os.close(writes)
        # For what hangs outside Python, where no signal's handler runs.
        limit_s = LIMIT_S + sum(map(self._limit_s, tests))
        ends_at = time.perf_counter() + limit_s
        return child, _Child(module, mutation, reads, scratch, ends_at)

    def _put(self, module: Module, mutation: Mutation) -> bool:
        """Give the functions of this process the mutation's code."""
        mutation.apply()
        path = str(self._root / module.file)
        changed = compile(module.tree, path, "exec", dont_inherit=True)
        was_put = False
        for code in _codes(changed):
            for function in self._functions.get(_key(code), ()):
                try:
                    function.__code__ = code
                except ValueError:  # it has lost a variable of an outer function
                    return False
                was_put = True
        return was_put

    def _run(self, tests: Iterable[str], pipe: int) -> NoReturn:
        """Run tests until one fails or hangs, write which did, and end the process."""
        test = ""

        def end(*_: object) -> NoReturn:
            os.write(pipe, test.encode())
            os._exit(_FAILED)

        signal.signal(signal.SIGALRM, end)
        for test in tests:
            signal.setitimer(signal.ITIMER_REAL, self._limit_s(test))
            item = self._items[test]
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            if self._failed:
                end()
        os._exit(_PASSED)

    def _limit_s(self, test: str) -> float:
        return LIMIT_S + LIMIT_TIMES * self._took[test]

    def _reap(self, running: dict[int, _Child]) -> None:
        """Wait for a child to end, or end one, and judge."""
        pipes = [child.pipe for child in running.values()]
        soonest = min(child.ends_at for child in running.values())
        wait = max(0.0, soonest - time.perf_counter())
        ended, _, _ = select.select(pipes, [], [], wait)
        now = time.perf_counter()
        for pid, child in [*running.items()]:
            if child.pipe not in ended and child.ends_at > now:
                continue
            is_late = child.pipe not in ended
            if is_late:
                os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            with suppress(ProcessLookupError):  # what its tests have left
                os.killpg(pid, signal.SIGKILL)
            test = os.read(child.pipe, 4096).decode(errors="replace")
            os.close(child.pipe)
            shutil.rmtree(child.scratch, ignore_errors=True)
            del running[pid]
            self._noticed[child.module.file][test] += bool(test)
            # A child that did not end by itself, as it hung or died, was noticed.
            survived = status in (_PASSED << 8, _NOT_PUT << 8) and not is_late
            outcome = SURVIVED if survived else KILLED
            self._judge(child.module, child.mutation, outcome, test)

    def _judge(
        self, module: Module, mutation: Mutation, outcome: str, test: str = ""
    ) -> None:
        verdict = Verdict(
            module.file,
            mutation.function,
            mutation.operator,
            mutation.text,
            mutation.line,
            outcome,
            test,
        )
        self.verdicts.append(verdict)
        if outcome != KILLED:
            print(
                f"{module.file}:{mutation.line} {mutation.function}: "
                f"{mutation.operator}, {mutation.text}: {outcome}",
                flush=True,
            )


def try_room(
    root: Path,
    modules: Sequence[Module],
    tests: Sequence[str],
    marks: str,
    *,
    most_s: float,
) -> tuple[list[Verdict], list[str]]:
    """Try the mutations of a room with its tests, in a process that is good for nothing else.

    The tests of one mutation take *most_s* of a processor at most, by what each took without
    it, the quick ones first: of those that come by most lines there are hundreds.

    Returns:
        The verdicts, or what is wrong without any mutation.
    """
    forks = Forks(root, modules, most_s)
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = scratch
        options = ["-q", "-s", "-m", marks, f"--rootdir={root}", "--hypothesis-seed=0"]
        for plugin in ("cacheprovider", "xdist"):
            options += ["-p", f"no:{plugin}"]
        options += ["-o", "timeout=0"]  # a child has the signal for itself
        code = pytest.main([*options, *(str(root / test) for test in tests)], [forks])
    if code and not forks.faults:
        forks.faults.append(f"pytest ended with {code!r}")
    return forks.verdicts, forks.faults


def _key(code: CodeType) -> tuple[str, int, str]:
    return code.co_filename, code.co_firstlineno, code.co_qualname


def _codes(code: CodeType) -> Iterator[CodeType]:
    """All code objects within one."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _become_child(scratch: str) -> None:
    """Leave the parent's terminal, group and temporary folder alone."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    tempfile.tempdir = scratch
    os.environ.update(TMPDIR=scratch, PYTEST_DEBUG_TEMPROOT=scratch)
