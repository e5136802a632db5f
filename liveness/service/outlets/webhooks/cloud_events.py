"""Records as CloudEvents 1.0, many in one JSON batch.

An event is kept as its JSON text: a record that is sent by several outlets is encoded once.
"""

import json
from datetime import UTC, datetime
from typing import Any, Final

from liveness.core.records import Gap, Logged, Record, TimerRecord
from liveness.text import from_json, json_line, uid_text

CONTENT_TYPE: Final = "application/cloudevents-batch+json"
_TEST: Final = "test"


def event_of(
    record: Logged | Gap,
    *,
    log: str,
    json: str,
    users_only: bool = False,
    is_superseded: bool = False,
) -> str:
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
    return f"[{','.join(events)}]".encode()


def halves(body: bytes) -> tuple[bytes, bytes]:
    """Two bodies with the first and the second half of the events, unchanged."""
    events = [json_line(event) for event in json.loads(body)]
    middle = len(events) // 2
    return joined(events[:middle]), joined(events[middle:])


def records_in(body: bytes) -> list[tuple[str, int, str]]:
    """The records of a body, in order: the log, the seq, and the JSON of each."""
    found = []
    for event in json.loads(body):
        log, _, seq = event["id"].rpartition(":")
        found.append((log, int(seq), json_line(event["data"])))
    return found


def record_of_json(text: str) -> Logged | Gap:
    """As much of a record as `event_of` needs, from its JSON."""
    found: dict[str, Any] = from_json(json.loads(text))
    seq, kind, at = found["seq"], found["kind"], found["at"]
    gateway, user = found.get("gateway", ""), found.get("user")
    if "uid" in found:
        user_size = len(user) if isinstance(user, str) else None
        return Record(
            seq, kind, found["uid"], gateway, found["session"], None, "", at,
            user_size=user_size,
        )  # fmt: skip
    if "key" in found:
        return TimerRecord(seq, kind, gateway, found["key"], None, None, 0, 0, at)
    return Gap(found["first"], seq + 1, at)


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
