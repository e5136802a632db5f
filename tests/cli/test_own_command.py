"""The commands that are printed are those that the user can type."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from liveness.console.own_command import as_typed, own_command
from liveness.console.terminal import report_line


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Something of our name, outside the PATH."""
    path = tmp_path / "a b" / "liveness"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_a_program_outside_the_path_is_called_as_it_was(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(program), "demo"])
    assert own_command() == f"'{program}'"
    report_line("start it with `liveness serve`, or see `liveness --help`")
    assert capsys.readouterr().err == (
        f"liveness: start it with `'{program}' serve`, or see `'{program}' --help`\n"
    )


def test_a_program_in_the_path_is_called_by_its_name(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "liveness"
    link.symlink_to(program)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(program)])
    assert own_command() == "liveness"
    # Another one of this name: the PATH does not lead to the one that runs.
    link.unlink()
    shutil.copy(program, link)
    assert own_command() == f"'{program}'"


def test_a_module_is_called_by_the_python_that_runs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["/x/liveness/__main__.py", "demo"])
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-m", "liveness", "demo"])
    assert own_command() == "python3 -m liveness"
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-m", "pytest"])
    assert own_command() == "liveness"


def test_a_long_command_is_broken_where_a_shell_goes_on(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    monkeypatch.setattr(sys, "argv", [str(program)])
    arguments = ["watch", "--socket", "/tmp/" + "s" * 80, "--after", "7 8"]
    lines = list(as_typed(arguments, indent=2))
    assert [line[:2] for line in lines] == ["  "] * 3
    typed = subprocess.run(
        ["/bin/sh"], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    assert typed.stdout.splitlines() == arguments
