"""What a replay changes of a frame, and what it leaves as it was recorded."""

from collections import Counter
from typing import Any, Final

import pytest

from liveness.core.records import HostTime
from liveness.traffic.adaptation import Adapter, ReplayTime, SentPosition

Names = dict[tuple[str, str], SentPosition]
# The clocks of the recorder when the recording began.
RECORDED: Final = HostTime(100.0, 9_000.0)


def adapter(
    *,
    speed: float = 1.0,
    recorded: HostTime | None = RECORDED,
    names: Names | None = None,
) -> Adapter:
    """One whose replay began at 1,000 s of CLOCK_MONOTONIC; now it is 1,005 s."""
    time = ReplayTime(speed, 1_000.0, lambda: HostTime(1_005.0, 7.0), recorded)
    return Adapter(time, {} if names is None else names, Counter())


def hello(**options: Any) -> list[Any]:
    return ["hello", {"protocol": 1, "name": "gw-1", **options}]


@pytest.mark.parametrize(
    "frame",
    [
        ["keepalive", ["ada"], {"conn": [2**63 - 1]}],
        ["login", "ada", {"conn": 1, "age": 3.5, "timeout": 9}],
        ["login", "ada", {"age": True, "began": "soon"}],
        ["after", "k", 5, {"payload": "x"}],
        ["done", "k", "sent"],
        ["ack", True],
        ["ack"],
        ["hello", "no map"],
        hello(timeout=9, ping=1, fresh=True, ack=False),
    ],
    ids=lambda frame: ascii(frame)[:40],
)
def test_all_else_is_sent_as_recorded(frame: list[Any]) -> None:
    assert adapter().adapted(frame, 2.0) is None


@pytest.mark.parametrize(
    ("speed", "began", "age"),
    [(1, [1_010.0, None, 990.0], 4), (10, [1_001.0, None, 999.0], 0.4)],
)
def test_connections_keep_their_order_of_age(
    speed: float, began: list[float | None], age: float
) -> None:
    frame = ["login", ["a", "b", "c"], {"began": [110.0, None, 90.0], "age": 4}]
    changed = adapter(speed=speed).adapted(frame, 12.0)
    assert changed == ["login", ["a", "b", "c"], {"began": began, "age": age}]


@pytest.mark.parametrize(
    ("clock", "now"),
    [
        ([102.5, 9_002.5], [1_004.5, 6.5]),  # the host's, read half a second before
        ([50.0, 9_003.0], [952.0, 7.0]),  # of another time namespace
        ([103.0, 5.0], [1_005.0, 0.0]),
    ],
)
def test_a_clock_differs_from_the_hosts_if_it_did(
    clock: list[float], now: list[float]
) -> None:
    assert adapter().adapted(hello(clock=clock), 3.0) == hello(clock=now)


def test_without_a_header_the_first_clock_says_when_it_began() -> None:
    of_link = adapter(recorded=None)
    changed = of_link.adapted(hello(clock=[203.0, 5.0]), 3.0)
    assert changed == hello(clock=[1_005.0, 7.0])
    assert of_link.adapted(["login", "a", {"began": 201.0}], 4.0) == [
        "login", "a", {"began": 1_001.0},
    ]  # fmt: skip


def test_a_place_in_the_log_is_that_of_this_sidecar() -> None:
    names: Names = {}
    first = adapter(names=names)
    assert first.adapted(hello(after=40, log="old"), 0) == hello()
    first.received(["welcome", {"log": "new", "next": 1}])
    first.received(["notices", [{"seq": 6}, {"seq": 7}]])
    again = adapter(names=names)
    assert again.adapted(hello(after=44, log="old"), 1) == hello(after=7, log="new")
    assert again.adapted(["ack", 43], 2) == ["ack", 7]
    assert again.adapted(["ack", 5], 2) is None
    assert again.adapted(["ack", 43, 12], 2) == ["ack", 7, 7]
    assert again.adapted(["ack", 43, 5], 2) == ["ack", 7, 5]
    watcher = hello(after=3, log="old", role="watcher")
    assert adapter(names=names).adapted(watcher, 1) == hello(role="watcher")


def test_what_was_acknowledged_is_acknowledged_when_it_comes() -> None:
    of_link = adapter()
    assert of_link.received(["welcome", {"log": "new", "next": 1}]) is None
    assert of_link.adapted(["ack", 5], 1) == ["ack", 0]
    assert of_link.received(["notices", [{"seq": 4}]]) == ["ack", 4]
    assert of_link.received(["notices", [{"seq": 6}]]) == ["ack", 5]
    assert of_link.received(["notices", [{"seq": 9}]]) is None
    assert of_link.received(["pong", 1]) is None


def test_an_answer_is_to_the_latest_record_of_its_timer() -> None:
    of_link = adapter()
    frame = ["fail", "k", "no route", {"seq": 8, "final": True}]
    assert of_link.adapted(frame, 1) == ["fail", "k", "no route", {"final": True}]
    assert of_link.changed == {"fail": 1}
