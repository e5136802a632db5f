"""Promises of the repository: locks, set-up and gate.

Set-up and gate are the real Makefile, requirements/setup and .ci/run, in a copy and without
a network: a script stands for the Python they call. It answers every question with the
real one, only ``-m venv`` and ``-m pip`` merely leave a trace.
"""

import os
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.helpers.processes import Done, ran
from tests.helpers.tree import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
GROUPS = PROJECT["dependency-groups"]
NOXFILE = (ROOT / "noxfile.py").read_text()
# Each lock, and its required content.
WANTED = {
    "requirements/runtime.lock": PROJECT["build-system"]["requires"]
    + PROJECT["project"]["dependencies"]
    + [*chain(*PROJECT["project"]["optional-dependencies"].values())],
    "requirements/dev.lock": GROUPS["dev"],
    "requirements/fuzz.lock": GROUPS["fuzz"],
}
RUNTIME, DEV, FUZZ = ALL_LOCKS = tuple(WANTED)
TARGETS = (
    "audit bench check clean dashboard demo dist docs fuzz help install lock mutants "
    "performance pythons release rules screenshots serve setup simulate slow system test tests "
    "uninstall wheels"
)
# The programs that `.ci/run` looks for.
NEEDED = {
    *re.findall(r"command -v ([\w-]+)", (ROOT / ".ci/run").read_text()),
    *("gcc", "stat", "systemd-analyze"),
}
TWO = "--jobs=2 --output-sync=target"
STEPS = (
    *("setup", f"check docs pythons {TWO}", "tests"),
    f"mutants system {TWO} ARGS=--changed",
)

# One entry: a pin, perhaps for some Pythons only, and nothing but hashes after it.
ENTRY = re.compile(
    r"(?P<name>[a-z0-9-]+)==(?P<version>(?:[0-9]+!)?[a-z0-9.]+)"
    r"(?: ; [a-z_]+ [!<>=]+ '[^']+')?"
    r"(?: \\\n    --hash=sha256:[0-9a-f]{64})+\n"
)

PYTHON = f"""#!/bin/sh
case "$1 $2" in
"-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python"
    printf '#!/bin/sh\\n' >"$3/bin/liveness"; chmod +x "$3/bin/liveness" ;;
"-m pip") echo "$*" >>"$TRACE"
    [ -z "$INTERRUPT" ] || kill -KILL 0 ;;  # with everything above it, as a power cut would
*) exec {shlex.quote(sys.executable)} -I -S -c "import sys, sysconfig
sysconfig.get_config_vars()['INCLUDEPY'] = '$HEADERS'; $LIE; exec(sys.argv[1])" "$2" ;;
esac
"""
TRACER = """#!/bin/sh
echo "${0##*/} $* CI=$CI REQUIRE_COMPILED=$REQUIRE_COMPILED ARGS=$ARGS stdin=$(cat)" >>"$TRACE"
[ "$*" != "$FAIL" ]
"""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of the files that set the project up, and the calls in it."""

    path: Path

    def run(self, *command: str, **environment: str) -> Done:
        """Run *command* here, with the tracing programs before all others."""
        search = f"{self.path / 'bin'}:{os.environ['PATH']}"
        known = {"PATH": search, "TRACE": str(self.path / "trace"), "LIE": "0"}
        known["HEADERS"] = str(self.path / "headers")
        return ran(
            *command,
            cwd=self.path,
            env=known | environment,
            input="not to be read",
            start_new_session=True,  # an interruption kills all of it
        )

    def program(self, name: str, text: str) -> None:
        """Put an executable *text* where it is found first."""
        path = self.path / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def traced(self) -> list[str]:
        """The calls since the last call of this."""
        trace = self.path / "trace"
        lines = trace.read_text().splitlines() if trace.exists() else []
        trace.unlink(missing_ok=True)
        return lines


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    kept = ["Makefile", "noxfile.py", ".ci/run", ".ci/pythons", "requirements/setup"]
    for name in (*kept, *ALL_LOCKS):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "bin").mkdir()
    for room in ("wheel", "wire"):
        (tmp_path / f"liveness/core/{room}").mkdir(parents=True)
    (tmp_path / "liveness/core/wheel/_wheel.pyx").touch()
    (tmp_path / "setup.py").touch()
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers/Python.h").touch()
    copy = Copy(tmp_path)
    copy.program("python3", PYTHON)
    copy.program("gcc", "#!/bin/sh\n[ -e headers/Python.h ]\n")
    return copy


def installed(copy: Copy) -> list[str]:
    """The locks that were installed since this was asked last."""
    return compiled(copy)[0]


def compiled(copy: Copy) -> tuple[list[str], int]:
    """The locks, and how often the package itself, that were installed since."""
    traced = "\n".join(copy.traced())
    locks = re.findall(r"--require-hashes -r (\S+)", traced)
    return locks, traced.count("--editable .")


def pins(lock: str) -> Mapping[str, str]:
    return {entry["name"]: entry["version"] for entry in entries(lock)}


def entries(lock: str) -> Iterator[re.Match[str]]:
    return ENTRY.finditer((ROOT / lock).read_text())


# --- the locks


@pytest.mark.parametrize("lock", ALL_LOCKS)
def test_a_lock_holds_hashed_pins_of_what_the_project_asks_for(lock: str) -> None:
    assert "".join(entry[0] for entry in entries(lock)) == (ROOT / lock).read_text()
    pinned = pins(lock)
    for wanted in map(Requirement, WANTED[lock]):
        assert wanted.specifier.contains(pinned[canonicalize_name(wanted.name)])
    if lock == DEV:  # it has what runs
        assert pins(RUNTIME).items() < pinned.items()


# --- the set-up


@pytest.fixture
def ready(copy: Copy) -> Copy:
    """A copy that `make setup` has set up."""
    assert copy.run("make", "setup").returncode == 0
    assert compiled(copy) == ([DEV], 1)
    return copy


@pytest.mark.parametrize(
    ("target", "locks"),
    [("demo", [RUNTIME]), ("test", [DEV]), ("audit", [DEV, FUZZ])],
)
def test_a_target_installs_only_its_locks(
    copy: Copy, target: str, locks: list[str]
) -> None:
    copy.run("make", target)
    assert installed(copy) == locks
    for served in (target, "demo"):  # a higher level serves the lower one
        copy.run("make", served)
        assert compiled(copy) == ([], 0)


def test_an_interrupted_set_up_is_redone(copy: Copy) -> None:
    copy.run("make", "setup", "LEVEL=runtime")
    (copy.path / ".venv/half-installed").touch()
    assert copy.run("make", "setup", INTERRUPT="1").returncode != 0
    copy.traced()
    assert copy.run("make", "setup").returncode == 0
    assert installed(copy) == [DEV]
    assert not (copy.path / ".venv/half-installed").exists()


@pytest.mark.parametrize(
    "change",
    ["echo >liveness/core/wire/_wire.pxd", "echo >>setup.py", "rm headers/Python.h"],
)
def test_another_source_or_compiler_compiles_anew(ready: Copy, change: str) -> None:
    ready.run("sh", "-c", change)
    assert ready.run("make", "setup", INTERRUPT="1").returncode != 0
    ready.traced()
    for target in ("demo", "check", "test"):
        ready.run("make", target)
    assert compiled(ready) == ([], 1)


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ("import platform; sys.version_info = (3, 10, 4)", "Python 3.11 or newer is"),
        ("sys.modules['ensurepip'] = None", "python3 lacks the venv module. Debian: "),
        ("sys.exit(1)", "python3 does not run here. Debian: apt install git make"),
    ],
    ids=["old", "without venv", "broken"],
)
def test_a_missing_program_is_one_line(copy: Copy, lie: str, said: str) -> None:
    refused = copy.run("make", "demo", LIE=lie)
    first, *rest = refused.stderr.splitlines()
    assert refused.returncode != 0
    assert first.startswith(f"liveness: {said}")
    assert len(rest) == 1, "only make's own closing line"
    assert not (copy.path / ".venv").exists()


def test_help_lists_every_target_and_nox_runs_those_of_its_sessions(copy: Copy) -> None:
    listed = [line.split()[0] for line in copy.run("make").stdout.splitlines()]
    assert " ".join(sorted(listed)) == TARGETS
    sessions = re.findall(r"^def (\w+)\(session: .*-> None:", NOXFILE, re.M)
    dry = copy.run("make", "--dry-run", *listed)
    assert dry.returncode == 0
    assert {*re.findall(r"--session (\w+)", dry.stdout)} == {*sessions} - {"python"}


# --- the gate


@pytest.fixture
def gate(copy: Copy) -> Copy:
    """On a machine that has all that is needed, whatever this one has."""
    for name in NEEDED:
        copy.program(name, "#!/bin/sh\n")
    for name in ("make", "apt-get", "git"):
        copy.program(name, TRACER)
    copy.program("python9.9", "#!/bin/sh\necho 9.9\n")
    return copy


@pytest.mark.parametrize("failing", ["", *STEPS])
def test_the_gate_takes_its_steps_until_one_fails(gate: Copy, failing: str) -> None:
    run = gate.run(".ci/run", FAIL=failing)
    assert (run.returncode != 0) is bool(failing)
    taken = STEPS[: STEPS.index(failing) + 1] if failing else STEPS
    known = "CI=true REQUIRE_COMPILED=1 ARGS= stdin="
    assert gate.traced() == [f"make {step} {known}" for step in taken]


def test_the_newest_other_python_that_is_here_runs_some_tests(gate: Copy) -> None:
    others = "python3.0 python3 python9.9 python3.1"
    run = gate.run(".ci/pythons", CI="true", OTHER_PYTHONS=others)
    assert run.returncode == 0
    assert run.stderr == ".ci/pythons: NOT RUN under python3.0: it is not here\n"
    (traced,) = gate.traced()
    assert traced.startswith("make test PYTHON=python9.9 VENV=.venv-9.9 CI=true ")
    assert "ARGS=tests/core tests/client tests/service/storage stdin" in traced


def test_under_the_gate_a_skipped_test_fails(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\ndef test_it(): pytest.skip('no such server')\n"
    )
    command = (sys.executable, "-m", "pytest", "-p", "tests.conftest", tmp_path)
    run = ran(*command, cwd=ROOT, env=os.environ | {"CI": "true"})
    assert run.returncode == pytest.ExitCode.TESTS_FAILED
    assert "no such server" in run.stdout


# --- what the code host runs, and what a contributor has run


PYTHONS = [
    classifier.rpartition(" ")[2]
    for classifier in PROJECT["project"]["classifiers"]
    if re.search(r":: 3\.\d+$", classifier)
]


def test_gate_host_and_release_take_the_pythons_that_we_name() -> None:
    gate = re.findall(r"\bpython(3\.\d+)\b", (ROOT / ".ci/pythons").read_text())
    (session,) = re.findall(r"session\(python=\[(.*?)\]", NOXFILE)
    workflows = ROOT / ".github/workflows"
    (ci,) = yaml.safe_load((workflows / "ci.yml").read_text())["jobs"].values()
    assert ".ci/run" in [step.get("run") for step in ci["steps"]]
    release = yaml.safe_load((workflows / "release.yml").read_text())["jobs"]["make"]
    (made,) = (it["with"] for it in release["steps"] if "setup-python" in str(it))
    assert gate == PYTHONS[::-1]
    assert re.findall(r'"(.*?)"', session) == PYTHONS
    assert ci["strategy"]["matrix"]["python"] == PYTHONS
    assert sorted(made["python-version"].split()) == PYTHONS
