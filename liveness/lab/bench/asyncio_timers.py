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


class UserTimers:
    """All online users with their timers."""

    def __init__(self) -> None:
        self.link: asyncio.Transport | None = None  # where offlines are reported
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, tuple[float, asyncio.TimerHandle]] = {}
        self._silent: list[dict[str, Any]] = []
        self._seq = 0

    def login(self, uid: str, timeout: float) -> None:
        """Bring a user online, or give it a new timeout."""
        known = self._timers.get(uid)
        if known is not None:
            known[1].cancel()
        handle = self._loop.call_later(timeout, self._end, uid)
        self._timers[uid] = (timeout, handle)

    def activity(self, uid: str) -> None:
        """Restart the timer of a user, if it is online."""
        known = self._timers.get(uid)
        if known is not None:
            timeout, handle = known
            handle.cancel()
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
        if self.link is not None:
            self.link.write(msgpack.packb(["notices", self._silent]))
        self._silent = []


class ConnectionTimers(asyncio.Protocol):
    """A gateway's link."""

    def __init__(self, users: UserTimers) -> None:
        self._users = users
        self._unpacker = msgpack.Unpacker(use_list=False)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Report offlines on this link from now on."""
        assert isinstance(transport, asyncio.Transport)
        self._link = self._users.link = transport

    def data_received(self, data: bytes) -> None:
        """Apply frames."""
        users = self._users
        self._unpacker.feed(data)
        for name, *rest in self._unpacker:
            if name == "keepalive":
                uids = rest[0]
                if type(uids) is str:
                    users.activity(uids)
                else:
                    for uid in uids:
                        users.activity(uid)
            elif name == "login":
                uids, options = rest
                for uid in (uids,) if type(uids) is str else uids:
                    users.login(uid, options["timeout"])
            elif name == "ping":
                self._link.write(msgpack.packb(["pong", rest[0]]))
            elif name == "hello":
                self._link.write(msgpack.packb(["welcome", {}]))


async def main(path: str) -> None:
    """Serves until it is killed."""
    loop, users = asyncio.get_running_loop(), UserTimers()
    server = await loop.create_unix_server(lambda: ConnectionTimers(users), path)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
