"""Records as CloudEvents."""

import json
from typing import Any

import pytest

from liveness.core.records import Gap, Logged, Record, TimerRecord
from liveness.service.outlets.webhooks.cloud_events import (
    check_event,
    event_of,
    halves,
    joined,
    record_of_json,
    records_in,
)
from liveness.service.storage.log_tail import TailEntry

AT = 1_795_668_168_049
ONLINE = Record(7, "online", 'ada/ph"o', "g", 7, 3, "login", AT, user_size=3, devices=1)
OFFLINE = Record(9, "offline", 2**60, "g", 7, None, "silence", AT, AT, "login", 30.25)
TIMER = TimerRecord(8, "timer", "g", "room", '{"a": "é"}', None, AT, 1, AT)
GAP = Gap(3, 6, AT)


def event(record: Logged | Gap, *, is_superseded: bool = False) -> str:
    text = TailEntry(record).json
    return event_of(record, log="l0g", json=text, is_superseded=is_superseded)


@pytest.mark.parametrize("users_only", [False, True], ids=["devices", "users"])
@pytest.mark.parametrize(
    ("record", "subject", "user"),
    [
        (ONLINE, 'ada/ph"o', "ada"),
        (OFFLINE, f"{2**60}", f"{2**60}"),
        (TIMER, "room", "room"),
        (GAP, None, None),
    ],
    ids=["online", "offline", "timer", "gap"],
)
def test_an_event_has_the_attributes_of_its_record(
    record: Logged | Gap, subject: str | None, user: str | None, users_only: bool
) -> None:
    text = TailEntry(record).json
    made = event_of(record, log="l0g", json=text, users_only=users_only)
    expected: dict[str, Any] = {
        "specversion": "1.0",
        "id": f"l0g:{record.seq}",
        "source": "/liveness/l0g",
        "type": f"liveness.{record.kind}",
        "time": "2026-11-26T04:42:48.049Z",
        "datacontenttype": "application/json",
        "data": json.loads(text),
    }
    about = user if users_only else subject
    assert json.loads(made) == expected | ({} if about is None else {"subject": about})
    from_json = record_of_json(text)
    assert event_of(from_json, log="l0g", json=text, users_only=users_only) == made


def test_a_superseded_offline_says_so() -> None:
    assert json.loads(event(OFFLINE, is_superseded=True))["superseded"] is True


def test_a_body_is_halved_without_a_change_to_its_events() -> None:
    events = [event(record) for record in (ONLINE, TIMER, OFFLINE)]
    first, second = halves(joined(events))
    assert (first, second) == (joined(events[:1]), joined(events[1:]))


def test_a_body_gives_back_its_records() -> None:
    records = (ONLINE, TIMER, OFFLINE, GAP)
    found = records_in(joined([event(record) for record in records]))
    assert found == [("l0g", record.seq, TailEntry(record).json) for record in records]


def test_a_test_event_has_an_id_of_its_own() -> None:
    found = json.loads(check_event("l0g", "webhooks.mail", "one", AT))
    assert (found["id"], found["type"]) == ("l0g:test:one", "liveness.test")
    assert found["data"] == {"kind": "test", "outlet": "webhooks.mail", "at": AT}
