"""Records as CloudEvents 1.0, many in one JSON batch.

An event is kept as its JSON text: a record that is sent by several outlets is encoded once.
"""

import json
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from liveness.core.records import Gap, Logged, Record, TimerRecord
from liveness.text import from_json, json_line, uid_text

CONTENT_TYPE: Final = "application/cloudevents-batch+json"
_TEST: Final = "test"


class SentRecord(NamedTuple):
    """A record in a stored body."""

    log: str
    seq: int
    json: str


def event_of(
    record: Logged | Gap,
    *,
    log: str,
    json: str,
    users_only: bool = False,
    is_superseded: bool = False,
) -> str:
    """A record as an event."""
    subject = None
    if isinstance(record, Record):
        subject = uid_text(record.user if users_only else record.uid)
    elif isinstance(record, TimerRecord):
        subject = record.key
    return _event(
        f"{log}:{record.seq}", log, record.kind, record.at,
        subject=subject, is_superseded=is_superseded, data=json,
    )  # fmt: skip


def check_event(log: str, outlet: str, name: str, at_ms: int) -> str:
    """An event of type `liveness.test`, to try a receiver.

    *name* makes its id unique; *at_ms* is the time, in Unix milliseconds.
    """
    data = json_line({"kind": _TEST, "outlet": outlet, "at": at_ms})
    return _event(f"{log}:{_TEST}:{name}", log, _TEST, at_ms, data=data)


def joined(events: list[str]) -> bytes:
    """The body with these events."""
    return f"[{','.join(events)}]".encode()


def halves(body: bytes) -> tuple[bytes, bytes]:
    """Two bodies with the first and the second half of the events, unchanged."""
    events = [json_line(event) for event in json.loads(body)]
    middle = len(events) // 2
    return joined(events[:middle]), joined(events[middle:])


def records_in(body: bytes) -> list[SentRecord]:
    """The records of a body, in order."""
    return [_record(event) for event in json.loads(body)]


def record_of_json(text: str) -> Record | None:
    """The record of a session in a JSON text; None for a timer or a gap."""
    found: dict[str, Any] = from_json(json.loads(text))
    if "session" not in found:
        return None
    user = found.get("user")
    return Record(
        seq=found["seq"],
        kind=found["kind"],
        uid=found["uid"],
        gateway=found["gateway"],
        session=found["session"],
        conn=None,
        reason=found["reason"],
        at=found["at"],
        user_size=len(user) if isinstance(user, str) else None,
        devices=found.get("devices"),
    )


def event_of_json(
    text: str, *, log: str, users_only: bool = False, is_superseded: bool = False
) -> str:
    """Like `event_of`, for a record from its JSON."""
    record = json.loads(text)
    found: dict[str, Any] = from_json(record)
    uid = found.get("uid")
    if users_only:
        uid = found.get("user", uid)
    subject = record.get("key") if uid is None else uid_text(uid)
    return _event(
        f"{log}:{record['seq']}", log, record["kind"], record["at"],
        subject=subject, is_superseded=is_superseded, data=text,
    )  # fmt: skip


def _event(
    identity: str,
    log: str,
    kind: str,
    at_ms: int,
    *,
    data: str,
    subject: str | None = None,
    is_superseded: bool = False,
) -> str:
    time = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    about = "" if subject is None else f'"subject":{json_line(subject)},'
    superseded = '"superseded":true,' if is_superseded else ""
    return (
        f'{{"specversion":"1.0","id":"{identity}","source":"/liveness/{log}",'
        f'"type":"liveness.{kind}",{about}"time":"{time[:-6]}Z",{superseded}'
        f'"datacontenttype":"application/json","data":{data}}}'
    )


def _record(event: dict[str, Any]) -> SentRecord:
    log, _, seq = event["id"].rpartition(":")
    return SentRecord(log, int(seq), json_line(event["data"]))
