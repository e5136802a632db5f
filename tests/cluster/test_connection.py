"""Redis as the cluster calls it, on real servers."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import anyio
import coredis.exceptions
import pytest
import trio

from liveness.cluster import transport
from liveness.cluster.connection import CallError, Redis, connected
from liveness.cluster.nodes import KINDS
from liveness.config.cluster import ClusterSettings
from liveness.config.secret_file import MAX_BYTES
from liveness.errors import StartError
from tests.helpers.needs import needs
from tests.helpers.redis_servers import Certificates, RedisServer, redis_server

Args: TypeAlias = list[str | int | bytes]

# Longer than any answer takes on a busy machine.
PATIENT_S: Final = 10.0
SOON_S: Final = 20.0
LEASE_US: Final = 30_000_000


@asynccontextmanager
async def redis_of(
    settings: ClusterSettings, timeout_s: float = PATIENT_S
) -> AsyncIterator[Redis]:
    async with connected(settings, timeout_s=timeout_s) as redis:
        yield redis


async def begin(redis: Redis, partition: int = 3) -> list[Any]:
    """Host A begins in a partition; an epoch so low that it is refused the second time."""
    args: Args = ["A", 1, 7, "log", 5, "1 16 -", LEASE_US, 1, 1, 9]
    answer: list[Any] = await redis.call("begin", partition, args)
    return answer


async def failure_of(call: Awaitable[object]) -> CallError:
    with pytest.raises(CallError) as caught:
        await call
    return caught.value


async def eventually(act: Callable[[], Awaitable[Any]]) -> Any:
    """The answer of a call, once it no longer fails."""
    with trio.fail_after(SOON_S):
        while True:
            try:
                return await act()
            except CallError:
                await trio.sleep(0.02)


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_it_ends_while_it_connects_to_a_server_that_stands_still(
    redis: RedisServer, backend: str
) -> None:
    async def leave() -> None:
        async with redis_of(redis.settings(), timeout_s=SOON_S) as conn:
            with anyio.move_on_after(0.05):
                await begin(conn)

    redis.pause()
    anyio.run(leave, backend=backend)


@needs("redis-server")
async def test_it_runs_while_redis_is_away_and_heals() -> None:
    with redis_server() as redis:
        redis.stop()
        async with redis_of(redis.settings()) as conn:
            failure = await failure_of(begin(conn))
            assert failure.kind == "connection"
            assert str(failure).startswith(f"Redis at {redis.address}: ")
            assert "refused" in str(failure)
            assert conn.error is failure
            for _ in range(2):  # a restart loses keys and functions
                redis.start()
                assert (await eventually(lambda: begin(conn)))[0] == b"reset"
                assert conn.error is None
                redis.kill()
                assert (await failure_of(begin(conn))).kind == "connection"


@pytest.mark.parametrize(
    "rights",
    ["+@all -fcall", "+@all -hset", "+@all resetkeys ~other:*"],
    ids=["command", "inside", "keys"],
)
async def test_a_user_that_lacks_a_right(redis: RedisServer, rights: str) -> None:
    redis("ACL", "SETUSER", "ada", "on", "nopass", "~*", *rights.split())
    async with redis_of(redis.settings(user="ada")) as conn:
        failure = await failure_of(begin(conn))
    assert failure.kind == "permission"


async def test_the_password_is_read_for_each_connection(
    redis: RedisServer, tmp_path: Path
) -> None:
    secret = tmp_path / "password"

    def write(password: str) -> None:
        secret.write_text(password)
        secret.chmod(0o600)

    write("hunter1\n")
    redis("ACL", "SETUSER", "ada", "on", ">hunter2", "~*", "+@all")
    settings = redis.settings(user="ada", password_file=secret)
    async with redis_of(settings) as conn:
        failure = await failure_of(begin(conn))
        assert failure.kind == "auth"
        assert "hunter" not in f"{failure} {failure!r} {settings} {conn.__dict__}"
        write("hunter2\n")
        assert (await begin(conn))[0] == b"reset"
        redis("CLIENT", "KILL", "TYPE", "normal")
        secret.unlink()
        await failure_of(begin(conn))  # its connection was closed
        failure = await failure_of(begin(conn))
        assert failure.kind == "auth"
        assert "cannot be read (No such file or directory)" in str(failure)
        write("hunter2")
        assert (await begin(conn))[0] == b"epoch"


@needs("redis-server")
async def test_a_server_that_does_not_know_a_command_does_not_repeat_the_password(
    tmp_path: Path,
) -> None:
    secret = tmp_path / "password"
    secret.write_text("hunter2")
    secret.chmod(0o600)
    with redis_server("--rename-command", "HELLO", "HI") as redis:
        settings = redis.settings(user="ada", password_file=secret)
        async with redis_of(settings) as conn:
            failure = await failure_of(begin(conn))
    assert "unknown command 'HELLO'" in str(failure)
    assert "hunter2" not in str(failure)


def test_the_errors_that_have_a_kind_are_coredis_own() -> None:
    names = {name for name in KINDS if name.endswith("Error")} - {"TimeoutError"}
    assert names <= {*vars(coredis.exceptions)}


def test_without_coredis_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [*filter(lambda name: name.startswith("coredis"), sys.modules)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "coredis", None)
    with pytest.raises(
        StartError, match=r"pip install 'liveness-sidecar\[sidecar,cluster\]'"
    ):
        Redis(ClusterSettings(url="redis://localhost"))


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (None, 0, "cannot be read (No such file or directory); correct the path"),
        (b"\n", 0o600, "is empty; put the password of Redis' user there"),
        (b"hunter2", 0o604, "is open to users other than its owner and group; run"),
        (b"x" * (MAX_BYTES + 1), 0o600, "has more than 4096 bytes; put only"),
        (b"\xff", 0o600, "is not UTF-8; put only the password there"),
    ],
    ids=["missing", "empty", "open", "long", "binary"],
)
def test_a_password_file_that_cannot_be_used(
    tmp_path: Path, content: bytes | None, mode: int, said: str
) -> None:
    secret = tmp_path / "password"
    if content is not None:
        secret.write_bytes(content)
        secret.chmod(mode)
    with pytest.raises(StartError) as caught:
        Redis(ClusterSettings(url="redis://localhost", password_file=secret))
    assert str(caught.value).startswith(f"cluster.password_file: {secret} {said}")


@pytest.mark.parametrize("name", ["tls_ca_file", "tls_cert_file"])
def test_a_file_of_tls_that_cannot_be_used(
    certificates: Certificates, tmp_path: Path, name: str
) -> None:
    broken = tmp_path / "broken"
    for content in (None, "not PEM"):
        if content:
            broken.write_text(content)
        files: dict[str, Any] = {name: broken}
        settings = ClusterSettings(url="rediss://localhost", **files)
        with pytest.raises(StartError, match=rf"^cluster\.{name}: {broken}.* PEM"):
            Redis(settings)


@pytest.fixture
def tls_server(certificates: Certificates) -> Iterator[RedisServer]:
    with redis_server(tls=certificates) as server:
        yield server


async def test_tls_with_certificates_of_both_sides(
    tls_server: RedisServer, certificates: Certificates
) -> None:
    ours = {
        "tls_cert_file": certificates.client,
        "tls_key_file": certificates.client_key,
    }
    trusting = {"tls_ca_file": certificates.ca}
    async with redis_of(tls_server.settings(**ours, **trusting)) as conn:
        assert (await begin(conn))[0] == b"reset"
    async with redis_of(tls_server.settings(**ours)) as conn:
        failure = await failure_of(begin(conn))
    assert failure.kind == "connection"
    assert "certificate verify failed" in str(failure)
    async with redis_of(tls_server.settings(**trusting)) as conn:
        failure = await failure_of(begin(conn))
    assert failure.kind == "connection"


async def test_a_host_publishes_to_no_server_that_may_evict_any_key(
    redis: RedisServer,
) -> None:
    settings = redis.settings()
    redis("CONFIG", "SET", "maxmemory-policy", "allkeys-lfu")
    async with connected(settings, must_keep=True) as conn:
        failure = await failure_of(begin(conn))
        assert failure.kind == "memory"
        assert "maxmemory-policy allkeys-lfu deletes keys; set" in failure.advice
        redis("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
        assert (await begin(conn))[0] == b"reset"
    redis("ACL", "SETUSER", "ada", "on", "nopass", "~*", "+@all", "-info")
    async with connected(redis.settings(user="ada"), must_keep=True) as conn:
        assert (await begin(conn))[0] == b"epoch"


HELLO: Final = b"%3\r\n+version\r\n+7.0.0\r\n+proto\r\n:3\r\n+id\r\n:1\r\n"
PUSH: Final = b">2\r\n+invalidate\r\n*1\r\n+a\r\n"
MOST_BYTES: Final = 200_000
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
async def strange_redis(
    handler: Callable[[trio.SocketStream], Awaitable[None]], **options: Any
) -> AsyncIterator[Redis]:
    """A connection to a server that is no Redis."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    url = "redis://127.0.0.1:{1}".format(*listener.socket.getsockname())
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_listeners, handler, [listener])
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
    async with strange_redis(serving, timeout_s=PATIENT_S) as redis:
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

    async with strange_redis(greet, timeout_s=0.2, must_keep=True) as redis:
        with pytest.raises(CallError, match=r"no answer within 0\.2 s"):
            await redis.meta(0, "v")
        with trio.fail_after(PATIENT_S):
            await closed.wait()
