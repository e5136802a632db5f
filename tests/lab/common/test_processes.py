"""Programs that are started, watched and ended, as real processes."""

import re
import signal
import sys
from pathlib import Path

import pytest

from liveness.lab.common.processes import (
    Program,
    ProgramError,
)

READY = "print('ready at here:1', flush=True)"
WAITS = f"import signal; {READY}; signal.pause()"


def program(folder: Path, code: str) -> Program:
    return Program(
        name="thing",
        command=[sys.executable, "-c", code],
        log=folder / "thing.log",
        ready=re.compile(r"ready at (\S+)"),
    )


def test_it_is_ready_when_it_says_so_and_again_after_each_end(tmp_path: Path) -> None:
    with program(tmp_path, WAITS) as it:
        for _ in range(2):
            it.start()
            assert it.address == "here:1"
            assert it.code is None
            assert it.memory_mb() > 1
            assert it.cpu_s() > 0
            it.kill()
            assert it.code == -signal.SIGKILL
    assert (tmp_path / "thing.log").read_text().count("ready") == 2


def test_one_that_ends_is_reported_with_its_last_lines(tmp_path: Path) -> None:
    it, why = program(tmp_path, "raise SystemExit('no such port')"), "exit code 1"
    with it, pytest.raises(ProgramError, match=f"thing has ended, {why}") as lost:
        it.start()
    assert lost.value.last_lines == "    no such port"


def test_a_stop_that_is_not_in_order_is_an_error(tmp_path: Path) -> None:
    exits = "import sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))"
    with program(tmp_path, f"import signal; {exits}; {WAITS}") as it:
        it.start()
        with pytest.raises(ProgramError, match="with code 3 on SIGTERM"):
            it.stop()
