"""A gateway of `liveness.connect` as a process, to be killed, frozen and delayed.

Run as a program it follows the orders on its standard input, and prints what it gets, a
JSON line each.
"""

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Final, Self

import anyio
from anyio.abc import TaskGroup

import liveness
from tests.helpers.tree import ROOT
from tests.system.sidecar import SOON_S, Sidecar

EVERY_S: Final = 0.1  # between keepalives of users who talk

Line = dict[str, Any]


class Gateway:
    """The process, as a test has it.

    Args:
        sidecar: The sidecar it connects to.
        name: Its name.
        backend: The event loop it runs on.
        fresh: As in `connect`.
        timeout: As in `connect`.
        is_stuck: It never finishes the first end that it gets.
    """

    def __init__(
        self,
        sidecar: Sidecar,
        name: str,
        *,
        backend: str = "trio",
        fresh: bool | None = None,
        timeout: float | None = None,
        is_stuck: bool = False,
    ) -> None:
        options: dict[str, Any] = {"path": str(sidecar.socket), "name": name}
        options |= {"fresh": fresh, "timeout": timeout}
        facts: tuple[object, ...] = (options, is_stuck)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, backend, *map(json.dumps, facts)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.SimpleQueue[Line] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.kill()

    def login(self, *users: tuple[str, int], timeout: float | None = None) -> None:
        """Has it log in these users, by uid and conn, and waits until that is applied."""
        self._order("login", users, timeout)
        self.told("flushed")

    def talk(self, *users: tuple[str, int]) -> None:
        """Has it report these users alive from now on."""
        self._order("talk", users)

    def hold_up(self, seconds: float) -> None:
        """Has it block its event loop."""
        self._order("hold up", seconds)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def told(self, event: str) -> Line:
        """Waits for its next line, which is this one."""
        line = self._lines.get(timeout=SOON_S)
        assert line["event"] == event, line
        return line

    def end(self) -> tuple[str, int, str]:
        """Waits for its next line, which is an end: uid, conn, reason."""
        line = self.told("end")
        return line["uid"], line["conn"], line["reason"]

    def kill(self) -> None:
        """Ends it as a crash would."""
        self._process.kill()
        self._process.wait(SOON_S)
        self._reader.join(SOON_S)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def _order(self, *order: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            self._lines.put(json.loads(text))
        self._lines.put({"event": "end of the process"})


# --- the program -------------------------------------------------------------------


async def _serve(options: dict[str, Any], is_stuck: bool) -> None:
    async with (
        liveness.connect(**options) as sidecar,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(_tell_ends, sidecar, is_stuck)
        async for line in anyio.wrap_file(sys.stdin):
            await _follow(json.loads(line), sidecar, tasks)


async def _follow(
    order: list[Any], sidecar: liveness.Sidecar, tasks: TaskGroup
) -> None:
    match order:
        case ["login", users, timeout]:
            for uid, conn in users:
                sidecar.login(uid, conn=conn, timeout=timeout)
            await sidecar.flush()
            _tell("flushed")
        case ["talk", users]:
            tasks.start_soon(_talk, sidecar, users)
        case ["hold up", seconds]:
            time.sleep(seconds)  # noqa: ASYNC251 - that is the point
        case _:
            raise ValueError(order)


async def _tell_ends(sidecar: liveness.Sidecar, is_stuck: bool) -> None:
    async for end in sidecar.ended():
        _tell("end", uid=end.uid, conn=end.conn, reason=end.reason)
        if is_stuck:
            await anyio.sleep_forever()


async def _talk(sidecar: liveness.Sidecar, users: Sequence[tuple[str, int]]) -> None:
    while True:
        for uid, conn in users:
            sidecar.keepalive(uid, conn=conn)
        await anyio.sleep(EVERY_S)


def _tell(event: str, **facts: object) -> None:
    os.write(1, json.dumps({"event": event, **facts}).encode() + b"\n")


if __name__ == "__main__":
    anyio.run(_serve, *map(json.loads, sys.argv[2:]), backend=sys.argv[1])
