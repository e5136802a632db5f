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
    for name in (
        *("inbox", "protocol", "reports"),
        *("tasks", "timer_requests"),
    )
]
BESIDE = [PACKAGE / "errors.py"]  # importing the core runs it too

MAY_IMPORT = {"__future__", "abc", "array", "bisect", "collections", "collections.abc"}
MAY_IMPORT |= {
    "contextlib",
    "dataclasses",
    "enum",
    "itertools",
    "math",
    "operator",
    "re",
    "typing",
}
MAY_IMPORT |= {"liveness.errors"}
MAY_IMPORT |= {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in CORE}
ONLY_IN = {"msgpack": "framing.py"}
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


def forbidden(source: str, name: str) -> set[str]:
    """What *source*, a file of the core called *name*, must not import and does."""
    allowed = MAY_IMPORT | {module for module, only in ONLY_IN.items() if only == name}
    return set(imported(source)) - allowed


@pytest.mark.parametrize("path", CORE + BESIDE, ids=lambda path: path.name)
def test_the_core_imports_only_the_core(path: Path) -> None:
    assert forbidden(path.read_text(), path.name) == set()


@pytest.mark.parametrize("path", CLIENT, ids=lambda path: path.name)
def test_the_clients_rules_import_only_each_other_and_the_core(path: Path) -> None:
    assert forbidden(path.read_text(), path.name) <= OF_THE_CLIENT | {"weakref"}


def test_only_shells_keep_a_server() -> None:
    users = [*(PACKAGE / "service").rglob("*.py"), *(PACKAGE / "testing").glob("*.py")]
    keeping = [path.name for path in users if "self._server." in path.read_text()]
    assert keeping == ["engine_shell.py", "scripted_shell.py"]


@pytest.mark.parametrize("module", ONLY_IN)
def test_only_one_file_of_the_core_imports_it(module: str) -> None:
    importing = [path.name for path in CORE if module in imported(path.read_text())]
    assert importing == [ONLY_IN[module]]


@pytest.mark.parametrize(
    "line",
    [
        "import time",
        "from trio import sleep",
        "from liveness import service",
        "import liveness.service.storage.log_writer",
        "from . import wire",
        "from ..service import journal",
        "import array, socket",
        "from liveness.core import engine",
        "def later():\n    import trio",
        "import msgpack",
    ],
)
def test_a_core_that_imports_more_would_be_found_out(line: str) -> None:
    assert forbidden(line, "presence.py")


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
