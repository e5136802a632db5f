"""What a test needs of the machine, and is skipped without; the gate installs it."""

import shutil
import sysconfig
from pathlib import Path
from typing import Final

import pytest

_HEADER: Final = Path(sysconfig.get_config_var("INCLUDEPY"), "Python.h")

needs_git = pytest.mark.skipif(
    not shutil.which("git"), reason="git is missing: apt install git"
)
needs_compiler = pytest.mark.skipif(
    not (shutil.which("gcc") and _HEADER.exists()),
    reason="gcc or Python.h is missing: apt install gcc",
)
