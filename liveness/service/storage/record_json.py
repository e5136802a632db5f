"""A record as JSON, four times as fast as `json.dumps` of its map.

All HTTP readers and outlets send it, so at 100,000 records a second it counts.
"""

from json.encoder import encode_basestring

from liveness.core.records import MOVED, OFFLINE, Gap, Logged, Record
from liveness.text import id_for_json, json_line, json_ready, on_one_line


def record_json(record: Logged | Gap) -> str:
    """The same text as `json_line(json_ready(record.as_map()))`."""
    if type(record) is not Record:
        return json_line(json_ready(record.as_map()))
    (
        seq, kind, uid, gateway, session, conn, reason, at, seen, last, silence, restored,
        from_gateway, from_session, from_conn, _, devices,
    ) = record  # fmt: skip
    text = (
        f'{{"seq":{seq},"kind":"{kind}","uid":{_id(uid)},'
        f'"gateway":{encode_basestring(gateway)},"session":{session},'
        f'"reason":"{reason}","at":{at}'
    )
    if conn is not None:
        text += f',"conn":{_id(conn)}'
    if kind == OFFLINE:
        text += f',"silence":{_number(silence)}'
        if restored:
            text += ',"restored":true'
        else:
            text += f',"seen":{_number(seen)},"last":'
            text += "null" if last is None else f'"{last}"'
    elif kind == MOVED:
        origin = "null" if from_gateway is None else encode_basestring(from_gateway)
        text += f',"from":{origin}'
        if from_session is not None:
            text += f',"from_session":{from_session}'
        if from_conn is not None:
            text += f',"from_conn":{_id(from_conn)}'
    if devices is not None:
        text += f',"user":{_id(record.user)},"devices":{devices}'
    return on_one_line(text + "}")


def _id(value: str | int) -> str:
    shown = id_for_json(value)
    return encode_basestring(shown) if isinstance(shown, str) else f"{shown}"


def _number(value: float | None) -> str:
    return "null" if value is None else repr(value)
