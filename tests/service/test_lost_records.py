"""Readers that come back to a log that has lost its end, or may have.

In the first life of the sidecar each reader gets three records, in the second three more.
Then the state is put back from a copy of the first, or the host starts anew; and the log
grows past all that anybody was shown.
"""

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from tests.service.http.asgi import reading
from tests.service.rig import Caller, Rig, running

QUIET_S: Final = 1.0


async def until_quiet(take: Callable[[], Awaitable[list[int]]]) -> list[int]:
    """The seqs of all that comes, until nothing comes for a while."""
    found = list[int]()
    while True:
        with trio.move_on_after(QUIET_S) as waiting:
            found += await take()
        if waiting.cancelled_caught:
            return found


class OwnPosition:
    """A link that names where to go on."""

    def __init__(self) -> None:
        self.position: dict[str, Any] = {"after": 0}

    async def seqs(self, rig: Rig) -> list[int]:
        watcher = await rig.watcher(**self.position)
        found = await until_quiet(partial(_seqs_of, watcher))
        self.position = {"after": found[-1], "log": watcher.welcome["log"]}
        return found


async def _seqs_of(watcher: Caller) -> list[int]:
    (records,) = await watcher.expect("notices")
    return [record["seq"] for record in records]


class Feed:
    """A stream over HTTP."""

    _last = ""

    async def seqs(self, rig: Rig) -> list[int]:
        headers = {"last-event-id": self._last} if self._last else {}
        async with reading(rig.door(), "/v1/feed?after=0", headers=headers) as stream:
            await stream.event()  # where it begins

            async def take() -> list[int]:
                event = await stream.event()
                assert event is not None
                assert event.id is not None
                self._last = event.id
                return [event.data["seq"]]

            return await until_quiet(take)


READERS: Final[dict[str, Callable[[], OwnPosition | Feed]]] = {
    "link": OwnPosition,
    "feed": Feed,
}


@asynccontextmanager
async def life(folder: Path, *uids: str) -> AsyncIterator[Rig]:
    """A sidecar that writes a record for each of these users; its end is a crash."""
    async with running(folder) as rig:
        await rig.gateway_of([*uids], kinds=[])
        yield rig
        await trio.sleep(2)  # cursors are written now and then


def befall(folder: Path, happens: str) -> None:
    if happens == "copy":
        shutil.rmtree(folder / "state")
        (folder / "copy").rename(folder / "state")
    else:
        for mark in folder.glob("log-*.next"):
            mark.unlink()


@pytest.mark.parametrize(("happens", "expected"), [("copy", 4), ("boot", 7)])
@pytest.mark.parametrize("kind", READERS)
async def test_a_reader_gets_each_record_behind_the_last_that_both_logs_have(
    tmp_path: Path, jumping: MockClock, kind: str, happens: str, expected: int
) -> None:
    reader = READERS[kind]()
    async with life(tmp_path, *"abc") as rig:
        was = rig.store.log
        assert await reader.seqs(rig) == [1, 2, 3]
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    async with life(tmp_path, *"def") as rig:
        assert await reader.seqs(rig) == [4, 5, 6]
        assert rig.store.log == was
    befall(tmp_path, happens)
    async with life(tmp_path, *"ghijk") as rig:
        assert rig.store.log != was
        assert await reader.seqs(rig) == [*range(expected, expected + 5)]
