"""A record as one line: text for a person, or JSON."""

import json
from collections.abc import Mapping
from typing import Any

from liveness.core.records import (
    GAP,
    LOGOUT,
    MOVED,
    TIMER,
)
from liveness.text import escaped, json_ready, local_time, uid_text

RecordMap = Mapping[str, Any]


def text_line(record: RecordMap) -> str:
    when, kind, seq = local_time(record["at"]), record["kind"], record["seq"]
    if kind == GAP:
        first, last = record["first"], record["until"] - 1
        what = f"records {first} to {last} are no longer kept"
    elif kind == TIMER:
        late_s = (record["at"] - record["due"]) / 1_000
        what = f"{escaped(record['key'])}  {escaped(record['gateway'])}"
        what += f"  attempt {record['attempt']}  {late_s:.3f} s late"
    else:
        what = f"{escaped(uid_text(record['uid']))}  {escaped(record['gateway'])}"
        if kind == MOVED:
            # The login of the older connection came last: it never had a session.
            is_older = record.get("from_session") is None
            how = ", older connection at" if is_older else " from"
            what += f"{how} {escaped(record['from'])}"
        what += f"  {record['reason']}"
        if record.get("silence") is not None and record["reason"] != LOGOUT:
            since = "the restart" if record.get("restored") else record["last"]
            what += f"  {record['silence']:.3f} s since {since}"
        if (devices := record.get("devices")) is not None:
            what += f"  {devices} device{'' if devices == 1 else 's'} online"
    return f"{when}  {kind:<7}  {what}  seq {seq}"


def json_line(record: RecordMap) -> str:
    """A record as one line of JSON; a uid that JSON readers would round is a string."""
    return ascii_json(json_ready(record))


def ascii_json(value: object) -> str:
    """*value* as one line of JSON, all ASCII: nothing in it can steer a terminal."""
    return json.dumps(value, separators=(",", ":"))
