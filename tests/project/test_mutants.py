"""That changes which break the product are made, tried and judged rightly."""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.helpers.tree import ROOT
from tests.mutants import pairs
from tests.mutants.__main__ import ROOMS, Mutants, choose, modules_of, room_of
from tests.mutants.operators import mutations_of

GATE: Final = """\
def is_open(age, is_child=False):
    if is_child:
        return False
    return age > 17


def unused(a, b):
    return a - b
"""
TESTS: Final = """\
import pytest
import gate

@pytest.fixture
def passers():
    assert not gate.is_open(0)

def test_it_is_shut():
    assert not gate.is_open(0)

def test_it_is_open():
    assert gate.is_open(18)

def test_nobody_passes(passers):
    pass

@pytest.mark.parametrize("age", [1, 20])
def test_many_find_it_shut(age):
    assert not gate.is_open(age, True)
"""
# Without what takes a second to load, and these tests do not use.
PYPROJECT: Final = """\
[tool.pytest.ini_options]
pythonpath = ["."]
addopts = "-p no:trio -p no:anyio"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one module, and a test file for it."""
    for name, text in {
        "gate.py": GATE,
        "liveness/gate.py": GATE,
        "liveness/__init__.py": "",
        "tests/__init__.py": "",
        "tests/test_gate.py": TESTS.replace("import gate", "from liveness import gate"),
        "test_gate.py": TESTS,
        "pyproject.toml": PYPROJECT,
        "tests/mutants/pairs.toml": "",
    }.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "project"


# --- operators


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("x = a < b", ["boundary: a <= b", "comparison: a >= b"]),
        ("x = a is b", ["comparison: a is not b"]),
        (
            "x = 0 < a <= 1",
            [
                "boundary: 0 <= a <= 1",
                "boundary: 0 < a < 1",
                "constant: 1",
                "constant: 2",
            ],
        ),
        ("x = min(a, b)", ["comparison: max(a, b)"]),
        ("x = a - b", ["sign: a + b"]),
        ("x = -a", ["sign: a"]),
        ("a += b", ["dropped statement: pass", "sign: a -= b"]),
        ("x = True", ["constant: False"]),
        ("x = 1 << a", ["sign: 1 >> a", "constant: 2"]),
        ("self.x = a", ["dropped statement: pass"]),
        ("f(a)", ["dropped statement: pass"]),
        ("raise a", ["dropped statement: pass"]),
        ("return a", ["return: return None"]),
        ("x = a or b", ["dropped condition: b", "dropped condition: a"]),
        ("x = [a for a in b if a]", ["dropped condition: [a for a in b]"]),
        ("x = f(a, b, c)", ["swapped arguments: f(b, a, c)"]),
        (
            "if a > b: f(a)",
            [
                "dropped condition: if True:",
                "dropped condition: if False:",
                "boundary: a >= b",
            ],
        ),
        (
            "while a: f(a)",
            ["dropped condition: while False:", "dropped statement: pass"],
        ),
        # Nothing that a test should hold, or that any test notices.
        ("x = f'{a - 1:4}' + 'text'", ["sign: a + 1", "constant: 2"]),
        ("'Text.'", []),
        ("x = f(a, a)", []),
        ("x: int = a", []),
        ("return None", []),
    ],
)
def test_each_small_change_is_made_once(line: str, found: list[str]) -> None:
    tree = ast.parse(f"def function(a: int = 1) -> None:\n    {line}")
    made = [
        f"{it.operator}: {it.text.partition(' => ')[2]}" for it in mutations_of(tree)
    ]
    assert made == found


# --- forks

TRY: Final = """\
import ast, json, sys
from dataclasses import asdict
from pathlib import Path
from tests.mutants import forks
from tests.mutants.forks import Module, try_room
from tests.mutants.operators import mutations_of

root, forks.LIMIT_S = Path(sys.argv[1]), float(sys.argv[2])
tree = ast.parse((root / "gate.py").read_bytes())
module = Module("gate.py", tree, [*mutations_of(tree)])
verdicts, faults = try_room(root, [module], ["test_gate.py"], "not slow", most_s=5)
(root / "found").write_text(json.dumps([[asdict(it) for it in verdicts], faults]))
"""


def try_gate(
    project: Path, limit_s: float = 60
) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """By mutation its outcome and the test that failed; what was wrong before."""
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", "-c", TRY, str(project), str(limit_s)]
    subprocess.run(command, cwd=project, env=environ, check=True, capture_output=True)
    verdicts, faults = json.loads((project / "found").read_text())
    outcomes = {
        verdict["text"]: (verdict["outcome"], verdict["test"][14:].partition("[")[0])
        for verdict in verdicts
    }
    return outcomes, faults


def test_a_mutation_is_killed_by_a_test_that_fails_with_it(project: Path) -> None:
    outcomes, faults = try_gate(project)
    assert faults == []
    assert outcomes == {
        "if is_child: => if True:": ("killed", "test_it_is_open"),
        "if is_child: => if False:": ("killed", "test_many_find_it_shut"),
        "False => True": ("killed", "test_many_find_it_shut"),
        "return age > 17 => return None": ("killed", "test_it_is_open"),
        "age > 17 => age >= 17": ("survived", ""),
        "age > 17 => age <= 17": ("killed", "test_it_is_open"),
        "17 => 18": ("killed", "test_it_is_open"),
        "return a - b => return None": ("unreached", ""),
        "a - b => a + b": ("unreached", ""),
    }


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("assert False", "test_gate.py::test_that_fails fails without a mutation"),
        (
            "raise KeyboardInterrupt",
            "the tests end their process without a mutation",
        ),
    ],
)
def test_nothing_is_judged_while_a_test_fails_anyway(
    project: Path, body: str, fault: str
) -> None:
    tests = project / "test_gate.py"
    tests.write_text(f"{TESTS}\ndef test_that_fails():\n    {body}\n")
    outcomes, faults = try_gate(project)
    assert (outcomes, faults) == ({}, [fault])


@pytest.mark.parametrize(
    ("ends", "test"),
    [("pass", "test_it_waits"), ("if turns > 9: raise KeyboardInterrupt", "")],
    ids=["hangs", "is interrupted"],
)
def test_a_mutation_is_killed_by_a_test_that_does_not_end(
    project: Path, ends: str, test: str
) -> None:
    (project / "gate.py").write_text(
        f"def wait(turns):\n    while turns:\n        turns -= 1\n        {ends}"
    )
    (project / "test_gate.py").write_text(
        "import gate\n\ndef test_it_waits():\n    gate.wait(2)\n    gate.wait(0)\n"
    )
    outcomes, faults = try_gate(project, limit_s=1)
    assert outcomes["turns -= 1 => turns += 1"] == ("killed", test)
    assert faults == []


# --- what is tried


def test_every_room_is_there_and_has_its_tests() -> None:
    assert {room_of(file) for file in modules_of(ROOT)} == ROOMS.keys()
    missing = [
        it for room in ROOMS.values() for it in room.tests if not (ROOT / it).exists()
    ]
    assert missing == []
    assert room_of("liveness/core/wheel/wheel.py") == "liveness/core/wheel"
    assert room_of("liveness/text.py") is None


def test_a_place_is_a_folder_a_module_or_a_function() -> None:
    found = [("liveness/gate.py", it) for it in mutations_of(ast.parse(GATE))]

    def chosen(*places: str) -> set[str]:
        return {it.function for _, it in choose(found, places)}

    assert chosen("liveness") == chosen("liveness/gate.py") == {"is_open", "unused"}
    assert chosen("liveness/gate.py:unused") == {"unused"}
    assert chosen("liveness/gat") == chosen("liveness/gate.py:use") == set()


def test_pairs_and_accepted_mutations_are_of_what_there_is() -> None:
    assert Mutants(ROOT).faults == []


# --- pairs

Pair = Callable[..., pairs.Pair]
SHUT: Final = "tests/test_gate.py::test_it_is_shut"


@pytest.fixture
def pair(project: Path) -> Pair:
    """Add a pair to the project."""

    def add(name: str, new: str, test: str = SHUT, old: str = "age > 17") -> pairs.Pair:
        fields = {"name": name, "what": "The gate is open.", "test": test}
        fields |= {"file": "liveness/gate.py", "old": old, "new": new}
        lines = [f"{key} = {json.dumps(value)}" for key, value in fields.items()]
        with (project / pairs.PATH).open("a") as file:
            file.write("\n".join(["[[pair]]", *lines, ""]))
        return pairs.pairs(project)[-1]

    return add


def test_a_pair_is_killed_if_its_test_fails_in_its_call(
    project: Path, pair: Pair, capsys: pytest.CaptureFixture[str]
) -> None:
    file = "tests/test_gate.py"
    tried = [
        pair("opened", "age >= 0"),
        pair("the-same", "age > 16"),
        pair("no-import", "no text of Python"),
        pair("crashed", "__import__('os')._exit(1)"),
        pair("setup", "age >= 0", f"{file}::test_nobody_passes"),
        pair(
            "one-case", "if age < 9", f"{file}::test_many_find_it_shut", "if is_child"
        ),
        pair(
            "of-it", "if not age", f"{file}::test_many_find_it_shut[20]", "if is_child"
        ),
    ]
    before = {
        path: path.read_bytes() for path in project.rglob("*.*") if path.is_file()
    }
    assert not pairs.run(project, tried)
    told = re.findall(r"^(\S+): SURVIVED: ", capsys.readouterr().out, re.M)
    assert told == ["the-same", "no-import", "crashed", "setup", "one-case"]
    assert {path: path.read_bytes() for path in before} == before
    assert pairs.run(project, tried[:1])


def test_pairs_are_of_texts_and_tests_that_exist(project: Path, pair: Pair) -> None:
    pair("a", "age > 0", old="age > 18")
    pair("a", "age > 0", "tests/test_gate.py::test_of_no_such_name")
    assert pairs.faults(project) == [
        "a: liveness/gate.py has its old text 0 times: change tests/mutants/pairs.toml "
        "with it, or remove the pair with what it took out",
        "a: two pairs have this name",
        "a: there is no test tests/test_gate.py::test_of_no_such_name",
    ]
