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
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, tuple[float, asyncio.TimerHandle]] = {}
        self._silent: list[dict[str, Any]] = []
        self._seq = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._link = transport
        self._unpacker = msgpack.Unpacker(use_list=False)

    def data_received(self, data: bytes) -> None:
        self._unpacker.feed(data)
        for name, *rest in self._unpacker:
            if name in ("keepalive", "login"):
                uids = rest[0]
                timeout = rest[1]["timeout"] if name == "login" else None
                for uid in (uids,) if type(uids) is str else uids:
                    self._restart(uid, timeout)
            elif name == "ping":
                self._link.write(msgpack.packb(["pong", rest[0]]))
            elif name == "hello":
                self._link.write(msgpack.packb(["welcome", {}]))

    def _restart(self, uid: str, timeout: float | None) -> None:
        """Restart a user's timer; None: that of an online user, with its own timeout."""
        known = self._timers.get(uid)
        if known is not None:
            known[1].cancel()
            timeout = timeout or known[0]
        if timeout is not None:
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
    server = TimerServer()
    listener = await asyncio.get_running_loop().create_unix_server(lambda: server, path)
    print("serving", flush=True)
    await listener.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
