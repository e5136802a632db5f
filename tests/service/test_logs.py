"""The sidecar's own words: their form, their level, and how often."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from liveness.service.logs import Every, configure


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    handlers, level = logging.root.handlers, logging.root.level
    yield
    structlog.reset_defaults()
    logging.root.handlers = handlers
    logging.root.setLevel(level)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Broken(io.StringIO):
    """A stream whose reader comes and goes."""

    is_broken = True

    def write(self, text: str) -> int:
        if self.is_broken:
            raise BrokenPipeError
        return super().write(text)


def json_lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json_has_the_event_its_level_its_time_in_utc_and_its_values() -> None:
    stream = io.StringIO()
    configure("json", "info", stream=stream)
    structlog.get_logger().info("link up", name="chat-1", links=3)
    (line,) = json_lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "link up", "level": "info", "name": "chat-1", "links": 3}


def test_auto_is_text_on_a_terminal_and_json_elsewhere() -> None:
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        configure("auto", "info", stream=stream)
        structlog.get_logger().info("link up")
    assert "link up" in terminal.getvalue()
    assert "{" not in terminal.getvalue()
    assert json_lines(file)[0]["event"] == "link up"


def test_text_without_a_terminal_has_no_colours() -> None:
    stream = io.StringIO()
    configure("text", "info", stream=stream)
    structlog.get_logger().info("link up", name="chat-1")
    assert "\x1b" not in stream.getvalue()


def test_a_name_cannot_steer_the_terminal_or_begin_a_line() -> None:
    stream = io.StringIO()
    configure("text", "info", stream=stream)
    structlog.get_logger().info("link up", name="a\x1b[2J\nb")
    assert r"name=a\x1b[2J\nb" in stream.getvalue()
    assert stream.getvalue().count("\n") == 1


def test_what_is_less_urgent_than_the_level_is_not_said() -> None:
    stream = io.StringIO()
    configure("json", "warning", stream=stream)
    structlog.get_logger().info("no")
    structlog.get_logger().warning("yes")
    assert [line["event"] for line in json_lines(stream)] == ["yes"]


@pytest.mark.parametrize("format", ["json", "text"])
def test_libraries_come_out_in_the_same_form_from_warning_upwards(format: str) -> None:
    stream = io.StringIO()
    configure(format, "debug", stream=stream)
    library = logging.getLogger("hypercorn.error")
    library.info("no")
    try:
        raise OSError(28, "No space left")
    except OSError:
        library.exception("in %s", "it")
    assert "in it" in stream.getvalue()
    assert "hypercorn.error" in stream.getvalue()
    assert "OSError: [Errno 28] No space left" in stream.getvalue()
    assert "no\n" not in stream.getvalue()
    if format == "json":
        assert len(json_lines(stream)) == 1


def test_a_broken_stream_loses_lines_and_the_next_one_says_how_many() -> None:
    stream = Broken()
    configure("json", "info", stream=stream)
    log = structlog.get_logger()
    log.info("one")
    log.info("two")
    stream.is_broken = False
    log.info("three")
    log.info("four")
    three, four = json_lines(stream)
    assert (three["event"], three["lines_lost"]) == ("three", 2)
    assert "lines_lost" not in four


class Said:
    """A clock that is set by hand, and what was said at each time."""

    def __init__(self, *, max_keys: int = 10) -> None:
        self.now = 0.0
        self.lines: list[tuple[str, dict[str, object]]] = []
        self.every = Every(10.0, clock=lambda: self.now, max_keys=max_keys)

    def at(self, now: float, key: str) -> None:
        self.now = now
        self.every(self._say, "refused", key=key, n=now)

    def _say(self, message: str, **fields: object) -> None:
        self.lines.append((message, fields))


def test_the_first_is_said_and_the_next_after_the_interval_counts_those_between() -> (
    None
):
    said = Said()
    for now in (0.0, 1.0, 9.9, 10.0, 20.0):
        said.at(now, "a")
    assert said.lines == [
        ("refused", {"n": 0.0}),
        ("refused", {"n": 10.0, "suppressed": 2}),
        ("refused", {"n": 20.0}),
    ]


def test_each_key_has_an_interval_of_its_own() -> None:
    said = Said()
    said.at(0, "a")
    said.at(1, "b")
    assert len(said.lines) == 2


def test_beyond_its_room_it_forgets_who_was_said_longest_ago_and_counts_that() -> None:
    said = Said(max_keys=2)
    for now, key in enumerate("aba"):
        said.at(now, key)
    assert (len(said.lines), said.every.forgotten) == (2, 0)
    said.at(3, "c")
    assert said.every.forgotten == 1
    said.at(4, "b")  # still known
    said.at(5, "a")  # forgotten, so said
    assert [fields["n"] for _, fields in said.lines] == [0, 1, 3, 5]


def test_who_was_said_again_is_not_the_one_said_longest_ago() -> None:
    said = Said(max_keys=2)
    for now, key in ((0, "a"), (1, "b"), (10, "a"), (11, "c"), (12, "a")):
        said.at(now, key)
    assert [fields["n"] for _, fields in said.lines] == [0, 1, 10, 11]
    assert said.every.forgotten == 1
