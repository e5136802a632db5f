"""Files of traffic: what is read of them, and what of one that a person cut or filtered."""

import json
from pathlib import Path
from typing import Any

import pytest

from liveness.console.admin_client import CommandError
from liveness.traffic import traffic_file
from liveness.traffic.traffic_file import checked
from tests.helpers.wire import packed

HEADER = '{"traffic": 1, "clock": [100, 2000]}'
HELLO = ["hello", {"protocol": 1, "name": "gw-1"}]


def said(at: float, link: int = 1) -> str:
    return json.dumps({"t": at, "link": link, "from": "gateway", "frame": HELLO})


def file_with(folder: Path, *lines: str, end: str = "\n") -> Path:
    file = folder / "traffic"
    file.write_text("\n".join(lines) + end)
    return file


def test_a_recording_is_read_with_its_times(tmp_path: Path) -> None:
    end = '{"t": 9, "event": "end", "why": "stopped"}'
    found = checked(file_with(tmp_path, HEADER, said(2), "", said(5, link=3), end))
    assert (found.clock, found.began, found.seconds) == ((100, 2_000), 2, 7)
    assert (found.links, found.is_raw, found.is_cut) == (2, False, False)
    assert [line.link for line in found.lines()] == [1, 3, 0]


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_part_that_a_person_selected_is_a_recording(tmp_path: Path, end: str) -> None:
    found = checked(file_with(tmp_path, said(50), said(60), end=end))
    assert (found.clock, found.began, found.seconds) == (None, 50, 10)
    assert not found.is_cut


def test_a_file_may_begin_with_the_mark_of_utf_8(tmp_path: Path) -> None:
    found = checked(file_with(tmp_path, f"\ufeff{HEADER}", said(2)))
    assert (found.clock, found.is_raw, len([*found.lines()])) == (
        (100, 2_000),
        False,
        1,
    )


def test_an_incomplete_last_line_is_left_out(tmp_path: Path) -> None:
    found = checked(file_with(tmp_path, HEADER, said(1), said(2)[:-5], end=""))
    assert found.is_cut
    assert len([*found.lines()]) == 1


def test_frames_are_read_in_any_encoding(tmp_path: Path) -> None:
    file, wide = tmp_path / "frames", b"\x92\xa4ping\xcf" + bytes(8)
    file.write_bytes(packed(HELLO) + wide + b"\x92\xa4pi")
    found = checked(file)
    assert (found.is_raw, found.is_cut, found.links) == (True, True, 1)
    lines: list[Any] = [(line.data, line.frame) for line in found.lines()]
    assert lines[1:] == [(packed(HELLO), HELLO), (wide, ["ping", 0])]


def test_a_line_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic_file, "MAX_LINE_BYTES", 200)
    with pytest.raises(CommandError, match=r"line 2: over 200 bytes; delete it"):
        checked(file_with(tmp_path, said(1), "{" * 1_000))
