"""The documents are a contract: they name what exists, and what they show works.

Names are taken from the running product: a real sidecar's metrics, the command line's
own help, the settings' one definition. The README's commands and code are run as they
are written.
"""

import json
import os
import re
import select
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import MISSING
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import msgpack
import pytest
from prometheus_client.parser import text_string_to_metric_families

from liveness.bench.redis import RedisServer
from liveness.build import PURE_WHEEL
from liveness.config import SETTINGS, Setting
from liveness.metrics import HttpRefusal
from liveness.offlines import offline_in
from liveness.sources import FILE_VARIABLE
from tests.peer import listening, timer

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BIN = Path(sys.executable).parent
PATIENCE_S = 20
GROUPS = ["timers", "gateways", "guard"]  # commands that have commands of their own
GATEWAYS = [
    "trio.serve_tcp",
    "asyncio.run",
    "connect_sync(",
]  # what each has in it alone


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.M | re.S)


def section(title: str) -> str:
    return re.split(r"^## ", README.split(f"\n## {title}\n")[1], flags=re.M)[0]


def rows(title: str) -> list[list[str]]:
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


class Started:
    """A command of the README, running in the background."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def line_with(self, text: str) -> str:
        assert self.process.stderr is not None
        seen = b""
        while select.select([self.process.stderr], [], [], PATIENCE_S)[0]:
            line = self.process.stderr.readline()
            if not line:
                break
            seen += line
            if text in line.decode():
                return line.decode()
        raise AssertionError(f"no line with {text!r} in {seen.decode()!r}")


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
        try:
            yield Started(process)
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A new user's shell after set-up, in places of its own."""
    chosen = {key: os.environ[key] for key in ("VENV", "PYTHON") if key in os.environ}
    return chosen | {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "LIVENESS_SOCKET_PATH": str(tmp_path / "gateway.sock"),
        "LIVENESS_STATE_DIR": str(tmp_path / "state"),
        "LIVENESS_HTTP_ADDRESS": "127.0.0.1:0",
    }


def run(command: str, environ: dict[str, str]) -> str:
    done = subprocess.run(
        shlex.split(command),
        cwd=ROOT,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def commands() -> list[str]:
    return [line for line in blocks("sh")[1].splitlines() if line]


def command(name: str) -> str:
    (found,) = (line for line in commands() if line.split()[1] == name)
    return found


def example(text: str) -> str:
    """The one Python example that has this in it."""
    (found,) = (block for block in blocks("python") if text in block)
    return found


def test_every_python_example_is_run_below() -> None:
    assert len(blocks("python")) == len(GATEWAYS) + 4


@pytest.mark.parametrize("face", GATEWAYS)
def test_a_gateway_of_the_readme_closes_who_is_silent_or_elsewhere_and_nobody_else(
    face: str, environ: dict[str, str]
) -> None:
    port = str(free_port())
    gateway = example(face).replace("9000", port)
    with started("liveness serve --timeout 1", environ) as sidecar:
        sidecar.line_with('"ready"')
        with started(f"python -W error -c {shlex.quote(gateway)}", environ):
            sidecar.line_with('"gw-1"')
            with person(port, b"ada\n") as older, person(port, b"eve\n") as eve:
                with person(port, b"\xff\0\n"), person(port, b"bob\n"):
                    pass  # no uid, and a logout: neither may harm the others
                with (
                    speaking(older),
                    person(port, b"ada\n") as newer,
                    speaking(newer),
                ):
                    assert older.recv(1) == b"", "ada is on a newer connection"
                    assert eve.recv(1) == b"", "eve is silent"
                    newer.settimeout(0)
                    with pytest.raises(BlockingIOError):
                        newer.recv(1)


async def test_the_timers_of_the_readme_are_asked_for_and_done(
    environ: dict[str, str],
) -> None:
    program = f"python -W error -c {shlex.quote(example('sidecar.task'))}"
    async with listening(Path(environ["LIVENESS_SOCKET_PATH"])) as peer:
        with started(program, environ) as gateway:
            link = await peer.link()
            assert await link.next("after", "cancel") == ["cancel", {"key": "rate:7"}]
            (_, key, _seconds, options) = await link.next("after")
            await link.fire(timer(1, key, link.hello["name"], **options))
            assert (await link.next("done"))[1:] == ["rate:8", None, {"seq": 1}]
            assert gateway.process.stdout is not None
            assert gateway.process.stdout.readline() == b"bob, how was rate:8?\n"


async def test_the_test_of_the_readme_passes() -> None:
    names: dict[str, Any] = {}
    exec(example("liveness.testing"), names)
    (written,) = (one for name, one in names.items() if name.startswith("test_"))
    await written()


@pytest.mark.skipif(not shutil.which("redis-cli"), reason="no redis here")
def test_the_lines_of_the_readme_are_made_of_what_redis_says(tmp_path: Path) -> None:
    server, began_ms = RedisServer(tmp_path), datetime.now(UTC).timestamp() * 1000 // 1
    server.start()
    cli = ["redis-cli", "-s", str(server.socket)]
    program = [sys.executable, "-W", "error", "-c", example("redis-cli psubscribe")]
    try:
        with (
            subprocess.Popen(
                [*cli, "psubscribe", "__keyevent@*__:expired"], stdout=subprocess.PIPE
            ) as told,
            subprocess.Popen(
                program, stdin=told.stdout, stdout=subprocess.PIPE
            ) as lines,
        ):
            assert lines.stdout is not None
            until = time.perf_counter() + PATIENCE_S
            while not select.select([lines.stdout], [], [], 0.1)[0]:  # once it listens
                assert time.perf_counter() < until
                for key in ("other:bob", "online:ada"):
                    subprocess.run([*cli, "set", key, "gw-1", "px", "20"], check=True)
            line = lines.stdout.readline()
            told.terminate()
            lines.stdout.read()
    finally:
        server.stop()
    uid, at_ms = offline_in(line)
    assert uid == "ada"
    assert began_ms <= at_ms <= datetime.now(UTC).timestamp() * 1000 + 1


def free_port() -> int:
    with socket.create_server(("localhost", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def person(port: str, line: bytes) -> Iterator[socket.socket]:
    """A user of the gateway, from the moment it listens."""
    until = time.perf_counter() + PATIENCE_S
    while True:
        try:
            connection = socket.create_connection(("localhost", port), PATIENCE_S)
            break
        except ConnectionRefusedError:
            assert time.perf_counter() < until
    with connection:
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
    raw = example("msgpack")
    serve = "liveness serve --timeout 1"
    with started(serve, environ) as sidecar:
        sidecar.line_with('"ready"')
        told = subprocess.run(
            [sys.executable, "-c", raw],
            env=environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        ).stdout
    assert [line.split()[0] for line in told.splitlines()] == ["welcome", "notices"]
    assert "'uid': 'ada'" in told
    assert "'reason': 'silence'" in told


def test_the_commands_of_the_readme_do_what_it_says(environ: dict[str, str]) -> None:
    assert run(command("version"), environ).startswith("liveness ")
    assert "timeout_s = 30" in run(command("check-config"), environ)
    with started(command("serve"), environ) as sidecar:
        sidecar.line_with('"ready"')
        assert re.search(r"^ready +yes$", run(command("status"), environ), re.M)
        with started(command("watch"), environ) as watch:
            with linked(environ, "gw-1") as gateway:
                sidecar.line_with('"watcher"')
                gateway.sendall(msgpack.packb(["login", "ada"]))
                stdout = watch.process.communicate(timeout=PATIENCE_S)[0]
            record = json.loads(stdout)
            assert (record["kind"], record["uid"]) == ("online", "ada")
            assert watch.process.returncode == 0
        with linked(environ, "gw-1") as gateway:
            gateway.sendall(msgpack.packb(["after", "order:17", 3_600]))
            gateway.sendall(msgpack.packb(["ping"]))
            assert gateway.recv(65_536)  # so it is on disk
            for line in commands():
                if line.startswith("liveness timers"):
                    assert "order:17" in run(line, environ)


def test_make_serve_runs_the_sidecar(environ: dict[str, str]) -> None:
    with started("make serve", environ) as sidecar:
        ready = json.loads(sidecar.line_with('"ready"'))
        with urllib.request.urlopen(f"http://{ready['http']}/readyz") as answer:
            assert json.load(answer) == {"ready": True, "why": []}


@pytest.mark.slow
@pytest.mark.parametrize("line", ["make demo", command("demo")])
def test_the_demo_of_the_readme_ends_well(line: str, environ: dict[str, str]) -> None:
    done = subprocess.run(
        shlex.split(line),
        cwd=ROOT,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def linked(environ: dict[str, str], name: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(PATIENCE_S)
        link.connect(environ["LIVENESS_SOCKET_PATH"])
        link.sendall(msgpack.packb(["hello", {"protocol": 1, "name": name}]))
        assert link.recv(65536)
        yield link


# By label: what is not known at first. A family without samples tells no labels.
AT_FIRST_UNKNOWN = {"liveness_gateway_interval_seconds": ["gateway"]}


def exposed(environ: dict[str, str]) -> set[str]:
    """Every metric of a running sidecar that has seen a gateway, with its labels."""
    with started("liveness serve", environ) as sidecar:
        ready = json.loads(sidecar.line_with('"ready"'))
        with linked(environ, "gw-1"):
            address = f"http://{ready['http']}/metrics"
            text = urllib.request.urlopen(address).read().decode()
    names = set()
    for family in text_string_to_metric_families(text):
        if not family.name.startswith("liveness_"):
            continue
        suffix = {"counter": "_total"}.get(family.type, "")
        labels = dict.fromkeys(
            label for one in family.samples for label in one.labels if label != "le"
        ) or AT_FIRST_UNKNOWN.get(family.name, [])
        names.add(family.name + suffix + (f"{{{','.join(labels)}}}" if labels else ""))
    return names


def test_the_metrics_table_names_exactly_what_is_exposed(
    environ: dict[str, str],
) -> None:
    documented = {row[0].strip("`") for row in rows("Metrics")}
    assert documented == exposed(environ)
    mentioned = set(re.findall(r"liveness_\w+", README))
    assert mentioned == {re.sub(r"\{.*", "", name) for name in documented}


def shown(setting: Setting) -> str:
    """A setting's default, as TOML has it without quotes."""
    default = setting.default
    if default is MISSING:
        return "see below"
    text = str(default).lower() if isinstance(default, bool) else str(default)
    return "none" if default in (None, "") else f"`{text}`"


def test_the_settings_table_is_the_settings() -> None:
    expected = [
        [
            f"`{setting.name}`",
            f"`{setting.variable}`",
            shown(setting),
            setting.allowed,
            setting.meaning + (f" (`{setting.flag}`)" if setting.flag else ""),
        ]
        for setting in SETTINGS
    ]
    assert rows("Settings") == expected


def test_the_reasons_to_refuse_http_are_those_that_are_counted() -> None:
    told = [name for row in rows("HTTP") for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(told) == sorted(HttpRefusal)


def test_what_is_said_to_show_that_a_threat_is_met_is_a_test() -> None:
    tables = [row for row in rows("Security") if len(row) == 4]
    assert tables[0][3] == "shown by"
    assert len(tables) > 15
    for row in tables[2:]:
        tests = re.findall(r"`(tests/[^`:]+)::([a-z0-9_]+)`", row[3])
        assert tests, row
        for path, name in tests:
            text = (ROOT / path).read_text()
            assert re.search(rf"^(async )?def {name}\(", text, re.M), (path, name)


def test_the_rights_are_those_of_the_settings() -> None:
    told = [row[0].strip("`") for row in rows("Security") if len(row) == 2]
    assert told == [one.name for one in SETTINGS if one.section == "access"]


def test_the_readme_names_every_command_and_no_other(environ: dict[str, str]) -> None:
    known = set(
        re.findall(r"^│ ([a-z][a-z-]*) ", run("liveness --help", environ), re.M)
    )
    assert {line.split()[1] for line in commands()} == known
    assert set(re.findall(r"liveness ([a-z-]+)\b", inline())) <= known


def inline() -> str:
    return "\n".join(re.findall(r"`([^`\n]+)`", README))


def flags(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))


def words(line: str) -> str:
    """The names of a command, and of its own command where it has some."""
    return " ".join(line.split()[1 : 3 if line.split()[1] in GROUPS else 2])


@pytest.mark.parametrize("group", GROUPS)
def test_the_readme_names_every_command_of_a_group(
    group: str, environ: dict[str, str]
) -> None:
    known = set(re.findall(r"^│ ([a-z]+) ", run(f"liveness {group}", environ), re.M))
    assert {line.split()[2] for line in commands() if line.split()[1] == group} == known
    assert set(re.findall(rf"\bliveness {group} ([a-z]+)\b", inline())) <= known


def test_every_flag_in_the_readme_exists(environ: dict[str, str]) -> None:
    known = {
        name: flags(run(f"liveness {name} --help", environ))
        for name in set(map(words, commands()))
    }
    for line in commands():
        assert flags(line) <= known[words(line)], line
    assert flags(inline()) <= {"--help"}.union(*known.values())


def test_every_variable_in_the_readme_exists() -> None:
    known = {setting.variable for setting in SETTINGS} | {FILE_VARIABLE, PURE_WHEEL}
    assert set(re.findall(r"LIVENESS_[A-Z_]+", README)) == known


def test_every_make_target_in_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake ([a-z]+)\b", README):
        if f"`make {target}" in README or f"\nmake {target}" in README:
            assert re.search(rf"^{target}:", makefile, re.M), target


def test_the_record_shown_is_a_record() -> None:
    schema: dict[str, Any] = json.loads((ROOT / "proto/record.schema.json").read_text())
    (shown,) = blocks("json")
    jsonschema.validate(json.loads(shown), schema)


def test_every_file_the_readme_links_to_is_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", README):
        assert (ROOT / target).exists(), target


def test_the_limits_are_those_in_force() -> None:
    limits = section("Limits")
    by_name = {setting.name: setting.default for setting in SETTINGS}
    for name, shown in {
        "limits.max_frame_bytes": f"{by_name['limits.max_frame_bytes'] >> 20} MiB",
        "limits.max_batch": "{:,} uids",
        "limits.hello_s": "{:.0f} s for its hello",
        "limits.window": "{:,} records in flight",
        "limits.max_replies": "{:,} replies",
        "limits.max_refused": "{:,} refused frames",
        "limits.max_links": "{:,} links",
        "limits.max_names": "{:,} names",
        "limits.pause_firing": "At {:,} offlines",
        "limits.pause_reading": "at {:,} records sockets",
        "timers.max_pending": "of {:,} orders",
        "http.max_connections": "{:,} connections",
        "http.request_s": "A request has {:.0f} s to come whole",
        "http.max_header_bytes": f"{by_name['http.max_header_bytes'] >> 10} KiB",
        "http.max_body_bytes": f"{by_name['http.max_body_bytes'] >> 10} KiB",
    }.items():
        assert shown.format(by_name[name]) in limits, name
