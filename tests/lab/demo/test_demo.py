"""The demo's parts, in process: plans, scripts, lines, picture and refusals."""

import re
from pathlib import Path

import pytest
from rich.text import Text

from liveness.cli import main
from liveness.errors import StartError
from liveness.lab.demo.launcher import found_redis
from liveness.lab.demo.picture import fitted
from liveness.lab.demo.script import Step, actions_of, parsed_script

# --- what it refuses ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--seconds 12.9", "12.9 s are too short to show 200 users and a timeout of"),
        ("--script lunch", "'lunch' is no step; write SECONDS below 40, and one"),
        ("--users 501 --timeout 1", "use --users 500 or less, or a longer --timeout"),
    ],
)
def test_options_that_cannot_be_shown_are_refused_in_one_line(
    options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["demo", *options.split()]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert re.fullmatch(r"liveness: .*\n", shown.err)
    assert message in shown.err


def test_several_hosts_without_redis_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StartError, match=r"cannot start: .*: apt install redis-server"):
        found_redis()


# --- scripts and plans --------------------------------------------------------------------


def test_a_script_is_followed_in_order_of_time() -> None:
    script = "10 gateway, 5 silence,7.5  stop 2 , 8 silence 20"
    assert parsed_script(script, seconds=40) == [
        Step(5, "silence", 100),
        Step(7.5, "stop", 2),
        Step(8, "silence", 20),
        Step(10, "gateway", 0),
    ]
    several = parsed_script("5 host 2, 8 redis", seconds=40, actions=actions_of(3))
    assert several == [Step(5, "host", 2), Step(8, "redis", 0)]
    assert parsed_script("", seconds=40) == []


@pytest.mark.parametrize(
    ("hosts", "step"),
    [
        *((1, "5 dance"), (1, ""), (1, "40 silence")),
        *((1, "5 gateway 2"), (1, "5 stop nan"), (3, "5 host 4"), (3, "5 gateway")),
    ],
)
def test_a_bad_script_says_what_where_and_what_to_do(hosts: int, step: str) -> None:
    with pytest.raises(
        ValueError, match=f"'{step}' is no step; write SECONDS below 40,"
    ):
        parsed_script(f"5 silence,{step}", seconds=40, actions=actions_of(hosts))


# --- the picture -----------------------------------------------------------------------


@pytest.mark.parametrize("size", [(1, 1), (80, 24)])
def test_a_picture_never_outgrows_its_terminal(size: tuple[int, int]) -> None:
    lines = fitted([Text("x" * 100)], [f"record {n}" for n in range(50)], *size)
    assert len(lines) == size[1]
    assert all(line.cell_len <= size[0] for line in lines)
    assert lines[-1].plain in ("record 49", "…")
