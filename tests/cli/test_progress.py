"""The progress of a long command: a bar on a terminal, lines in a file."""

import io
import os
import re
from collections.abc import Iterator
from contextlib import suppress

import pytest

from liveness.console.progress import progress_bar, time_share


def test_on_a_terminal_a_bar_shows_how_far_it_is_and_is_gone_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as out, progress_bar(out) as stage:
        stage("everyone logs in", None)
        stage("everyone is silent", lambda: 0.5)
    drawn = b"".join(read_to_end(ours)).decode()
    assert "everyone logs in" in drawn
    assert re.search("everyone is silent .*━", drawn)
    assert drawn.endswith("\x1b[2K")  # the line is wiped


def read_to_end(terminal: int) -> Iterator[bytes]:
    """Everything written to a terminal whose other end is closed; a read returns a part."""
    with os.fdopen(terminal, "rb", buffering=0) as ours, suppress(OSError):
        while data := ours.read(65_536):
            yield data


def test_in_a_file_each_stage_is_a_line() -> None:
    out = io.StringIO()
    with progress_bar(out) as stage:
        stage("everyone logs in", None)
        stage("everyone is silent", lambda: 0.5)
    assert out.getvalue() == "everyone logs in\neveryone is silent\n"


def test_time_passes_as_a_share_of_a_window() -> None:
    share = time_share(1e9)
    assert share is not None
    assert 0 <= share() < 1e-6
