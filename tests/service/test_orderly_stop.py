"""What a stop in order leaves for the next start."""

import shutil
from pathlib import Path
from typing import Any

from trio.testing import MockClock

from liveness.service.storage import clocks_file
from tests.service.rig import running

NOT_WRITTEN = (
    "the clocks file could not be written; at the next start every user gets a "
    "fresh timeout"
)


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
    (line,) = [line for line in said if line["event"] == NOT_WRITTEN]
    assert line["error"] == f"{rig.store.path} is not the log that is open"
