"""The core is pure, and half of the client: what they may import is written here."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import liveness
from tests.helpers.tree import ROOT

PACKAGE = ROOT / "liveness"
CORE = sorted((PACKAGE / "core").rglob("*.py"))
# The library's own rules, without its sockets and event loops.
CLIENT = [
    PACKAGE / "client" / f"{name}.py"
    for name in (*("inbox", "protocol", "reports"), *("tasks", "timer_requests"))
]
BESIDE = [PACKAGE / "errors.py"]  # importing the core runs it too

MAY_IMPORT = {
    "__future__", "abc", "array", "bisect", "collections", "collections.abc", "contextlib",
    "dataclasses", "enum", "itertools", "math", "operator", "re", "typing",
    "liveness.errors",
    *(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in CORE),
}  # fmt: skip
OF_THE_CLIENT = {f"liveness.client.{path.stem}" for path in CLIENT}


def imported(source: str) -> Iterator[str]:
    """Name each module that *source* imports; a relative one begins with a dot."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            if (ROOT / module.replace(".", "/")).is_dir():
                yield from (f"{module}.{alias.name}" for alias in node.names)
            else:
                yield module


@pytest.mark.parametrize("path", CORE + BESIDE, ids=lambda path: path.name)
def test_the_core_imports_only_the_core(path: Path) -> None:
    only_here = {"msgpack"} if path.name == "framing.py" else set[str]()
    assert {*imported(path.read_text())} <= MAY_IMPORT | only_here


@pytest.mark.parametrize("path", CLIENT, ids=lambda path: path.name)
def test_the_clients_rules_import_only_each_other_and_the_core(path: Path) -> None:
    allowed = MAY_IMPORT | OF_THE_CLIENT | {"weakref"}
    assert {*imported(path.read_text())} <= allowed


def test_importing_the_core_runs_nothing_else() -> None:
    """So the package's own names, the client library's, cost only those who use them."""
    show = "import sys, liveness.core.sessions.presence, liveness.client.protocol; print(*sys.modules)"
    told = subprocess.run(
        [sys.executable, "-I", "-c", show], capture_output=True, text=True, check=True
    )
    ours = {name for name in told.stdout.split() if name.startswith("liveness")}
    core = {name for name in ours if name.startswith("liveness.core")}
    rest = {"liveness", "liveness.errors", "liveness.client"}
    assert ours - core == OF_THE_CLIENT | rest
    assert not {"anyio", "trio", "asyncio"} & set(told.stdout.split())


def test_the_package_has_the_names_it_promises_and_no_other() -> None:
    assert all(getattr(liveness, name) for name in liveness.__all__)
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        _ = liveness.conect  # type: ignore[attr-defined]
