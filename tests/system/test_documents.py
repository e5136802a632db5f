"""The programs and commands in the documents work, just as they are written."""

import inspect
import json
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from textwrap import indent
from typing import IO, Any, Final

import pytest
import trio

from liveness.lab.common.processes import free_port
from liveness.lab.compare.offline_lines import offline_in
from tests.helpers.needs import needs
from tests.helpers.pages import MANUAL, blocks, example
from tests.helpers.peer import listening, timer
from tests.helpers.processes import NO_SETTINGS, ran, succeeded
from tests.helpers.redis_servers import RedisServer
from tests.helpers.tree import ROOT
from tests.system.client import Client
from tests.system.sidecar import eventually

BIN: Final = Path(sys.executable).parent
PATIENCE_S: Final = 120
# Whole gateways, by what each has in it alone.
GATEWAYS: Final = [
    ("docs/gateway.md", "trio.serve_tcp"),
    ("docs/gateway.md", "start_server("),
    ("docs/gateway.md", "connect_sync("),
    ("docs/getting-started.md", "asyncio.run"),
]
# The server around the lines of the README, which stand in for `LINES`.
SERVER: Final = """
import asyncio, liveness

async def authenticate(reader):
    return (await reader.readline()).decode().strip()

async def main():
    writers = {}
LINES

asyncio.run(main())
"""
SHOWN: Final = blocks("docs/command-line.md", "sh")[0].splitlines()


class Started:
    """A command of the documents, running in the background."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def line_with(self, text: str) -> str:
        """The next line with this on its stderr."""
        return self._line(self.process.stderr, re.escape(text))

    def shows(self, pattern: str) -> str:
        """The next line that matches on its stdout."""
        return self._line(self.process.stdout, pattern)

    def _line(self, stream: IO[bytes] | None, pattern: str) -> str:
        assert stream is not None
        seen = ""
        while select.select([stream], [], [], PATIENCE_S)[0]:
            line = stream.readline().decode()
            if not line:
                break
            seen += line
            if re.search(pattern, line):
                return line
        raise AssertionError(f"no line with {pattern!r} in {seen!r}")

    def stop(self) -> None:
        """End it, and what it has begun."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        self.process.communicate(timeout=PATIENCE_S)


@contextmanager
def started(command: str, environ: dict[str, str]) -> Iterator[Started]:
    with subprocess.Popen(
        shlex.split(command),
        cwd=ROOT,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    ) as process:
        running = Started(process)
        try:
            yield running
        finally:
            if process.returncode is None:
                running.stop()


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A new user's shell after set-up, in places of its own."""
    chosen = {key: os.environ[key] for key in ("VENV", "PYTHON") if key in os.environ}
    return chosen | {
        "LIVENESS_CONFIG": str(NO_SETTINGS),
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "LIVENESS_SOCKET_PATH": str(tmp_path / "gateway.sock"),
        "LIVENESS_STATE_DIR": str(tmp_path / "state"),
        "LIVENESS_HTTP_ADDRESS": "127.0.0.1:0",
    }


def run(command: str, environ: dict[str, str]) -> str:
    return succeeded(ran(*shlex.split(command), cwd=ROOT, env=environ))


def strict_python(program: str) -> str:
    return f"python -W error -c {shlex.quote(program)}"


def command(begin: str) -> str:
    """The one line that begins so, behind `liveness`."""
    (found,) = (line for line in SHOWN if line.startswith(f"liveness {begin}"))
    return found


def test_every_python_example_is_run() -> None:
    """Below, or in tests/integrations/test_proxies.py and tests/system/test_kafka_outlet.py."""
    has = {page: len(blocks(page, "python")) for page in MANUAL}
    assert {page: count for page, count in has.items() if count} == {
        "README.md": 1,
        "docs/any-language.md": 1,
        "docs/cluster.md": 2,
        "docs/gateway.md": 5,
        "docs/getting-started.md": 1,
        "docs/kafka.md": 1,
        "docs/proxies.md": 1,
        "docs/shadow-mode.md": 1,
        "docs/testing.md": len(TESTS),
        "docs/timers.md": 1,
        "docs/webhooks.md": 1,
    }


@pytest.mark.parametrize(("page", "has"), GATEWAYS)
def test_a_gateway_closes_who_is_silent_or_elsewhere_and_nobody_else(
    page: str, has: str, environ: dict[str, str]
) -> None:
    check_gateway(example(page, has), environ)


def test_the_lines_of_the_readme_make_a_server_a_gateway(
    environ: dict[str, str],
) -> None:
    check_gateway(served(example("README.md", "sidecar.ended()")), environ)


def served(lines: str) -> str:
    """The lines of the README in a program that listens."""
    loop = "    async for end in"
    listen = "    await asyncio.start_server(serve, port=9000)\n"
    assert lines.count(loop) == 1
    lines = lines.replace(loop, listen + loop)
    return SERVER.replace("LINES", indent(lines, "    "))


def check_gateway(program: str, environ: dict[str, str]) -> None:
    with (
        gateway(program, environ) as port,
        person(port, b"ada\n") as older,
        person(port, b"eve\n") as eve,
    ):
        with person(port, b"\xff\0\n"), person(port, b"bob\n"):
            pass  # no uid, and a logout: neither may harm the others
        with speaking(older), person(port, b"ada\n") as newer, speaking(newer):
            assert closed(older), "ada is on a newer connection"
            assert closed(eve), "eve is silent"
            newer.settimeout(0)
            with pytest.raises(BlockingIOError):
                newer.recv(1)


@contextmanager
def gateway(program: str, environ: dict[str, str]) -> Iterator[str]:
    """Runs a program that listens on port 9000, as gw-1; the port that it has instead."""
    port = str(free_port())
    with started("liveness serve --timeout 1", environ) as sidecar:
        sidecar.line_with('"ready"')
        with started(strict_python(program.replace("9000", port)), environ):
            sidecar.line_with('"gw-1"')
            yield port


def closed(connection: socket.socket) -> bool:
    """Wait until the gateway closes it; one of them says why first."""
    while said := connection.recv(64):
        assert said.startswith(b"closed: ")
    return True


async def test_the_timers_of_the_manual_are_asked_for_and_done(
    environ: dict[str, str],
) -> None:
    program = strict_python(example("docs/timers.md", "sidecar.task"))
    async with listening(Path(environ["LIVENESS_SOCKET_PATH"])) as peer:
        with started(program, environ) as gateway:
            link = await peer.link()
            assert await link.next("after", "cancel") == ["cancel", {"key": "rate:7"}]
            (_, key, _seconds, options) = await link.next("after")
            await link.fire(timer(1, key, link.hello["name"], **options))
            assert (await link.next("done"))[1:] == ["rate:8", None, {"seq": 1}]
            assert gateway.process.stdout is not None
            assert gateway.process.stdout.readline() == b"bob, how was rate:8?\n"


def test_the_reader_of_the_manual_asks_and_is_told_who_goes(
    environ: dict[str, str],
) -> None:
    program = strict_python(example("docs/gateway.md", "liveness.watch(name="))
    with (
        started("liveness serve --timeout 1", environ) as sidecar,
        started(program, environ | {"PYTHONUNBUFFERED": "1"}) as reader,
    ):
        sidecar.line_with('"mailer"')
        reader.shows("online: set()")
        with Client(Path(environ["LIVENESS_SOCKET_PATH"])) as gateway:
            gateway.hello("gw-1")
            gateway.send("login", "eve")
            reader.shows("eve is offline")


def test_a_reader_of_all_hosts_and_a_router_are_told_where_a_gateways_user_is(
    environ: dict[str, str], redis: RedisServer
) -> None:
    program = example("docs/gateway.md", "liveness.watch(cluster=")
    reads = strict_python(program.replace("redis.internal:6379", redis.address))
    users = strict_python(example("docs/cluster.md", "sidecar.login"))
    router = strict_python(example("docs/cluster.md", "watch.anywhere"))
    environ |= {"LIVENESS_CLUSTER_URL": redis.url, "LIVENESS_CLUSTER_HOST": "a"}
    with (
        started(command("serve"), environ) as sidecar,
        started(reads, environ | {"PYTHONUNBUFFERED": "1"}) as reader,
    ):
        sidecar.line_with('"following"')
        reader.shows("online: set()")
        with started(f"{users} ada", environ):
            reader.shows("online .*'uid': 'ada'")
            watch = run(command("watch --cluster"), environ)
            assert re.search("online +ada +gw-1 on a", watch)
            assert re.search(
                "^a +live +1 ", run(command("cluster status"), environ), re.M
            )
            assert run(router, environ) == "ada is on a through gw-1\n"


def test_the_receiver_of_the_manual_gets_what_is_signed_with_its_secret(
    environ: dict[str, str], tmp_path: Path
) -> None:
    """A receiver with another secret refuses it; then it is a dead letter."""
    page, port = "docs/webhooks.md", str(free_port())
    program = strict_python(example(page, "http.server").replace("8000", port))
    (text,) = (block for block in blocks(page, "toml") if "8000" in block)
    secret = re.findall("whsec_[^ $`]+", (ROOT / page).read_text())[0]
    (tmp_path / "try.secret").touch(0o600)
    (tmp_path / "try.secret").write_text(secret)
    config = tmp_path / "liveness.toml"
    text = text.replace("/etc/liveness/try.secret", f"{tmp_path}/try.secret")
    config.write_text(text.replace("8000", port))
    environ |= {"LIVENESS_CONFIG": str(config)}

    @contextmanager
    def receiver(secret: str) -> Iterator[Started]:
        with started(program, environ | {"SECRET": secret}) as running:
            with connected(port):
                pass  # it listens
            yield running

    with ExitStack() as stack:
        sidecar = stack.enter_context(started("liveness serve", environ))
        sidecar.line_with('"ready"')
        gateway = stack.enter_context(linked(environ, "gw-1"))
        with receiver(secret) as running:
            gateway.send("login", ["ada", 7])
            running.shows("^liveness.online ada$")
            running.shows("^liveness.online 7$")
            shown = run("liveness webhooks test try", environ)
            assert re.match("try: accepted: status 204 after", shown)
            running.shows("^liveness.test None$")
        with receiver(f"whsec_{'A' * 32}"):
            gateway.send("logout", "ada")
            sidecar.line_with('"a webhook failed; it is tried again"')
        shown = run("liveness status", environ)
        assert re.search("webhooks.try +retrying.+ 401", shown)
        with receiver(secret) as running:
            running.shows("^liveness.offline ada$")


TESTS: Final = blocks("docs/testing.md", "python")


@pytest.mark.parametrize("number", range(len(TESTS)))
async def test_the_tests_of_the_manual_pass(number: int) -> None:
    names: dict[str, Any] = {}
    exec(TESTS[number], names)
    (written,) = (names[name] for name in names if name.startswith("test_"))
    if inspect.iscoroutinefunction(written):
        await written()
    else:
        await trio.to_thread.run_sync(written)


@needs("redis-cli", "redis-server")
def test_the_lines_of_shadow_mode_are_made_of_what_redis_says(
    environ: dict[str, str], redis: RedisServer
) -> None:
    cli = f"redis-cli -s {redis.unix_socket}"
    (shown,) = re.findall(
        r"^\$ (redis-cli psub.+) > theirs", MANUAL["docs/shadow-mode.md"], re.M
    )
    program = strict_python(example("docs/shadow-mode.md", "redis-cli psubscribe"))
    shown = shown.replace("redis-cli", cli).replace("python lines.py", program)
    run(f"{cli} config set notify-keyspace-events Ex", environ)
    began_ms = datetime.now(UTC).timestamp() * 1000 // 1
    with started(f"sh -c {shlex.quote(shown)}", environ) as lines:
        stdout = lines.process.stdout
        assert stdout is not None

        def has_line() -> bool:
            for key in ("other:bob", "online:ada"):
                run(f"{cli} set {key} gw-1 px 20", environ)
            return bool(select.select([stdout], [], [], 0.1)[0])

        eventually(has_line, within_s=PATIENCE_S)
        uid, at_ms = offline_in(stdout.readline())
    assert uid == "ada"
    assert began_ms <= at_ms <= datetime.now(UTC).timestamp() * 1000 + 1


def connected(port: str) -> socket.socket:
    """A connection, from the moment that somebody listens."""
    found: list[socket.socket] = []

    def is_there() -> bool:
        with suppress(ConnectionRefusedError):
            found.append(socket.create_connection(("localhost", port), PATIENCE_S))
        return bool(found)

    eventually(is_there, within_s=PATIENCE_S)
    return found[0]


@contextmanager
def person(port: str, line: bytes) -> Iterator[socket.socket]:
    """A user of the gateway, from the moment it listens."""
    with connected(port) as connection:
        connection.sendall(line)
        yield connection


@contextmanager
def speaking(connection: socket.socket) -> Iterator[None]:
    """Lets a user say something four times a second."""
    is_over = threading.Event()

    def speak() -> None:
        with suppress(OSError):  # closed by the gateway
            while not is_over.wait(0.25):
                connection.sendall(b"hi\n")

    thread = threading.Thread(target=speak)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_the_python_example_is_told_of_a_silent_user(environ: dict[str, str]) -> None:
    raw = example("docs/any-language.md", "msgpack")
    serve = "liveness serve --timeout 1"
    with started(serve, environ) as sidecar:
        sidecar.line_with('"ready"')
        told = run(f"python -c {shlex.quote(raw)}", environ)
    assert [line.split()[0] for line in told.splitlines()] == ["welcome", "notices"]
    assert "'uid': 'ada'" in told
    assert "'reason': 'silence'" in told


def test_the_commands_shown_do_what_the_manual_says(environ: dict[str, str]) -> None:
    assert run(command("version"), environ).startswith("liveness ")
    assert "timeout_s = 30" in run(command("check-config"), environ)
    with started(command("serve"), environ) as sidecar:
        sidecar.line_with('"ready"')
        assert re.search(r"^ready +yes$", run(command("status"), environ), re.M)
        with started(command("watch --count"), environ) as watch:
            with linked(environ, "gw-1") as gateway:
                sidecar.line_with('"watcher"')
                gateway.send("login", "ada")
                stdout = watch.process.communicate(timeout=PATIENCE_S)[0]
            record = json.loads(stdout)
            assert (record["kind"], record["uid"]) == ("online", "ada")
            assert watch.process.returncode == 0
        with linked(environ, "gw-1") as gateway:
            gateway.apply("after", "order:17", 3_600)
            for line in SHOWN:
                if line.startswith("liveness timers"):
                    assert "order:17" in run(line, environ)


@contextmanager
def linked(environ: dict[str, str], name: str) -> Iterator[Client]:
    with Client(Path(environ["LIVENESS_SOCKET_PATH"])) as link:
        link.hello(name)
        yield link


def test_the_tutorial_goes_as_it_says(environ: dict[str, str], tmp_path: Path) -> None:
    """With a timeout of a second, and a port of its own."""
    port = str(free_port())
    page = "docs/getting-started.md"
    demo, path, serve, chat, watch, *_ = blocks(page, "sh")
    typed = "".join(blocks(page, "console"))
    explain, history = re.findall(r"^\$ (liveness .*)", typed, re.M)
    assert "$ nc 127.0.0.1 9000\nada\n" in typed
    assert (demo, path) == ("make demo\n", 'export PATH="$PWD/.venv/bin:$PATH"\n')
    assert chat == "python chat.py\n"
    assert serve == "liveness serve --timeout 10\n"
    serve = serve.replace("10", "1")
    chat = f"python {tmp_path / 'chat.py'}"
    program = example(page, "asyncio").replace("9000", port)
    (tmp_path / "chat.py").write_text(program)
    with ExitStack() as stack:
        sidecar = stack.enter_context(started(serve, environ))
        sidecar.line_with('"ready"')
        watching = stack.enter_context(started(watch, environ))
        sidecar.line_with('"watcher"')
        stack.enter_context(started(chat, environ))
        sidecar.line_with('"gw-1"')
        with person(port, b"ada\n") as ada:
            assert ada.recv(64) == b"closed: silence\n"
        watching.shows("online   ada  gw-1  login  seq 1$")
        watching.shows(r"offline  ada  gw-1  silence  1\.\d+ s since login  seq 2$")
        told = run(explain, environ)
        assert re.match(
            r"offline at .* after 1\.\d s of silence; last heard: login", told
        )
        assert len(run(history, environ).splitlines()) == 2
