"""`python -m tests.machine.load SOCKET`: a gateway of 5,000 users, and a prober.

Each user sends a message a second. With each line of standard input another 100 fall
silent. The prober connects ten times a second, and takes note of each refusal. At the end
of standard input the gateway waits until every silent user is reported, and prints a
`Report`.
"""

import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from typing import Final

import trio

import liveness

USERS: Final = 5_000
FALL_SILENT: Final = 100
TIMEOUT_S: Final = 10
EVERY_S: Final = 1.0
PROBE_EVERY_S: Final = 0.1
# The timeout, a restart meanwhile, and time to spare.
REPORTED_S: Final = 60


@dataclass
class Report:
    """The records of the gateway, and the failures of the prober."""

    silent: int = 0
    # Users that fell silent and were not reported offline.
    missed: list[str] = field(default_factory=list)
    # Users that were reported offline and had not fallen silent.
    false: list[str] = field(default_factory=list)
    probes: int = 0
    # Errors of the connects that failed.
    refused: list[str] = field(default_factory=list)


class Gateway:
    """A gateway's users, and what becomes of them."""

    def __init__(self, sidecar: liveness.Sidecar, path: str) -> None:
        self._sidecar = sidecar
        self._path = path
        self._conns = {f"user-{n}": sidecar.new_conn() for n in range(USERS)}
        self._live = dict(self._conns)
        self._ended = set[str]()
        self._heard = trio.Event()  # of an end
        self.report = Report()

    async def login(self) -> None:
        """Returns once all are online."""
        for uid, conn in self._conns.items():
            self._sidecar.login(uid, conn=conn)
        await self._sidecar.flush()

    async def chat(self) -> None:
        while True:
            for uid, conn in self._live.items():
                self._sidecar.message(uid, conn=conn)
            await trio.sleep(EVERY_S)

    async def hear(self) -> None:
        async for end in self._sidecar.ended():
            self._ended.add(str(end.uid))
            self._heard.set()

    async def probe(self) -> None:
        while True:
            self.report.probes += 1
            try:
                await (await trio.open_unix_socket(self._path)).aclose()
            except OSError as error:
                self.report.refused.append(repr(error))
            await trio.sleep(PROBE_EVERY_S)

    def fall_silent(self) -> None:
        for uid in [*self._live][:FALL_SILENT]:
            del self._live[uid]

    async def finish(self) -> None:
        """Waits for the reports that are due, and completes the report."""
        silent = self._conns.keys() - self._live.keys()
        with trio.move_on_after(REPORTED_S):
            while silent - self._ended:
                self._heard = trio.Event()
                await self._heard.wait()
        self.report.silent = len(silent)
        self.report.missed = sorted(silent - self._ended)
        self.report.false = sorted(self._ended - silent)


async def lines(fd: int) -> AsyncIterator[str]:
    async with trio.lowlevel.FdStream(os.dup(fd)) as stream:
        async for received in stream:
            for line in received.decode().splitlines():
                yield line


async def main(path: str) -> Report:
    async with (
        liveness.connect(path, name="gw-1", timeout=TIMEOUT_S) as sidecar,
        trio.open_nursery() as nursery,
    ):
        gateway = Gateway(sidecar, path)
        await gateway.login()
        for task in (gateway.chat, gateway.hear, gateway.probe):
            nursery.start_soon(task)
        sys.stdout.write("online\n")
        sys.stdout.flush()
        async for _ in lines(sys.stdin.fileno()):
            gateway.fall_silent()
        await gateway.finish()
        nursery.cancel_scope.cancel()
    return gateway.report


if __name__ == "__main__":
    json.dump(asdict(trio.run(main, sys.argv[1])), sys.stdout)
