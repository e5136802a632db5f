"""`liveness log`: what a person may write for a moment, and what a spreadsheet may read."""

import csv
import io
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest

from liveness.cli.log import log, moment
from liveness.core.records import Record, TimerRecord
from liveness.service.storage.log_store import Batch, LogStore
from liveness.service.storage.record_filter import RecordFilter
from tests.helpers.record_batches import batch_of

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
        ("2026-11-21T13:03Z", "2026-11-21T14:03+01:00"),
        ("2026-11-21T14:03-05:00", "2026-11-21T20:03+01:00"),
        ("2026-11-21", "2026-11-21T00:00+01:00"),
        ("14:03", "2026-11-21T14:03+01:00"),
        ("14:03:20", "2026-11-21T14:03:20+01:00"),
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


def table(folder: Path, *records: Record | TimerRecord) -> list[dict[str, str]]:
    with closing(LogStore(folder)) as store:
        store.write(Batch(batch_of(records)))
    out = io.StringIO()
    log(folder, RecordFilter(), form="csv", out=out)
    return [*csv.DictReader(io.StringIO(out.getvalue()))]


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\uff1d1", "'\uff1d1"),
        ("'", "''"),
        ("a=1", "a=1"),
        ('a "b", c\\', 'a "b", c\\'),
        ("a\x1b[31m\r\n=1", r"a\x1b[31m\r\n=1"),
        ("\t=1", r"\t=1"),
    ],
)
def test_no_text_is_a_formula_or_steers_a_terminal(
    tmp_path: Path, text: str, cell: str
) -> None:
    (row,) = table(tmp_path, TimerRecord(1, "timer", "g", "k", text, None, 5, 1, 6))
    assert row["payload"] == cell
    assert (row["key"], row["due"], row["uid"]) == ("k", "5", "")


def test_users_who_are_not_the_same_are_not_in_a_table_either(tmp_path: Path) -> None:
    uids: list[str | int] = [7, "7", "int:7", "=7"]
    rows = table(
        tmp_path,
        *(
            Record(seq, "online", uid, "g", seq, None, "login", 5)
            for seq, uid in enumerate(uids, 1)
        ),
    )
    assert [row["uid"] for row in rows] == ["int:7", "7", "str:int:7", "'=7"]


def test_a_spreadsheet_rounds_no_conn(tmp_path: Path) -> None:
    conns = [None, 5, 2**53 + 1]
    rows = table(
        tmp_path,
        *(
            Record(
                *(seq, "moved", "a", "g", seq, conn, "login", 5),
                from_gateway="g",
                from_conn=conn,
            )
            for seq, conn in enumerate(conns, 1)
        ),
    )
    shown = ["", "int:5", "int:9007199254740993"]
    assert [row["conn"] for row in rows] == shown
    assert [row["from_conn"] for row in rows] == shown
