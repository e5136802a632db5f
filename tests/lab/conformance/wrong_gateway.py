"""The demo's gateway with one fault, to see that the conformance run catches it.

    python -m tests.lab.conformance.wrong_gateway FAULT [the demo gateway's options]

Each fault replaces a part of the Python client, in this process only.
"""

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Final

import anyio
import trio

import liveness
from liveness.client import dialer, reconnecting_link, reports
from liveness.client.dialer import Dialer, SidecarLink
from liveness.client.inbox import Inbox
from liveness.client.protocol import Client
from liveness.client.reconnecting_link import ReconnectingLink
from liveness.client.reports import Reports
from liveness.core.wire.framing import Reader, decode, encode
from liveness.errors import Code, Refused
from liveness.lab.demo import gateway

# A function in the place of another, which is its first argument; or a value.
Change = Any
Place = tuple[Any, str, Change]  # where it belongs: its owner and its name
NUMBERS: Final = count(1)


def replace(owner: Any, name: str, change: Change) -> None:
    original = getattr(owner, name)
    if not callable(original):
        setattr(owner, name, change)
        return

    def replaced(*args: Any, **options: Any) -> Any:
        return change(original, *args, **options)

    setattr(owner, name, replaced)


def hello(change: Callable[[Any, Any], object]) -> Place:
    """A change of the options of each hello of a client."""

    def changed(original: Any, self: Any, *args: Any) -> bytes:
        _, options = decode(original(self, *args))
        change(self, options)
        return encode(["hello", options])

    return Client, "hello", changed


def event(change: Callable[[str, Any], object]) -> Place:
    """A change of the options of each event."""

    def changed(original: Any, frame: Any) -> Any:
        change(frame[0], frame[2])
        return original(frame)

    return reports, "encode", changed


def record(change: Callable[[Any], Any]) -> Place:
    """The record that the client gets in place of each; None: it is not read."""

    def changed(original: Any, self: Any, each: Any) -> Any:
        taken = change(each)
        return None if taken is None else original(self, taken)

    return Client, "_receive_record", changed


def other_if(is_so: Callable[[Any], object]) -> Place:
    """Records that are not acted on."""
    return record(lambda each: each | {"kind": "other"} if is_so(each) else each)


# Faults of one expression, and the rule that each breaks.
SMALL: Final[dict[str, tuple[int, Any, str, Change]]] = {
    "hello-twice": (1, Client, "hello", lambda was, *args: 2 * was(*args)),
    "conns-as-floats": (2, *event(lambda _, options: options.update(conn=[*map(float, options["conn"])]))),
    "any-batch": (4, Client, "welcomed", lambda was, self, got: was(self, got._replace(max_batch=10**6, max_frame=10**6))),
    "frames-come-whole": (6, Reader, "feed", lambda _, __, data: Reader(max_frame_bytes=2**24, max_batch=25_000)._piece(data)),
    "acks-known-kinds-only": (7, *record(lambda each: each if each["kind"] in ("offline", "moved", "gap") else None)),
    "ends-at-every-error": (8, dialer, "check_frame", lambda was, frame, name: was(("error", {**frame[1], "fatal": True}) if frame[0] == "error" and frame[1]["code"] in [*Code] else frame, name)),
    "logins-without-conn": (9, *event(lambda name, options: name == "login" and options.pop("conn"))),
    "counts-from-one": (10, liveness.Sidecar, "new_conn", lambda *_: next(NUMBERS)),
    "keepalives-without-conn": (11, *event(lambda name, options: name == "keepalive" and options.pop("conn"))),
    "keepalives-of-the-silent": (13, Reports, "frames", lambda was, self, *args, **more: self.keepalives.update(self.uids) or was(self, *args, **more)),
    "no-logouts": (14, Client, "logout", lambda *_: None),
    "closes-by-user": (16, Client, "_end_of", lambda was, self, _, reason, each: next((was(self, own, reason, each) for own, uid in self.reports.uids.items() if str(uid) == str(each["uid"])), None)),
    "knows-silence-and-moved-only": (17, *other_if(lambda each: each.get("reason") == "gateway_lost")),
    "believes-repeats": (18, Inbox, "is_new", lambda *_: True),
    "impatient": (22, dialer, "MAX_REFUSED_BACKOFF_S", 0.1),
    "closes-after-it-was-shut-out": (25, Client, "shut_out", lambda *_: None),
    "never-fresh": (26, *hello(lambda _, options: options.pop("fresh", None))),
    "no-pings": (27, Reports, "unconfirmed", property(lambda _: 0)),
    "ignores-gaps": (29, *other_if(lambda each: each["kind"] == "gap")),
    "no-clock": (30, *hello(lambda _, options: options.pop("clock", None))),
    "no-promise": (31, *hello(lambda _, options: options.pop("ping", None))),
}  # fmt: skip
# All faults: the rule that each breaks, and what makes it.
FAULTS: Final[dict[str, tuple[int, Callable[[], object]]]] = {
    name: (rule, partial(replace, *place)) for name, (rule, *place) in SMALL.items()
}


def fault(rule: int, owner: Any = None, name: str = "") -> Callable[[Change], Change]:
    """A function that makes a fault, or takes the place of another function."""

    def add(change: Change) -> Change:
        made = partial(replace, owner, name, change) if owner else change
        FAULTS[change.__name__.replace("_", "-")] = rule, made
        return change

    return add


@fault(5, ReconnectingLink, "_write_frames")
async def stands_while_it_writes(
    _: Any, self: Any, link: SidecarLink, *, is_due: Any
) -> Any:
    self._is_write_requested = False
    self._write_event = anyio.Event()
    data = b"".join(self.client.frames(self.clock(), is_due=is_due))
    whole = bool(data)
    while data:
        try:
            data = data[os.write(link._stream._raw_socket.fileno(), data) :]
        except BlockingIOError:
            time.sleep(0.01)  # noqa: ASYNC251 - this is the fault
        except OSError:
            break
    return whole


@fault(12)
def sends_each_line() -> None:
    replace(reconnecting_link, "FLUSH_SHARE", 0.0)
    replace(reconnecting_link, "LEAST_FLUSH_S", 0.001)


@fault(15, Reports, "_forget")
def activity_behind_the_logout(original: Any, self: Any, conn: int) -> None:
    kept = {conn: self.keepalives[conn]} if conn in self.keepalives else {}
    original(self, conn)
    self.keepalives |= kept


@fault(19, Client, "frames")
def no_acks(original: Any, self: Any, now: float, *, is_due: bool) -> Any:
    self._acked = 10**9
    return original(self, now, is_due=is_due)


@fault(20, Dialer, "_pause_after")
def fixed_pauses(original: Any, self: Any, error: Any) -> Any:
    pause_s = original(self, error)
    return pause_s if isinstance(error, Refused) else (0.3, 0.3)


@fault(21, Dialer, "_pause_after")
def slow_after_bye(original: Any, self: Any, error: Any) -> Any:
    return (2.5, 2.6) if "says bye" in str(error) else original(self, error)


@fault(23, ReconnectingLink, "_wait_for_resume")
async def returns_after_replaced(_: Any, self: Any, __: object) -> None:
    self.client.link_lost()
    await trio.sleep(0.5)


@fault(24, ReconnectingLink, "_ended")
async def ends_at_a_refusal(original: Any, self: Any, error: Any) -> None:
    if isinstance(error, Refused) and error.code == "bad-hello":
        os._exit(1)
    await original(self, error)


@fault(28, Reports, "link_lost")
def sends_nothing_again(original: Any, self: Any) -> None:
    self._sent = self._awaiting_pong = {}, {}
    original(self)


@fault(3, Client, "hello")
def events_before_welcome(original: Any, self: Any, *args: Any) -> Any:
    users = dict([*self.reports.uids.items()][:3])
    events = encode(["keepalive", [*users.values()], {"conn": [*users]}])
    return original(self, *args) + events


def main() -> None:
    """Run the gateway with the fault that the first argument names."""
    FAULTS[sys.argv.pop(1)][1]()
    gateway.main()


if __name__ == "__main__":
    main()
