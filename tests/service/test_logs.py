"""The sidecar's own words: their form, their level, and how often."""

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from select import select
from typing import Any, TextIO

import pytest
import structlog

from liveness.service.common import logs
from liveness.service.common.logs import (
    MAX_LINES,
    PREFIXES,
    LogThrottle,
    configure,
    drain,
)
from tests.helpers.journal import file_number, journaled
from tests.helpers.log_setup import log_setup_restored

SOON_S = 120  # long after everything here has happened


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    with log_setup_restored():
        yield


@pytest.fixture
def stream(tmp_path: Path, _as_it_was: None) -> Iterator[TextIO]:
    with (tmp_path / "log").open("w+") as stream:
        yield stream
        drain()


class Pipe:
    """A stderr whose reader comes and goes, or is there and does not read."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._path = path
        self.come()
        self.stream = path.open("w")
        self._unfinished = b""

    def come(self) -> None:
        self._reader = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)

    def go(self) -> None:
        os.close(self._reader)

    def fill(self) -> None:
        """Leaves no room in it, with lines that are empty."""
        os.set_blocking(self.stream.fileno(), False)
        with suppress(BlockingIOError):
            while True:
                os.write(self.stream.fileno(), b"\n" * 4_096)
        os.set_blocking(self.stream.fileno(), True)

    def lines(self, until: str) -> list[dict[str, Any]]:
        """The lines up to the event *until*."""
        found: list[dict[str, Any]] = []
        while not found or found[-1]["event"] != until:
            assert select([self._reader], [], [], SOON_S)[0], "nothing comes"
            data = self._unfinished + os.read(self._reader, 65_536)
            *whole, self._unfinished = data.split(b"\n")
            found += [json.loads(line) for line in whole if line]
        return found


@pytest.fixture
def pipe(tmp_path: Path, _as_it_was: None) -> Iterator[Pipe]:
    pipe = Pipe(tmp_path / "stderr")
    yield pipe
    pipe.go()  # which ends a write that waits for its reader
    drain()
    pipe.stream.close()


def text(stream: TextIO) -> str:
    drain()
    stream.seek(0)
    return stream.read()


def json_lines(stream: TextIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text(stream).splitlines()]


def test_json_has_event_level_time_in_utc_and_values(stream: TextIO) -> None:
    configure("json", "info", stream=stream)
    structlog.get_logger().info("link up", name="chat-1", links=3)
    (line,) = json_lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "link up", "level": "info", "name": "chat-1", "links": 3}


def test_a_name_cannot_steer_the_terminal_or_begin_a_line(stream: TextIO) -> None:
    configure("text", "info", stream=stream)
    structlog.get_logger().info("link up", name="a\x1b[2J\nb")
    assert r"name=a\x1b[2J\nb" in text(stream)
    assert text(stream).count("\n") == 1
    assert "\x1b" not in text(stream)  # nor has it colours


def test_what_is_less_urgent_than_the_level_is_not_said(stream: TextIO) -> None:
    configure("json", "warning", stream=stream)
    structlog.get_logger().info("no")
    structlog.get_logger().warning("yes")
    assert [line["event"] for line in json_lines(stream)] == ["yes"]


@pytest.mark.parametrize("format", ["json", "text"])
def test_in_the_journal_each_line_has_the_priority_of_its_level(
    stream: TextIO, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", file_number(stream.fileno()))
    configure(format, "debug", stream=stream)
    for level in PREFIXES:
        structlog.get_logger().log(logging.getLevelNamesMapping()[level.upper()], "up")
    structlog.get_logger().error("down", exc_info=OSError(28, "No space left"))
    *lines, _ = text(stream).splitlines()
    assert [line[:3] for line in lines[:5]] == ["<7>", "<6>", "<4>", "<3>", "<2>"]
    assert {line[:3] for line in lines[5:]} <= {"<3>"}
    assert "<" not in "".join(line[3:] for line in lines)


def test_a_line_fits_into_an_entry_of_the_journal(stream: TextIO) -> None:
    configure("json", "info", stream=stream)
    error = ExceptionGroup("", [OSError("x" * 9_000) for _ in range(9)])
    structlog.get_logger().error("failed", error=repr(error), exc_info=error)
    assert len(text(stream)) < 48 * 1_024
    assert "ExceptionGroup" in json_lines(stream)[0]["exception"]


def test_libraries_come_out_in_the_same_form_from_warning_upwards(
    stream: TextIO,
) -> None:
    configure("json", "debug", stream=stream)
    library = logging.getLogger("library.error")
    library.info("no")
    try:
        raise OSError(28, "No space left")
    except OSError:
        library.exception("in %s", "it")
    (line,) = json_lines(stream)
    assert line["event"] == "in it"
    assert "library.error" in line.values()
    assert "OSError: [Errno 28] No space left" in line["exception"]


def test_a_broken_stream_loses_lines_and_a_later_one_says_how_many(pipe: Pipe) -> None:
    configure("json", "info", stream=pipe.stream)
    log = structlog.get_logger()
    pipe.go()
    for event in ("one", "two", "three, which tells of two"):
        log.info(event)
        drain()
    pipe.come()
    log.info("four")
    log.info("five")
    four, five = pipe.lines("five")
    assert (four["event"], four["lines_lost"]) == ("four", 3)
    assert "lines_lost" not in five


def test_a_pipe_that_nobody_reads_loses_lines_and_holds_nobody_up(pipe: Pipe) -> None:
    pipe.fill()
    configure("json", "info", stream=pipe.stream)
    log = structlog.get_logger()
    for n in range(MAX_LINES + 5):
        log.info(str(n))
    kept = pipe.lines(str(MAX_LINES - 1))
    log.info("room again")
    log.info("end")
    again, end = pipe.lines("end")
    assert [line["event"] for line in kept] == [str(n) for n in range(MAX_LINES)]
    assert not any("lines_lost" in line for line in kept)
    assert (again["event"], again["lines_lost"]) == ("room again", 5)
    assert "lines_lost" not in end


UNCAUGHT = """
import warnings
from liveness.service.common import logs

logs.configure("auto", "warning")
logs.log_uncaught()
warnings.warn("an old name")
raise ExceptionGroup("in the end", [OSError()])
"""


def test_what_python_would_print_is_logged() -> None:
    code, entries = journaled(sys.executable, "-c", UNCAUGHT)
    assert code == 1
    assert [(priority, line["level"]) for priority, line in entries] == [
        (4, "warning"),
        (2, "critical"),
    ]
    warning, failed = (line for _, line in entries)
    assert "UserWarning: an old name" in warning["event"]
    assert (failed["event"], failed["exit_code"]) == ("failed", 1)
    assert failed["error"] == "ExceptionGroup('in the end', [OSError()])"
    assert "in the end (1 sub-exception)" in failed["exception"]


class Said:
    """A clock that is set by hand, and what was said at each time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[tuple[str, dict[str, object]]] = []
        self.every = LogThrottle(10.0, clock=lambda: self.now)

    def at(self, now: float, key: str) -> None:
        self.now = now
        self.every(self._say, "refused", key=key, n=now)

    def _say(self, message: str, **fields: object) -> None:
        self.lines.append((message, fields))


def test_the_next_line_after_the_interval_counts_those_between() -> None:
    said = Said()
    for now in (0.0, 1.0, 9.9, 10.0, 20.0):
        said.at(now, "a")
    assert said.lines == [
        ("refused", {"n": 0.0}),
        ("refused", {"n": 10.0, "suppressed": 2}),
        ("refused", {"n": 20.0}),
    ]


def test_beyond_its_room_the_key_logged_longest_ago_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "MAX_KEYS", 2)
    said = Said()
    for now, key in ((0, "a"), (1, "b"), (10, "a"), (11, "c"), (12, "a"), (13, "b")):
        said.at(now, key)
    assert [fields["n"] for _, fields in said.lines] == [0, 1, 10, 11, 13]
