"""Commands that go on, on a real terminal: pictures, colours, and how they end."""

import os
import re

import pytest

from liveness.console.terminal import wants_colours
from tests.system.conftest import Start
from tests.system.sidecar import Sidecar
from tests.system.tty import Tty

REDRAWN = "\x1b[H\x1b[J"
# What has colours or weight, and not what moves the cursor.
PAINTED = re.compile(r"\x1b\[[0-9;]+m")
COLOURED = re.compile(r"\x1b\[[0-9;]*3[0-7]m")
NARROW = (24, 40)


def screens(tty: Tty) -> list[list[str]]:
    """The lines of each whole picture so far."""
    return [shot.split("\r\n") for shot in tty.out.split(REDRAWN)[1:-1]]


def watching(sidecar: Sidecar, *flags: str, **environment: str) -> Tty:
    command = ("-m", "liveness", "status", "--watch", "0.2")
    return Tty(*command, "--socket", sidecar.socket, *flags, size=NARROW, **environment)


def test_status_stays_in_place_on_a_narrow_terminal_over_a_restart(
    start: Start,
) -> None:
    sidecar = start()
    with watching(sidecar) as tty:
        tty.until(r"ready +yes")
        tty.until(r"events/s +0\.0 \(")
        sidecar.kill()
        tty.until("no sidecar at")
        sidecar.start()
        tty.until(r"ready +yes")
        tty.type("\x03")
        tty.until("ended 130")
        assert tty.is_as_it_was
    assert COLOURED.search(tty.out)
    for screen in screens(tty):
        assert 2 <= len(screen) <= NARROW[0]
        assert max(len(PAINTED.sub("", line)) for line in screen) < NARROW[1]
    assert "Traceback" not in tty.out


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_status_has_no_colours_where_none_are_wanted(
    sidecar: Sidecar, environment: dict[str, str]
) -> None:
    with watching(sidecar, **environment) as tty:
        tty.until(r"ready +(yes|\d+ online)")
        tty.until(r"ready +(yes|\d+ online)")
        tty.type("\x03")
        tty.until("ended 130")
    assert not COLOURED.search(tty.out)
    assert (REDRAWN in tty.out) == ("TERM" not in environment)


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
