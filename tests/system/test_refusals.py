"""A stream, a frame and a hello that are wrong, over a real socket, and who goes on.

Each offence stands between frames that are right, sent in one piece with them, so that
it shows how far they are applied. Meanwhile another gateway has a link that must not
notice anything. What else is refused: `proto/vectors/`, and `tests/core/wire/test_vectors.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.helpers.wire import packed
from tests.system.client import Client
from tests.system.sidecar import Sidecar

MAX_FRAME_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Offence:
    """The bytes of one frame that is refused, and what must be said of it."""

    code: str
    what: str
    data: bytes
    frame: str | None = None
    index: int | None = None
    applied: tuple[str, ...] = ()  # who is online by it all the same

    def __str__(self) -> str:
        return f"{self.code}, {self.what}"


def frame(
    code: str,
    what: str,
    name: str,
    *rest: Any,
    index: int | None = None,
    applied: tuple[str, ...] = (),
) -> Offence:
    """An offence by a frame that is well-formed."""
    return Offence(code, what, packed([name, *rest]), name, index, applied)


BAD_STREAMS: Final = [
    Offence("bad-msgpack", "the byte that is never used", b"\xc1"),
    Offence("too-large", "a frame too long", packed(["ping", "x" * MAX_FRAME_BYTES])),
]

BAD_FRAMES: Final = [
    frame("unknown-frame", "a name not known", "subscribe", "held"),
    frame("bad-option", "a timeout below 1", "login", "out", {"timeout": 0.999}),
    frame("bad-uid", "one in a login", "login", ["out", "", "x"], index=1),
    frame(
        "bad-uid", "two in a keepalive", "keepalive", ["in-1", None, "in-2", -1],
        index=1, applied=("in-1", "in-2"),
    ),
]  # fmt: skip

BAD_HELLOS: Final = [
    frame("not-hello", "a login first", "login", "out"),
    frame("bad-hello", "no name", "hello", {"protocol": 1}),
]

NAMED: Final = ["before", "held", "behind", "out", "x", "in-1", "in-2"]
BEFORE: Final = packed(["login", ["before", "held"]], ["keepalive", "before"])
BEHIND: Final = packed(["login", "behind"], ["ping", "go on"])
N: Final = 4  # hello is frame 1, and two come before the offence


@pytest.fixture(scope="module")
def watchful(sidecar: Sidecar) -> Iterator[Client]:
    """A gateway whose link and user do not notice what others do."""
    link = sidecar.gateway("watchful", timeout=600)  # however long this file takes
    link.apply("login", "unharmed")
    yield link
    assert online(link, ["unharmed"]) == {"unharmed"}
    assert not link.records


@pytest.fixture
def offender(sidecar: Sidecar) -> Iterator[Client]:
    """A gateway of which nothing is left behind."""
    yield sidecar.gateway("offender")
    with sidecar.gateway("offender") as again:
        again.apply("logout", NAMED)


def online(link: Client, uids: list[str]) -> set[str | int]:
    return {uid for uid, *_ in link.where(*uids)}


@pytest.mark.parametrize("offence", BAD_STREAMS, ids=str)
def test_a_bad_stream_ends_its_link(
    offence: Offence, offender: Client, watchful: Client
) -> None:
    offender.send_bytes(BEFORE + offence.data + BEHIND)
    refusal = offender.refusal()
    assert refusal["message"]
    assert refusal.items() >= {"code": offence.code, "fatal": True, "n": N}.items()
    assert offender.receive() is None
    assert online(watchful, NAMED) == {"before", "held"}


@pytest.mark.parametrize("offence", BAD_FRAMES, ids=str)
def test_a_bad_frame_is_refused_and_the_link_goes_on(
    offence: Offence, offender: Client, watchful: Client
) -> None:
    offender.send_bytes(BEFORE + offence.data + BEHIND)
    expected = {"code": offence.code, "fatal": False, "n": N}
    if offence.frame is not None:
        expected["frame"] = offence.frame
    if offence.index is not None:
        expected["index"] = offence.index
    refusal = offender.refusal()
    assert refusal.pop("message")
    assert refusal == expected
    assert offender.expect("pong") == ["go on"]
    assert online(watchful, NAMED) == {"before", "held", "behind", *offence.applied}


@pytest.mark.parametrize("offence", BAD_HELLOS, ids=str)
def test_without_a_good_hello_the_link_ends(
    offence: Offence, sidecar: Sidecar, watchful: Client
) -> None:
    link = sidecar.connect()
    link.send_bytes(offence.data + BEHIND)
    refusal = link.refusal()
    assert refusal["message"]
    assert refusal.items() >= {"code": offence.code, "fatal": True, "n": 1}.items()
    assert link.receive() is None
    assert online(watchful, NAMED) == set()
