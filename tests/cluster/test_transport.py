"""A long answer of Redis does not keep other tasks waiting."""

from contextlib import suppress
from functools import partial
from typing import Final

import pytest
import trio

from liveness.cluster.connection import connected
from liveness.cluster.transport import PIECE_BYTES, RedisConnection
from liveness.config.cluster import ClusterSettings

HELLO: Final = b"%3\r\n+version\r\n+7.0.0\r\n+proto\r\n:3\r\n+id\r\n:1\r\n"
VALUE: Final = b"x" * 1_000_000
# Longer than anything here takes on a busy machine.
PATIENT_S: Final = 10.0


class Pieces(trio.abc.Instrument):
    """Counts what is parsed in a pass of the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = self._now = 0
        parse = RedisConnection._data_received

        def counted(connection: RedisConnection, data: bytes) -> None:
            self._now += len(data)
            self.most = max(self.most, self._now)
            parse(connection, data)

        monkeypatch.setattr(RedisConnection, "_data_received", counted)
        trio.lowlevel.add_instrument(self)

    def before_io_wait(self, timeout: float) -> None:
        self._now = 0


async def serve(stream: trio.SocketStream) -> None:
    with suppress(trio.BrokenResourceError):
        await stream.receive_some()
        await stream.send_all(HELLO)
        await stream.receive_some()
        await stream.send_all(b"*1\r\n$%d\r\n%b\r\n" % (len(VALUE), VALUE))
        await trio.sleep_forever()


async def test_an_answer_is_parsed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = Pieces(monkeypatch)
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(trio.serve_listeners, serve, [listener]))
        settings = ClusterSettings(url=f"redis://127.0.0.1:{port}")
        async with connected(settings, timeout_s=PATIENT_S) as redis:
            assert await redis.meta(0, "v") == [VALUE]
        nursery.cancel_scope.cancel()
    assert pieces.most <= PIECE_BYTES
