"""Bounds on the data of a server that is broken, or not a Redis."""

from contextlib import suppress
from functools import partial
from typing import Final

import pytest
import trio

from liveness.cluster import transport
from liveness.cluster.connection import CallError, Redis, connected
from liveness.cluster.transport import PIECE_BYTES, RedisConnection
from liveness.config.cluster import ClusterSettings

HELLO: Final = b"%3\r\n+version\r\n+7.0.0\r\n+proto\r\n:3\r\n+id\r\n:1\r\n"
PUSH: Final = b">2\r\n+invalidate\r\n*1\r\n+a\r\n"
MOST_BYTES: Final = 200_000
# Longer than anything here takes on a busy machine.
PATIENT_S: Final = 10.0
UNASKED: Final = "over 1,000 messages that answer nothing"
TOO_LONG: Final = "an answer has over 200,000 bytes"


class Pieces(trio.abc.Instrument):
    """Counts what is parsed, in all and in a pass of the event loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = self.most_in_a_pass = self._now = 0
        parse = RedisConnection._data_received

        def counted(connection: RedisConnection, data: bytes) -> None:
            self.bytes += len(data)
            self._now += len(data)
            self.most_in_a_pass = max(self.most_in_a_pass, self._now)
            parse(connection, data)

        monkeypatch.setattr(RedisConnection, "_data_received", counted)
        trio.lowlevel.add_instrument(self)

    def before_io_wait(self, timeout: float) -> None:
        self._now = 0


async def serve(
    hello: bytes, begin: bytes, again: bytes, stream: trio.SocketStream
) -> None:
    """Answer the hello, begin to answer the first command, and go on for long."""
    with suppress(trio.BrokenResourceError):
        await stream.receive_some()
        await stream.send_all(hello)
        if begin:
            await stream.receive_some()
            await stream.send_all(begin)
        await stream.send_all(again * (4 * MOST_BYTES // len(again)))
        await trio.sleep_forever()


async def ask(redis: Redis) -> None:
    for _ in range(100):
        await redis.meta(0, "v")


@pytest.mark.parametrize(
    ("hello", "begin", "again", "why"),
    [
        (HELLO, b"", PUSH, UNASKED),
        (b"", b"", PUSH, UNASKED),
        (HELLO, b"*2\r\n+1\r\n", PUSH, UNASKED),
        (HELLO, b"*2\r\n+1\r\n+2\r\n", b"+OK\r\n", UNASKED),
        (HELLO, b"*100000000\r\n", b":1\r\n", TOO_LONG),
        (HELLO, b"*1\r\n", b"*1\r\n", TOO_LONG),
        (HELLO, b"$10000000000\r\n", b"x", TOO_LONG),
        (HELLO, b"+", b"x", TOO_LONG),
    ],
    ids=[
        *("pushes", "before hello", "amid an answer", "answers"),
        *("array", "nested", "bulk", "line"),
    ],
)
async def test_what_comes_without_end_is_parsed_in_pieces_and_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, hello: bytes, begin: bytes, again: bytes, why: str
) -> None:
    monkeypatch.setattr(transport, "MOST_ANSWER_BYTES", MOST_BYTES)
    pieces = Pieces(monkeypatch)
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        serving = partial(serve, hello, begin, again)
        nursery.start_soon(trio.serve_listeners, serving, [listener])
        settings = ClusterSettings(url=f"redis://127.0.0.1:{port}")
        async with connected(settings, timeout_s=PATIENT_S) as redis:
            with pytest.raises(CallError, match=why) as caught:
                await ask(redis)
        assert caught.value.kind == "connection"
        assert str(caught.value).startswith(f"Redis at 127.0.0.1:{port}: ")
        nursery.cancel_scope.cancel()
    assert pieces.bytes <= MOST_BYTES + 2 * PIECE_BYTES
    assert pieces.most_in_a_pass <= PIECE_BYTES


async def test_a_connection_whose_policy_is_not_answered_is_closed() -> None:
    closed = trio.Event()

    async def greet(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(HELLO)
        with suppress(trio.BrokenResourceError):
            while await stream.receive_some():
                pass
        closed.set()

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, greet, [listener])
        settings = ClusterSettings(url=f"redis://127.0.0.1:{port}")
        async with connected(settings, timeout_s=0.2, must_keep=True) as redis:
            with pytest.raises(CallError, match=r"no answer within 0\.2 s"):
                await redis.meta(0, "v")
            with trio.fail_after(PATIENT_S):
                await closed.wait()
        nursery.cancel_scope.cancel()
