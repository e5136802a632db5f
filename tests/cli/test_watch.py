"""`liveness watch` against a log on a real Unix socket.

That it goes on over restarts, and where it begins, is `liveness.watch`'s: see
`tests/client/test_watch.py`.
"""

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel

from liveness.cli.watch import watch
from liveness.console.admin_client import CommandError, unreachable
from liveness.console.record_lines import text_line
from tests.helpers.log_peer import MINUTE_MS, SOON_S, LogPeer, record
from tests.helpers.peer import timer
from tests.helpers.wire import Frame, Record, packed


@pytest.fixture
async def sidecar(tmp_path: Path, nursery: trio.Nursery) -> AsyncIterator[LogPeer]:
    sidecar = LogPeer(tmp_path / "gateway.sock")
    await nursery.start(sidecar.open)
    yield sidecar
    nursery.cancel_scope.cancel()


async def lines(sidecar: LogPeer, count: int, **options: Any) -> list[str]:
    """What `watch --after 0 --count` writes."""
    out = io.StringIO()
    common = {"after": 0, "report_line": lambda _: None, "as_json": False}
    with trio.fail_after(SOON_S):
        await watch(sidecar.path, out, count=count, **{**common, **options})
    return out.getvalue().splitlines()


async def test_after_zero_shows_all_that_is_kept(sidecar: LogPeer) -> None:
    await sidecar.append("online", "offline", "moved")
    shown = await lines(sidecar, 3, as_json=True)
    assert [json.loads(line) for line in shown] == sidecar.kept
    assert "log" not in sidecar.hellos[0]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (record(4), "online   user-4  chat-1  login  seq 4"),
        (
            record(5, "offline"),
            "offline  user-5  chat-1  silence  30.001 s since keepalive  seq 5",
        ),
        (
            {**record(5, "offline", restored=True), "last": None},
            "offline  user-5  chat-1  silence  30.001 s since the restart  seq 5",
        ),
        (record(6, "moved"), "moved    user-6  chat-1 from chat-0  login  seq 6"),
        (
            record(6, "moved", from_session=None),
            "moved    user-6  chat-1, older connection at chat-0  login  seq 6",
        ),
        (record(7, uid="7"), "online   7  chat-1  login  seq 7"),
        (
            {"seq": 9, "kind": "gap", "first": 3, "until": 10, "at": MINUTE_MS},
            "gap      records 3 to 9 are no longer kept  seq 9",
        ),
        (
            timer(
                9, "order:17\n", "chat\x1b", attempt=2, due=MINUTE_MS - 7, at=MINUTE_MS
            ),
            r"timer    order:17\n  chat\x1b  attempt 2  0.007 s late  seq 9",
        ),
    ],
)
def test_a_record_is_one_line_for_a_person(shown: Record, expected: str) -> None:
    when, _, what = text_line(shown).partition("  ")
    assert what == expected
    assert len(when) == len("2026-11-20 10:47:03.123")


def test_names_cannot_control_the_terminal_of_a_person() -> None:
    line = text_line(record(8, uid="a\nb\x1b[2J\u202e", gateway="chat\x1b"))
    assert r"  online   a\nb\x1b[2J\u202e  chat\x1b  login  seq 8" in line


def error(code: str) -> Frame:
    return ["error", {"code": code, "message": "for\nnow", "fatal": True, "n": 1}]


async def test_changes_of_the_link_are_lines_and_a_new_log_is_no_record(
    sidecar: LogPeer, nursery: trio.Nursery
) -> None:
    reported: list[str] = []
    shown: list[str] = []

    async def watching() -> None:
        shown.extend(await lines(sidecar, 3, report_line=reported.append, as_json=True))

    await sidecar.append("online", "online")
    async with trio.open_nursery() as reading:
        reading.start_soon(watching)
        await sidecar.is_watched()
        await trio.testing.wait_all_tasks_blocked()
        await sidecar.close("bye", {"reason": "restart"})
        sidecar.log, sidecar.kept, sidecar.next = "log-b", [], 1
        await sidecar.append("online")
        await nursery.start(sidecar.open)
    assert [json.loads(line)["seq"] for line in shown] == [1, 2, 1]
    # Between the two sidecars, an attempt may find none.
    assert [line for line in reported if "it is not running" not in line] == [
        f"linked to the sidecar at {sidecar.path}",
        f"no link to the sidecar at {sidecar.path}: it says bye: restart",
        f"linked to the sidecar at {sidecar.path}",
        "the log is a new one: its records follow",
    ]


MISTAKES: dict[str, tuple[bytes, str]] = {
    "refused": (
        packed(error("not-allowed")),
        r"it says for\\nnow \(not-allowed\); see its log$",
    ),
    "bye": (
        packed(["bye", {"reason": "stop"}]),
        "it says bye: stop; see the sidecar's log$",
    ),
    "another server": (
        b"HTTP/1.1 400 Bad\r\n\r\n",
        "is not a liveness sidecar: name the right socket",
    ),
}


@pytest.mark.parametrize(
    ("greeting", "reported"), MISTAKES.values(), ids=MISTAKES.keys()
)
async def test_what_ends_it_is_one_line(
    sidecar: LogPeer, greeting: bytes, reported: str
) -> None:
    sidecar.greeting = greeting
    with pytest.raises(CommandError, match=reported) as caught:
        await lines(sidecar, 1)
    assert str(caught.value).isprintable()


async def test_a_place_that_is_not_there_yet_is_a_mistake(sidecar: LogPeer) -> None:
    with pytest.raises(CommandError, match=r"^--after 2: .* the newest is 0$"):
        await lines(sidecar, 1, after=2)


def test_a_socket_without_permission_is_reported() -> None:
    # As root everything may be opened, so the error is made here.
    reported = str(unreachable(Path("/s"), PermissionError(13, "Permission denied")))
    assert (
        reported
        == "not allowed to connect to /s: run this as its user, or in its group"
    )
