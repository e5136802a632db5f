"""The core is pure: what it may import is written here, and nothing else is imported."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import liveness

ROOT = Path(__file__).parents[2] / "liveness"
CORE = sorted((ROOT / "core").glob("*.py"))
BESIDE = [ROOT / "errors.py"]  # importing the core runs it too

MAY_IMPORT = {"__future__", "abc", "array", "bisect", "collections", "collections.abc"}
MAY_IMPORT |= {"dataclasses", "enum", "itertools", "math", "operator", "re", "typing"}
MAY_IMPORT |= {"liveness.errors"}
MAY_IMPORT |= {f"liveness.core.{path.stem}" for path in CORE}
ONLY_IN = {"msgpack": "wire.py"}


def imported(source: str) -> Iterator[str]:
    """Name each module that *source* imports; a relative one begins with a dot."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            if module == "liveness.core":
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
        "import liveness.service.journal",
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
    show = (
        "import sys, liveness.core.presence, liveness.core.client; print(*sys.modules)"
    )
    told = subprocess.run(
        [sys.executable, "-I", "-c", show], capture_output=True, text=True, check=True
    )
    ours = {name for name in told.stdout.split() if name.startswith("liveness")}
    core = {name for name in ours if name.startswith("liveness.core")}
    assert ours - core == {"liveness", "liveness.errors"}
    assert not {"anyio", "trio", "asyncio"} & set(told.stdout.split())


def test_the_package_has_the_names_it_promises_and_no_other() -> None:
    assert all(getattr(liveness, name) for name in liveness.__all__)
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        _ = liveness.conect  # type: ignore[attr-defined]
