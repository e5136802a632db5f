"""For the integrations: real sidecars, and gateways as processes."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.helpers.processes import environment
from tests.helpers.tree import ROOT
from tests.system.conftest import make, start

__all__ = ["make", "start"]  # fixtures of the tests of processes

SOON_S: Final = 120.0


@contextmanager
def listening(*command: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a gateway; it and its port, which ends the line that it prints first."""
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline().rpartition(":")[2])
        finally:
            process.kill()
