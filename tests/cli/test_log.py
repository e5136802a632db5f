"""`liveness log`: what a person may write for a moment."""

import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from liveness.cli.log import moment

NOW = datetime.fromisoformat("2026-11-21T14:03:20+01:00")


@pytest.fixture
def _zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("_zone")
@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2026-11-21T14:03", "2026-11-21T14:03+01:00"),
        ("2026-11-21 14:03:07.25", "2026-11-21T14:03:07.25+01:00"),
        ("2026-07-01T12:00", "2026-07-01T12:00+02:00"),  # in summer
        ("2026-11-21T14:03-05:00", "2026-11-21T20:03+01:00"),
        ("2026-11-21", "2026-11-21T00:00+01:00"),
        ("14:03", "2026-11-21T14:03+01:00"),
        ("9:05", "2026-11-21T09:05+01:00"),
        ("14:04", "2026-11-20T14:04+01:00"),  # it was not yet so late today
        ("15min", "2026-11-21T13:48:20+01:00"),
        ("-15min", "2026-11-21T13:48:20+01:00"),
        ("15 m ago", "2026-11-21T13:48:20+01:00"),
        ("20s", "2026-11-21T14:03+01:00"),
        ("2h", "2026-11-21T12:03:20+01:00"),
        ("3d", "2026-11-18T14:03:20+01:00"),
    ],
)
def test_a_moment_is_what_a_person_means_by_it(text: str, meant: str) -> None:
    assert moment(text, NOW) == round(datetime.fromisoformat(meant).timestamp() * 1000)


@pytest.mark.parametrize(
    "text", ["", "-", "now", "14", "14:60", "24:00", "15 minutes", "1e3s", "999999999d",
             "2026-13-01", "0001-01-01", "٣d", "14:03Z"],
)  # fmt: skip
def test_what_is_no_moment_is_told_with_what_would_be_one(text: str) -> None:
    with pytest.raises(
        ValueError, match="is not a time: write 2026-11-21T14:03, 14:03, "
    ):
        moment(text, NOW)
