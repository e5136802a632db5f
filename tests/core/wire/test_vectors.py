"""The published contract, proto/, holds for the core: vectors, schemas, limits, codes."""

import json
import re
from dataclasses import asdict, fields
from itertools import product
from typing import Any, Final

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from liveness.core import records
from liveness.core.limits import Limits
from liveness.core.links.conversation import REFUSED_WINDOW_S, Conversation
from liveness.core.wire import framing, link_requests, uids
from liveness.core.wire.frames import (
    FEATURES,
    MAX_AFTER_S,
    MAX_KEY_BYTES,
    MAX_PING_S,
    MAX_TEXT_BYTES,
    MIN_AFTER_S,
    MIN_PING_S,
    PROTOCOL,
)
from liveness.core.wire.uids import (
    MAX_NAME_BYTES,
    MAX_TIMEOUT_S,
    MIN_TIMEOUT_S,
    bad_uid_text,
    is_uid,
)
from liveness.errors import NOT_FATAL, Code
from tests.core.conftest import READERS
from tests.helpers.strategies import pieces
from tests.helpers.tree import ROOT

PROTO: Final = ROOT / "proto"
README: Final = (PROTO / "README.md").read_text()
VECTORS: Final[list[dict[str, Any]]] = [
    case
    for path in sorted((PROTO / "vectors").glob("*.json"))
    for case in json.loads(path.read_text())["cases"]
]
TO_SIDECAR: Final = [case for case in VECTORS if case["direction"] == "to-sidecar"]
FROM_SIDECAR: Final = [case for case in VECTORS if case["direction"] == "from-sidecar"]
LIMITS: Final = Limits()
NEXT: Final = 1_000
BEFORE: Final[dict[str, list[object]]] = {
    "hello": [],
    "welcome": [["hello", {"protocol": 1, "name": "gateway-1"}]],
    "watcher": [["hello", {"protocol": 1, "name": "watcher-1", "role": "watcher"}]],
}
# A megabyte in single bytes would take seconds.
SINGLY_MOST: Final = 4_000
AT: Final = records.Instant(0.0, 1_000.0, 1_795_168_800_000, 1_795_168_800.0)


def name_of(case: dict[str, Any]) -> str:
    return str(case["name"])


def octets(case: dict[str, Any]) -> bytes:
    parts = case.get("parts") or [["hex", case["hex"]]]
    return b"".join(
        bytes.fromhex(part[1]) * (part[2] if len(part) > 2 else 1) for part in parts
    )


# --- bytes to the sidecar ------------------------------------------------------


class Sidecar:
    """A link: the frames and errors that come of the bytes."""

    def __init__(self, before: str, reader: type[framing.Reader]) -> None:
        self.link = Conversation(LIMITS, reader)
        for frame in BEFORE[before]:
            assert len(list(self.link.receive(framing.encode(frame), AT.now))) == 1
        self.frames: list[dict[str, Any]] = []
        self.errors: list[dict[str, Any]] = []

    def receive(self, piece: bytes) -> None:
        for request in self.link.receive(piece, AT.now):
            match request:
                case link_requests.Refusal():
                    self._refused(request)
                case link_requests.ActivityBatch():
                    self._heard(request)
                case link_requests.Ack(seq) if seq >= NEXT:
                    # Only the service knows `next`, so it refuses this one.
                    n = self.link.n
                    self._refuse(Code.BAD_OPTION, "too high", n=n, frame="ack")
                case _:
                    self.frames.append(meaning(request))

    def _refused(self, refusal: link_requests.Refusal) -> None:
        FROM_US.validate(refusal.as_frame())
        shown: Any = refusal.as_frame()[1]
        del shown["message"]
        self.errors.append(shown)

    def _refuse(
        self, code: Code, text: str, *, n: int, frame: str, index: int | None = None
    ) -> None:
        refusal = self.link.refuse(code, text, AT.now, n=n, frame=frame, index=index)
        self._refused(refusal)

    def _heard(self, signs: link_requests.ActivityBatch) -> None:
        number = None
        refused = set[int]()
        for position in range(len(signs.uids)):
            uid, conn, event = signs.at(position)
            n, index = signs.frame_at(position)
            name = records.EVENTS[event]
            if is_uid(uid):
                if n != number:
                    self.frames.append({"frame": name, "uids": [], "conns": []})
                    number = n
                self.frames[-1]["uids"].append(uid)
                self.frames[-1]["conns"].append(conn)
            elif n not in refused:
                refused.add(n)
                text = bad_uid_text(uid)
                self._refuse(Code.BAD_UID, text, n=n, frame=name, index=index)


def meaning(request: link_requests.Request) -> dict[str, Any]:
    """A request as the vectors write it."""
    match request:
        case link_requests.Hello():
            kinds = [kind for kind in records.KINDS if kind in request.kinds]
            return {"frame": "hello", **asdict(request), "kinds": kinds}
        case link_requests.Ping():
            return {"frame": "ping", "x": request.payload}
        case link_requests.ListSessions():
            return {"frame": "list"}
        case link_requests.Answer(key, is_done, message, final, seq):
            answer = {"key": key, "message": message, "seq": seq}
            if is_done:
                return {"frame": "done", **answer}
            return {"frame": "fail", **answer, "final": final}
        case _:
            other: Any = request
            return {"frame": type(request).__name__.lower(), **other._asdict()}


def written_out(frame: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value["repeat"][0:1] * value["repeat"][1]
        if isinstance(value, dict) and "repeat" in value
        else value
        for key, value in frame.items()
    }


def exact(value: object) -> str:
    """Text that tells 7 from "7", True from 1, and nil from a missing key.

    It also tells 1 from 1.0, which are the same duration: see `same_durations`.
    """
    return json.dumps(value, sort_keys=True, default=repr)


def same_durations(frame: dict[str, Any]) -> dict[str, Any]:
    durations = {"timeout", "age", "ping", "seconds"} & frame.keys()
    single = {key: float(frame[key]) for key in durations if frame[key] is not None}
    several = {
        key: [None if seconds is None else float(seconds) for seconds in frame[key]]
        for key in {"began", "clock"} & frame.keys()
        if frame[key] is not None
    }
    return frame | single | several


def expected_frames(case: dict[str, Any]) -> list[dict[str, Any]]:
    """The expected frames of a case, in the form that `Sidecar` finds."""
    # A sign of life for no user leaves nothing but its number.
    return [
        same_durations(written_out(frame))
        for frame in case["frames"]
        if not (frame["frame"] in ("keepalive", "message") and frame["uids"] == [])
    ]


@pytest.mark.parametrize("case", TO_SIDECAR, ids=name_of)
def test_bytes_mean_the_frames(case: dict[str, Any]) -> None:
    data = octets(case)
    expected = expected_frames(case)
    errors = [case["error"]] if "error" in case else []
    places = range(len(data)) if len(data) <= SINGLY_MOST else range(1, len(data), 997)
    for module, cut in product(READERS, ([data], [*pieces(data, places)])):
        sidecar = Sidecar(case["before"], module.Reader)
        for piece in cut:
            sidecar.receive(piece)
        frames = [same_durations(frame) for frame in sidecar.frames]
        assert exact(frames) == exact(expected), (module, len(cut))
        assert exact(sidecar.errors) == exact(errors), (module, len(cut))
        assert sidecar.link.is_closed == any(error["fatal"] for error in errors)


# --- schemas -------------------------------------------------------------------


def as_json(value: Any) -> Any:
    """Msgpack's tuples as JSON's arrays."""
    if isinstance(value, tuple):
        return [as_json(item) for item in value]
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    return value


def decoded(data: bytes) -> list[Any]:
    reader = framing.Reader(max_frame_bytes=2**21, max_batch=LIMITS.max_batch)
    return [as_json(frame) for frame in reader.feed(data)]


SCHEMAS: Final[list[dict[str, Any]]] = [
    json.loads((PROTO / f"{name}.schema.json").read_text())
    for name in ("frames", "record")
]
REGISTRY: Final[Registry[Any]] = Registry().with_resources(
    [(schema["$id"], Resource.from_contents(schema)) for schema in SCHEMAS]
)


def schema_of(reference: str) -> Draft202012Validator:
    return Draft202012Validator(
        {"$ref": f"urn:liveness:proto:1:{reference}"}, registry=REGISTRY
    )


FROM_GATEWAY: Final = schema_of("frames#/$defs/fromGateway")
FROM_US: Final = schema_of("frames#/$defs/fromSidecar")


@pytest.mark.parametrize("case", FROM_SIDECAR, ids=name_of)
def test_frames_sent_fit_the_schema(case: dict[str, Any]) -> None:
    frames = decoded(octets(case))
    assert exact(frames) == exact(case["frames"])
    for frame in frames:
        FROM_US.validate(frame)


# Without the batches of thousands, which take a schema long and show nothing more.
SHORT: Final = [case for case in TO_SIDECAR if "hex" in case]
# Faults that no schema can find: they depend on the link, on bytes, on two lengths that must
# be equal or that bound one another, or on values that JSON does not have (NaN) or does not distinguish (1.0 and 1).
UNSAYABLE: Final = re.compile(
    "before-hello|second-hello|by-a-watcher|ack-false|ack-of-next|63rd-less-1-is-refused"
    "|cursor-above-it|broken-utf-8|-bytes-in-|another-length|(fewer|more|no)-conns|infinity|not-a-number|a-float"
)


@pytest.mark.parametrize(
    "case", [case for case in SHORT if "error" not in case], ids=name_of
)
def test_good_frames_fit_the_schema(case: dict[str, Any]) -> None:
    for frame in decoded(octets(case)):
        FROM_GATEWAY.validate(frame)


@pytest.mark.parametrize(
    "case",
    [
        case
        for case in SHORT
        if case.get("error", {}).get("frame") and not UNSAYABLE.search(case["name"])
    ],
    ids=name_of,
)
def test_bad_frames_fit_no_schema(case: dict[str, Any]) -> None:
    name = case["error"]["frame"]
    frames = [frame for frame in decoded(octets(case)) if frame[0].startswith(name)]
    assert not all(FROM_GATEWAY.is_valid(frame) for frame in frames)


def test_every_shape_of_record_is_of_the_schema_and_of_one_frame() -> None:
    common: dict[str, Any] = {"uid": 7, "gateway": "g", "session": 3, "at": 9}
    offline = records.Record(
        seq=4, kind="offline", conn=5, reason="silence", silence=3.004, **common
    )
    moved = records.Record(seq=3, kind="moved", conn=None, reason="login", **common)
    shapes: list[records.Record | records.Gap] = [
        records.Record(seq=3, kind="online", conn=0, reason="message", **common),
        offline._replace(seen=6, last="keepalive"),
        offline._replace(restored=True, conn=None),
        moved._replace(from_gateway="g", from_session=1, from_conn=0),
        moved._replace(from_gateway="h", from_session=1),
        records.Gap(first=1, until=3, at=9),
    ]
    maps = [shape.as_map() for shape in shapes]
    (frame,) = decoded(
        framing.encode_notices(
            len(maps), b"".join(framing.encode(shape) for shape in maps)
        )
    )
    assert exact(frame) == exact(["notices", maps])
    FROM_US.validate(frame)
    assert [shape["seq"] for shape in maps] == [3, 4, 4, 3, 3, 2]
    assert [shape.get("conn") for shape in maps] == [0, 5, *[None] * 4]
    assert [shape.get("from_conn") for shape in maps] == [*[None] * 3, 0, None, None]


# --- the page ------------------------------------------------------------------


def table(heading: str) -> list[list[str]]:
    """The rows, without markup, of the first table below a heading of the page."""
    section = README.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.*) \|$", section.split("\n\n### ")[0], re.MULTILINE)
    return [re.split(r" \| ", row.replace("`", "")) for row in rows[1:]]


def column(heading: str, pattern: str) -> list[str]:
    """What *pattern* finds in the first column of the tables below a heading."""
    section = README.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(rf"^\| `{pattern}", section, re.MULTILINE)


BLOCKS: Final = re.findall(r"```hex\n(.*?)```\n```json\n(.*?)\n```", README, re.DOTALL)


@pytest.mark.parametrize(("octets_", "frame"), BLOCKS, ids=range(len(BLOCKS)))
def test_the_pages_bytes_are_the_frames_behind_them(octets_: str, frame: str) -> None:
    data = bytes.fromhex(re.sub("#.*", "", octets_))
    assert exact(decoded(data)) == exact([json.loads(frame)])


def test_the_pages_error_table_is_the_products() -> None:
    flags = {row[0]: row[1].split(";")[0] for row in table("Errors")}
    assert flags == {code.value: "no" if code in NOT_FATAL else "yes" for code in Code}


def test_the_schema_knows_the_fatal_codes() -> None:
    fatal = SCHEMAS[0]["$defs"]["fatalCode"]["enum"]
    assert set(fatal) == {code.value for code in Code} - {*map(str, NOT_FATAL)}


def test_the_page_names_the_frames_that_are_known() -> None:
    named = column("Frames from a gateway", r'\["(\w+)"')
    watched = Conversation(LIMITS)
    list(watched.receive(framing.encode(BEFORE["welcome"][0]), AT.now))
    for name in [*named, "signup"]:
        (answer,) = watched.receive(framing.encode([name, 7]), AT.now)
        is_unknown = getattr(answer, "code", None) is Code.UNKNOWN_FRAME
        assert is_unknown == (name == "signup"), name
    assert set(records.EVENTS[1:]) < set(named)


def test_the_page_names_the_options_of_hello() -> None:
    named = column("Frames from a gateway", "([a-z]+)`")
    assert sorted(named) == sorted(
        ["protocol", *(field.name for field in fields(link_requests.Hello))]
    )


def test_the_page_shows_the_features_of_this_version() -> None:
    welcome = next(json.loads(frame)[1] for _, frame in BLOCKS if "welcome" in frame)
    assert welcome["features"] == list(FEATURES)
    assert welcome["protocol"] == PROTOCOL
    assert welcome["max_batch"] == LIMITS.max_batch
    assert welcome["max_frame"] == LIMITS.max_frame_bytes


@pytest.mark.parametrize(
    ("what", "limit"),
    [
        ("a frame to the sidecar", f"max_frame: {LIMITS.max_frame_bytes:,} bytes"),
        (
            "values in a frame",
            f"{framing.BATCHES_OF_VALUES} \N{MULTIPLICATION SIGN} max_batch",
        ),
        ("values in a frame", f"at least {framing.LEAST_VALUES}"),
        ("uids in a frame", f"max_batch: {LIMITS.max_batch:,}"),
        ("nesting", f"{framing.MAX_DEPTH} levels"),
        ("uid", f"1 to {uids.MAX_UID_BYTES} bytes, or 0 to 2^63-1"),
        ("conn", "0 to 2^63-1"),
        ("name", f"1 to {MAX_NAME_BYTES} bytes"),
        ("timeout", f"{MIN_TIMEOUT_S} to {MAX_TIMEOUT_S:,} s"),
        ("hello's ping", f"{MIN_PING_S} to {MAX_PING_S} s"),
        ("a timer's key, ext", f"1 to {MAX_KEY_BYTES} bytes"),
        ("a timer's seconds", f"{MIN_AFTER_S} to {MAX_AFTER_S:,} s"),
        ("payload, message", f"{MAX_TEXT_BYTES:,} bytes"),
        ("refused frames", f"{LIMITS.max_refused:,} within {REFUSED_WINDOW_S:.0f} s"),
    ],
)
def test_the_page_names_the_limits_of_the_core(what: str, limit: str) -> None:
    (row,) = [row for row in table("Limits") if row[0] == what]
    assert limit in " | ".join(row[1:])
