"""Files that are removed or replaced while they are in use: said, counted, and what can
be made anew is."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from trio.testing import MockClock

from liveness.errors import StateError
from liveness.service.common.logs import REPEAT_LOG_S
from liveness.service.file_watch import CHECK_EVERY_S
from liveness.service.links.sockets import listening
from liveness.service.storage import clocks_file
from tests.service.rig import Rig, running

SEEN_S = 2 * CHECK_EVERY_S


def removed(path: Path) -> Callable[[], object]:
    """Remove it; return what puts it back."""
    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)
    return lambda: aside.rename(path)


def replaced(path: Path) -> Callable[[], object]:
    """Put a copy in its place; return what puts it back."""
    back = removed(path)
    path.write_bytes(path.with_name(f"{path.name}.aside").read_bytes())
    return back


def errors(logs: list[Any]) -> list[Any]:
    return [line for line in logs if line["log_level"] == "error"]


@pytest.mark.parametrize("lose", [removed, replaced])
@pytest.mark.parametrize("name", ["lock", "liveness.db-wal", "timers.db"])
async def test_a_lost_file_of_the_state_is_reported_until_it_is_back(
    rig: Rig, name: str, lose: Callable[[Path], Callable[[], object]]
) -> None:
    await trio.sleep(SEEN_S)
    assert rig.sidecar.why_not_ready() == []
    with structlog.testing.capture_logs() as logs:
        back = lose(rig.store.folder / name)
        await trio.sleep(SEEN_S)
        (why,) = rig.sidecar.why_not_ready()
        folder = rig.store.folder
        assert why.startswith(f"state directory {folder}: {name} removed or replaced")
        assert rig.sidecar.status.startswith("not ready: ")
        await trio.sleep(3 * REPEAT_LOG_S)
        assert len(errors(logs)) == 4
        assert errors(logs)[-1]["why"] == why
    back()
    await trio.sleep(SEEN_S)
    assert rig.sidecar.why_not_ready() == []
    assert rig.counts.files_lost == {"gateway": 0, "admin": 0, "state": 1}


async def test_a_second_writer_of_the_log_ends_the_sidecar_with_bye(
    tmp_path: Path, jumping: MockClock
) -> None:
    last: list[Any] | None = None

    async def written_by_two() -> None:
        nonlocal last
        async with running(tmp_path) as rig:
            gateway = await rig.gateway("gw")
            with closing(sqlite3.connect(rig.store.path)) as other, other:
                other.execute("insert into log values (1, 1, 1, x'', 0)")
            await gateway.send(["login", "ada", {"conn": 1}], ["ping", 1])
            with trio.CancelScope(shield=True):
                last = await gateway.receive()
            await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as ended:
        await written_by_two()
    assert ended.group_contains(StateError, match="another process writes there too")
    assert last == ["bye", {"reason": "the sidecar stops"}]


async def test_a_removed_socket_is_made_anew_and_links_go_on(rig: Rig) -> None:
    early = await rig.gateway("early")
    for times in range(1, 4):
        with structlog.testing.capture_logs() as logs:
            removed(rig.sidecar.config.socket.path)
            await trio.sleep(SEEN_S)
        assert len(errors(logs)) == (1 if times == 1 else 0)  # again in a minute
        assert rig.sidecar.why_not_ready() == []
        late = await rig.gateway("late")
        for gateway in (early, late):
            await gateway.sync()
        assert rig.counts.files_lost["gateway"] == times


async def test_another_process_on_the_socket_is_reported_and_left_alone(
    rig: Rig,
) -> None:
    removed(rig.sidecar.config.socket.path)
    with listening(rig.sidecar.config.socket.path) as other:
        await trio.sleep(SEEN_S)
        (why,) = rig.sidecar.why_not_ready()
        assert "another process serves there" in why
        assert other.is_reachable()
    await trio.sleep(SEEN_S)
    assert rig.sidecar.why_not_ready() == []
    assert rig.counts.files_lost["gateway"] == 1
    await rig.gateway("gw")


async def test_a_stop_keeps_the_clocks_whatever_was_asked_of_timers(
    tmp_path: Path, jumping: MockClock
) -> None:
    async with running(tmp_path) as rig:
        gateway = await rig.gateway_of("u")
        with rig.no_room_for_timers():
            await gateway.send(*(["after", f"{n:200}", 100] for n in range(1_000)))
            await rig.until(lambda: rig.log_writer.failure)
            await rig.stop()
        assert rig.log_writer.writer.failure is None
    assert (tmp_path / "state" / clocks_file.NAME).exists()


async def test_a_stop_writes_no_clocks_into_the_state_of_another(
    tmp_path: Path, jumping: MockClock, said: list[Any]
) -> None:
    state = tmp_path / "state"
    async with running(tmp_path) as rig:
        await rig.gateway_of("u")
        state.rename(tmp_path / "aside")
        shutil.copytree(tmp_path / "aside", state)
        (state / clocks_file.NAME).write_bytes(b"theirs")
        await rig.stop()
    assert (state / clocks_file.NAME).read_bytes() == b"theirs"
    (line,) = [
        line for line in said if "clocks file could not be written" in line["event"]
    ]
    assert line["error"] == f"{rig.store.path} is not the log that is open"
