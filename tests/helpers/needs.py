"""Programs that tests need, and without which they are skipped; the gate installs them."""

import os
import shutil
import sysconfig
from pathlib import Path
from typing import Final

import pytest

_HEADER: Final = Path(sysconfig.get_config_var("INCLUDEPY"), "Python.h")
_NOT_ROOT: Final = "only root can do this: run the tests as root"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason=_NOT_ROOT)
needs_compiler = pytest.mark.skipif(
    not (shutil.which("gcc") and _HEADER.exists()),
    reason="gcc or Python.h is missing: apt install gcc",
)


def needs(program: str, package: str = "") -> pytest.MarkDecorator:
    """Skip tests that run *program*, which is in a *package* of that name unless given."""
    return pytest.mark.skipif(
        shutil.which(program) is None, reason=_missing(program, package)
    )


def require(program: str, package: str = "") -> str:
    """Skip the running test without *program*, as `needs` does; its path."""
    if path := shutil.which(program):
        return path
    pytest.skip(_missing(program, package))


def require_root() -> None:
    if os.geteuid() != 0:
        pytest.skip(_NOT_ROOT)


def _missing(program: str, package: str) -> str:
    return f"{program} is missing: apt install {package or program}"
