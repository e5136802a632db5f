"""A server with an asyncio timer per user, as gateways have without a sidecar.

    python -m liveness.lab.bench.asyncio_timers SOCKET

It implements the part of the wire protocol that the load uses. Each activity cancels its
user's timer and starts a new one. Users that fall silent in the same turn of the event loop
are reported in one frame. Nothing goes to disk, and acknowledgements are ignored.
"""

import asyncio  # noqa: TID251  # it is what is measured
import sys
import time
from typing import Any

import msgpack


class TimerServer(asyncio.Protocol):
    """All online users with their timers, and the link of their one gateway."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, tuple[float, asyncio.TimerHandle]] = {}
        self._silent: list[dict[str, Any]] = []
        self._seq = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Report offlines on this link from now on."""
        assert isinstance(transport, asyncio.Transport)
        self._link = transport
        self._unpacker = msgpack.Unpacker(use_list=False)

    def data_received(self, data: bytes) -> None:
        """Apply frames."""
        self._unpacker.feed(data)
        for name, *rest in self._unpacker:
            if name == "keepalive":
                uids = rest[0]
                for uid in (uids,) if type(uids) is str else uids:
                    self._keepalive(uid)
            elif name == "login":
                uids, options = rest
                for uid in (uids,) if type(uids) is str else uids:
                    self._stop(uid)
                    self._start(uid, options["timeout"])
            elif name == "ping":
                self._link.write(msgpack.packb(["pong", rest[0]]))
            elif name == "hello":
                self._link.write(msgpack.packb(["welcome", {}]))

    def _keepalive(self, uid: str) -> None:
        timeout = self._stop(uid)
        if timeout is not None:
            self._start(uid, timeout)

    def _stop(self, uid: str) -> float | None:
        """Cancel a user's timer; its timeout if it is online."""
        known = self._timers.get(uid)
        if known is None:
            return None
        known[1].cancel()
        return known[0]

    def _start(self, uid: str, timeout: float) -> None:
        handle = self._loop.call_later(timeout, self._end, uid)
        self._timers[uid] = (timeout, handle)

    def _end(self, uid: str) -> None:
        del self._timers[uid]
        if not self._silent:
            self._loop.call_soon(self._send)
        self._seq += 1
        at = time.time_ns() // 1_000_000
        self._silent.append(
            {"seq": self._seq, "uid": uid, "reason": "silence", "at": at}
        )

    def _send(self) -> None:
        self._link.write(msgpack.packb(["notices", self._silent]))
        self._silent = []


async def main(path: str) -> None:
    """Serves until it is killed."""
    server = TimerServer()
    listener = await asyncio.get_running_loop().create_unix_server(lambda: server, path)
    print("serving", flush=True)
    await listener.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
