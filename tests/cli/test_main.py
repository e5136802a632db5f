"""The command line: help, mistakes in one line, exit codes, and what is not imported."""

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from liveness import __version__
from liveness.cli import main
from liveness.errors import ConfigError, LivenessError
from tests.helpers.log_setup import log_setup_restored
from tests.helpers.processes import Done, environment, ran, succeeded

COMMANDS = sorted(name for name in main.app if not name.startswith("-"))
TIMERS, WEBHOOKS = (
    sorted(f"{group} {name}" for name in main.app[group] if not name.startswith("-"))
    for group in ("timers", "webhooks")
)


Run = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs `liveness` with the arguments of a line; its exit code, stdout and stderr."""
    with log_setup_restored():  # `serve` configures it
        yield lambda line: (
            main.main(line.split(" ") if line else []),
            *capfd.readouterr(),
        )


def process(*arguments: str, **options: Any) -> Done:
    """`liveness` as a process of its own, for what only a process shows."""
    return ran(sys.executable, "-m", "liveness", *arguments, timeout=120, **options)


@pytest.mark.parametrize("command", ["", *COMMANDS, *TIMERS, *WEBHOOKS])
def test_every_help_ends_with_an_example_of_its_command(run: Run, command: str) -> None:
    code, shown, _ = run(f"{command} --help".strip())
    assert code == 0
    last = shown.splitlines()[-1].strip()
    assert re.fullmatch(rf"Example: liveness {command}.*", last)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--timeout 3", 'Unknown command "--timeout"'),
        ("sta", 'Unknown command "sta". Did you mean "status"?'),
        ("timers ", 'Unknown command "". Available commands: list, show, cancel, re'),
        ("watch --after -1", "--after: '-1' is not 0 to 9223372036854775807"),
        ("watch --kind gone", 'Invalid value "gone" for --kind'),
        ("timers show --json", "KEY requires an argument"),
        ("timers show a b", "unexpected argument: b"),
        ("timers cancel k --all", "Unknown option: --all"),
        ("demo --seconds nan", "'nan' is not 1 to 86400"),
        ("bench --folder /there/is/none", "'/there/is/none' is not a folder"),
    ],
    ids=lambda text: text[:30],
)
def test_a_wrong_line_is_one_line_and_2(run: Run, arguments: str, told: str) -> None:
    code, shown, line = run(arguments)
    assert (code, shown) == (2, "")
    assert line.startswith("liveness: ")
    assert line.count("\n") == 1
    assert told in line
    assert re.search(r"; see `liveness( \w+)* --help`\n$", line)


@pytest.mark.parametrize(
    "arguments",
    [
        "log --kind",
        "check-state --state",
        "demo --script",
        "history --state /there/is/none",
        "",
    ],
)
def test_an_argument_in_a_line_is_escaped_once(run: Run, arguments: str) -> None:
    steering = "/é\x1b]0;\x07\x9b\u202e\udcff\\"
    code, shown, line = run(f"{arguments} {steering}".strip())
    assert (code != 0, shown) == (True, "")
    assert line.removesuffix("\n").isprintable()
    assert line.count("\n") == 1
    if "there" not in arguments:
        assert re.search(r"/é\\x1b]0;\\x07\\x9b\\u202e\\udcff\\", line)


@pytest.mark.parametrize("command", ["serve", "check-config"])
def test_all_wrong_settings_are_reported_a_line_each(
    run: Run, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIVENESS_SLOTS", "many")
    monkeypatch.setenv("LIVENESS_TIMEOUT_S", "0")
    code, shown, lines = run(command)
    assert (code, shown) == (78, "")
    assert lines == (
        "liveness: slots is 'many' (environment LIVENESS_SLOTS): it is not a number; it "
        "must be a whole number, 2 to 3600 slots\n"
        "liveness: timeout_s is '0' (environment LIVENESS_TIMEOUT_S): it must be 1 to "
        "86400 seconds\n"
    )


def test_a_failed_start_is_one_line_of_the_log() -> None:
    ended = process("serve", "--timeout", "0", "--slots", "1")
    assert (ended.returncode, ended.stdout) == (78, "")
    assert ended.stderr.count("\n") == 1
    line = json.loads(ended.stderr)
    assert re.fullmatch(r"[\d-]+T[\d:.]+Z", line.pop("timestamp"))
    first, second = line.pop("error").split("\n")
    assert first == "timeout_s is '0' (flag --timeout): it must be 1 to 86400 seconds"
    assert second.startswith("slots is '1' (flag --slots): it must be")
    assert line == {"event": "failed", "level": "error", "exit_code": 78}


@pytest.mark.parametrize("package", ["cyclopts", "starlette"])
def test_a_bug_that_ends_serve_is_a_line_of_the_log(
    package: str, tmp_path: Path
) -> None:
    (tmp_path / f"{package}.py").write_text("raise ZeroDivisionError")
    env = environment(PYTHONPATH=str(tmp_path), LIVENESS_STATE_DIR=str(tmp_path))
    ended = process("serve", env=env)
    line = json.loads(ended.stderr)
    assert ended.returncode == line["exit_code"] == 1
    assert line["error"] == "ZeroDivisionError()"
    assert "Traceback" in line["exception"]


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (LivenessError("port in use"), 1, "liveness: port in use\n"),
        (ConfigError("slots is 1"), 78, "liveness: slots is 1\n"),
        (LivenessError("\x1b '\\x1b'\r\x85"), 1, "liveness: \\x1b '\\x1b'\\r\\x85\n"),
        (KeyboardInterrupt(), 130, ""),
        (BaseExceptionGroup("", [KeyboardInterrupt()]), 130, ""),
        (
            ExceptionGroup("", [ExceptionGroup("", [LivenessError("port in use")])]),
            1,
            "liveness: port in use\n",
        ),
    ],
)
def test_what_a_person_did_ends_it_in_a_nursery_or_not(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
    line: str,
) -> None:
    monkeypatch.setattr(main, "app", raising(error))
    assert run("version") == (code, "", line)


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError(),
        BrokenPipeError(),  # of a socket, perhaps: not of stdout
        ExceptionGroup("", [LivenessError("port in use"), ZeroDivisionError()]),
    ],
)
def test_a_fault_of_ours_is_not_hidden(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "app", raising(error))
    with pytest.raises(type(error)):
        main.main(["version"])


def raising(error: BaseException) -> Callable[..., None]:
    def command(*_: object) -> None:
        raise error

    return command


def test_version_has_what_a_bug_report_needs(run: Run) -> None:
    code, shown, _ = run("version")
    assert code == 0
    versions, wheel = shown.splitlines()
    python = platform.python_version()
    assert versions == f"liveness {__version__} (Python {python}, protocol 1)"
    assert re.fullmatch("wheel: (compiled|reference, because .+)", wheel)


def test_check_config_prints_each_setting_with_its_source(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "l.toml"
    file.write_text("slots = 60\n")
    monkeypatch.setenv("LIVENESS_TIMEOUT_S", "12")
    code, shown, _ = run(f"check-config --config {file}")
    assert code == 0
    assert "timeout_s = 12.0  # environment LIVENESS_TIMEOUT_S\n" in shown
    assert f"slots = 60  # {file}\n" in shown
    assert "[limits]\ngateway_hold_s = 60.0  # default\n" in shown


def test_check_config_tries_the_files_of_outlets(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "l.toml"
    file.write_text("[webhooks.a]\nurl = 'https://a.example/'\nsecret_file = '/no/s'\n")
    code, shown, line = run(f"check-config --config {file}")
    assert code == 78
    assert "secret_file = '/no/s'" in shown.replace('"', "'")
    assert line.startswith("liveness: webhooks.a.secret_file: /no/s cannot be read")


def test_a_reader_who_goes_away_ends_it_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "liveness", "check-config"]
    ended = subprocess.run(
        command, stdout=writer, stderr=subprocess.PIPE, timeout=120, check=False
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, b"")


SERVER = {"h11", "starlette", "structlog", "sqlite3"}


@pytest.mark.parametrize(
    ("arguments", "unused"),
    [
        ("version", {"trio", "prometheus_client"}),
        # A wrong setting is logged, which takes structlog, where the log is JSON.
        ("serve --timeout 0", {"trio", "prometheus_client"}),
        ("watch --socket /there/is/none", set()),
        ("explain a/7 --socket /there/is/none", {"trio"}),
    ],
)
def test_a_client_loads_no_server(arguments: str, unused: set[str]) -> None:
    script = (
        "import sys; from liveness.cli.main import main; main(sys.argv[1:]); "
        "print('\\n', *sys.modules)"
    )
    shown = succeeded(ran(sys.executable, "-c", script, *arguments.split()))
    loaded = {name.split(".")[0] for name in shown.splitlines()[-1].split()}
    server = SERVER - ({"structlog"} if arguments.startswith("serve") else set())
    assert not (server | unused) & loaded
