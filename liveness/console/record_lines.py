"""A record as one line: text for a person, or JSON."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from liveness.core.records import (
    GAP,
    GATEWAY_LOST,
    LOGOUT,
    MOVED,
    OFFLINE,
    ONLINE,
    SILENCE,
    TIMER,
)
from liveness.text import escaped, json_ready, local_time, uid_text

RecordMap = Mapping[str, Any]
# Takes the meaning of a part of a line and its text; returns the text in its colour.
Paint = Callable[[str, str], str]
# ANSI colours of the terminal's own palette, light or dark.
DIM: Final = "dim"
_COLOURS: Final = {
    DIM: 2,
    ONLINE: 32,
    OFFLINE: 31,
    MOVED: 36,
    TIMER: 34,
    GAP: 33,
    SILENCE: 31,
    GATEWAY_LOST: 35,
    LOGOUT: 2,
}


def plain(_meaning: str, text: str) -> str:
    """Leaves *text* without colour."""
    return text


def in_colours(meaning: str, text: str) -> str:
    """*text* in the ANSI colour of its meaning, if that has one."""
    colour = _COLOURS.get(meaning)
    return text if colour is None else f"\x1b[{colour}m{text}\x1b[0m"


def text_line(record: RecordMap, *, paint: Paint = plain) -> str:
    """A record as one line for a person."""
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
        what += f"  {paint(record['reason'], record['reason'])}"
        if record.get("silence") is not None and record["reason"] != LOGOUT:
            since = "the restart" if record.get("restored") else record["last"]
            what += f"  {record['silence']:.3f} s since {since}"
        if (devices := record.get("devices")) is not None:
            what += f"  {devices} device{'' if devices == 1 else 's'} online"
    head = f"{paint(DIM, when)}  {paint(kind, f'{kind:<7}')}"
    return f"{head}  {what}  {paint(DIM, f'seq {seq}')}"


def json_line(record: RecordMap) -> str:
    """A record as one line of JSON; a uid that JSON readers would round is a string."""
    return ascii_json(json_ready(record))


def ascii_json(value: object) -> str:
    """*value* as one line of JSON, all ASCII: nothing in it can steer a terminal."""
    return json.dumps(value, separators=(",", ":"))
