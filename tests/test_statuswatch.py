"""`liveness status --watch`: what is told of each look, and of a sidecar that goes away.

Time is virtual, so the next look comes as soon as this one was written.
"""

import io
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from liveness.cli import main
from liveness.commands import CommandError
from liveness.commands.statuswatch import watch_status
from tests.admin import Admin, answering

EVERY_S: Final = 4.0
READY: Final = (200, b'{"ready": true, "why": []}')
GONE: Final = (200, b"it is another program by now")

Step = Callable[[], object]


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[Admin]:
    with answering(tmp_path, {"/readyz": READY, "/metrics": (200, b"")}) as server:
        yield server


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gateway.sock"


def counted(admin: Admin, messages: int, silent: int = 0, **values: float) -> None:
    """Have the sidecar say that it has counted so many."""
    lines = [f"liveness_{name} {value}\n" for name, value in values.items()]
    lines += [f'liveness_events_total{{event="message"}} {messages}\n']
    lines += [f'liveness_offline_total{{reason="silence"}} {silent}\n']
    admin.pages["/metrics"] = (200, "".join(lines).encode())


class Screen(io.StringIO):
    """A file that does the next of *steps* after each look, and in the end stops it all."""

    def __init__(self, steps: list[Step]) -> None:
        super().__init__()
        self._steps = steps
        self.scope = trio.CancelScope()

    def flush(self) -> None:
        if self._steps:
            self._steps.pop(0)()
        else:
            self.scope.cancel()


async def watched(path: Path, *steps: Step, as_json: bool = False) -> tuple[str, str]:
    """What was written over these steps and one look more, and what was told."""
    out, told = Screen([*steps]), list[str]()
    with out.scope:
        await watch_status(
            path, every_s=EVERY_S, as_json=as_json, out=out, tell=told.append
        )
    return out.getvalue(), "\n".join(told)


async def test_each_look_is_a_line_with_what_happened_per_second(
    admin: Admin, path: Path, autojump_clock: MockClock
) -> None:
    counted(admin, 100, 7, users_online=1_500, early_offline_total=0)
    shown, told = await watched(
        path,
        partial(counted, admin, 140, 9, users_online=1_498, early_offline_total=0),
        partial(
            counted, admin, 4_000_140, 9, users_online=1_498, early_offline_total=1
        ),
    )
    late = "1 EARLY"
    lines = [line.split("  ") for line in shown.splitlines()]
    assert all(re.fullmatch(r"[0-9-]{10} [0-9:.]{12}", line.pop(0)) for line in lines)
    assert lines == [
        ["ready", "1,500 online", "0 held"],
        ["ready", "1,498 online", "10.0 events/s", "0.5 offlines/s", "0 held"],
        [
            "ready",
            "1,498 online",
            "1,000,000 events/s",
            "0.0 offlines/s",
            "0 held",
            late,
        ],
    ]
    assert told == ""


async def test_as_json_each_look_is_an_object_on_a_line(
    admin: Admin, path: Path, autojump_clock: MockClock
) -> None:
    counted(admin, 100)
    shown, _told = await watched(
        path, partial(counted, admin, 106, 2, users_online=3), as_json=True
    )
    first, second = map(json.loads, shown.splitlines())
    assert (first["rates"], first["events"]) == (None, {"message": 100})
    assert second["rates"] == {
        "over_s": EVERY_S,
        "events": {"message": 1.5},
        "offlines": {"silence": 0.5},
    }
    assert (second["users_online"], second["ready"]) == (3, True)
    assert second["at"] >= first["at"]


async def test_after_a_restart_there_is_no_rate_until_the_next_look(
    admin: Admin, path: Path, autojump_clock: MockClock
) -> None:
    counted(admin, 100)
    shown, _told = await watched(
        path, partial(counted, admin, 40), partial(counted, admin, 48), as_json=True
    )
    rates = [json.loads(line)["rates"] for line in shown.splitlines()]
    assert [rate and rate["events"] for rate in rates] == [None, None, {"message": 2}]


@pytest.mark.parametrize("as_json", [False, True])
async def test_that_the_sidecar_goes_and_comes_back_is_told_once_each(
    admin: Admin, path: Path, autojump_clock: MockClock, *, as_json: bool
) -> None:
    def go() -> None:
        admin.pages["/readyz"] = GONE

    def come() -> None:
        admin.pages["/readyz"] = READY
        counted(admin, 5)

    nothing: list[Any] = [lambda: None] * 3
    shown, told = await watched(path, go, *nothing, come, *nothing, as_json=as_json)
    assert len(shown.splitlines()) == 1 + 4
    lost, back = told.splitlines()
    assert "is no liveness sidecar" in lost
    assert lost.endswith("asking again every 4 s")
    assert back == f"the sidecar at {path} is back"


async def test_without_a_sidecar_from_the_start_it_does_not_wait(path: Path) -> None:
    with pytest.raises(CommandError, match="no sidecar at"):
        await watched(path)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--watch --quiet", "Mutually exclusive arguments: {--quiet, --watch}"),
        ("--watch 0", "Invalid value for --watch: '0' is not 0.1 to 86400"),
        ("--watch nan", "Invalid value for --watch: 'nan' is not 0.1 to 86400"),
        ("--watch 1 2", "at most 1 element"),
        ("--watch 1 --watch 2", "--watch specified multiple times"),
    ],
)
def test_flags_that_make_no_sense_are_refused_in_a_line(
    flags: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", *flags.split()]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert told in shown.err
