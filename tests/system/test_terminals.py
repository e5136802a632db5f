"""Commands on a real terminal: their colours, and how they end."""

import os
import re

import pytest

from liveness.console.terminal import wants_colours
from tests.system.sidecar import Sidecar
from tests.system.tty import Tty

# What has colours or weight, and not what moves the cursor.
PAINTED = re.compile(r"\x1b\[[0-9;]+m")


@pytest.mark.parametrize(
    ("flags", "is_painted"),
    [("", True), ("--color never", False), ("--json", False)],
)
def test_watch_is_coloured_on_a_terminal_unless_told_not_to_and_json_is_not(
    sidecar: Sidecar, name: str, flags: str, is_painted: bool
) -> None:
    with sidecar.gateway(name) as gateway:
        gateway.apply("login", f"of {name}")
    command = ("-m", "liveness", "watch", "--socket", sidecar.socket, "--after", "0")
    flags += " --color always" if flags == "--json" else ""
    with Tty(*command, "--count", "1", *flags.split(), size=(24, 80)) as tty:
        tty.until("ended 0")
    assert "online" in tty.out
    assert bool(PAINTED.search(tty.out)) == is_painted


@pytest.mark.parametrize(
    ("when", "environment", "expected"),
    [
        ("auto", {}, True),
        ("auto", {"NO_COLOR": "1"}, False),
        ("auto", {"TERM": "dumb"}, False),
        ("never", {}, False),
        ("always", {"NO_COLOR": "1", "TERM": "dumb"}, True),
    ],
)
def test_a_terminal_gets_colours_unless_somebody_minds(
    monkeypatch: pytest.MonkeyPatch,
    when: str,
    environment: dict[str, str],
    expected: bool,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for variable, value in ({"TERM": "xterm-256color"} | environment).items():
        monkeypatch.setenv(variable, value)
    ours, theirs = os.openpty()
    with os.fdopen(ours), os.fdopen(theirs, "w") as terminal:
        assert wants_colours(terminal, when) == expected
