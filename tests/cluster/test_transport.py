"""Bounds on the data of a server that is broken, or not a Redis."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

import pytest
import trio

from liveness.cluster import transport
from liveness.cluster.connection import CallError, Redis, connected
from liveness.config.cluster import ClusterSettings

HELLO: Final = b"%3\r\n+version\r\n+7.0.0\r\n+proto\r\n:3\r\n+id\r\n:1\r\n"
PUSH: Final = b">2\r\n+invalidate\r\n*1\r\n+a\r\n"
MOST_BYTES: Final = 200_000
# Longer than anything here takes on a busy machine.
PATIENT_S: Final = 10.0
UNASKED: Final = "over 1,000 messages that answer nothing"
TOO_LONG: Final = "an answer has over 200,000 bytes"


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


@asynccontextmanager
async def redis_of(
    handler: Callable[[trio.SocketStream], Awaitable[None]], **options: Any
) -> AsyncIterator[Redis]:
    """A connection to a server that is no Redis."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    url = "redis://127.0.0.1:{1}".format(*listener.socket.getsockname())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, handler, [listener])
        async with connected(ClusterSettings(url=url), **options) as redis:
            yield redis
        nursery.cancel_scope.cancel()


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
async def test_what_comes_without_end_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, hello: bytes, begin: bytes, again: bytes, why: str
) -> None:
    monkeypatch.setattr(transport, "MOST_ANSWER_BYTES", MOST_BYTES)
    serving = partial(serve, hello, begin, again)
    async with redis_of(serving, timeout_s=PATIENT_S) as redis:
        with pytest.raises(CallError, match=why) as caught:
            await ask(redis)
    assert caught.value.kind == "connection"
    assert str(caught.value).startswith("Redis at 127.0.0.1:")


async def test_a_connection_whose_policy_is_not_answered_is_closed() -> None:
    closed = trio.Event()

    async def greet(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(HELLO)
        with suppress(trio.BrokenResourceError):
            while await stream.receive_some():
                pass
        closed.set()

    async with redis_of(greet, timeout_s=0.2, must_keep=True) as redis:
        with pytest.raises(CallError, match=r"no answer within 0\.2 s"):
            await redis.meta(0, "v")
        with trio.fail_after(PATIENT_S):
            await closed.wait()
