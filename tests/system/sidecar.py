"""The sidecar as an operator has it: a process, its log, its metrics, its database."""

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from time import perf_counter
from typing import Any, Final, Self

from prometheus_client.parser import text_string_to_metric_families

from liveness.config.settings import SETTINGS
from liveness.config.sources import RESERVED
from liveness.core.records import Record
from tests.helpers import disk
from tests.helpers.processes import environment
from tests.helpers.tree import ROOT
from tests.system.client import Client

READY_S: Final = 300.0
SOON_S: Final = 120.0
POLL_S: Final = 0.005  # between two questions; the other tests need the processor, too

Line = dict[str, Any]

KNOWN: Final = {setting.variable for setting in SETTINGS} | RESERVED

_never: Final = threading.Event()


def _variable(name: str) -> str:
    return f"LIVENESS_{name.upper()}"


def eventually(
    is_so: Callable[[], bool],
    otherwise: Callable[[], str] = lambda: "it never was so",
    within_s: float = SOON_S,
) -> None:
    """Asks until it is so; fails with *otherwise*."""
    until = perf_counter() + within_s
    while not is_so():
        assert perf_counter() < until, otherwise()
        _never.wait(POLL_S)


class Sidecar:
    """A folder with socket and state, and the process that serves there.

    Args:
        folder: An empty folder of its own.
        timeout_s: `--timeout`.
        settings: Other settings, by their names in TOML with `_` for the dot
            (`limits_window=100`), and limits that no setting sets.
    """

    def __init__(self, folder: Path, timeout_s: float = 60, **settings: object) -> None:
        self.folder = folder
        self.socket = folder / "gateway.sock"
        self.admin = folder / "admin.sock"
        self.http = "127.0.0.1:0"  # its `--http`
        self.state = folder / "state"
        self.database = self.state / "liveness.db"
        self.timers = self.state / "timers.db"
        self.timeout_s = timeout_s
        self.settings = settings
        self.under: list[str] = []  # a command that execs the sidecar's
        self.program = [sys.executable, "-m", "liveness"]
        self.root = ROOT  # the project whose package that is
        self.lines: list[Line] = []
        self._said = threading.Condition()
        self._reader: threading.Thread | None = None
        self._process: subprocess.Popen[str] | None = None
        self._clients: list[Client] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._hang_up()
        if self._process is not None:
            self.kill()

    # --- the process ----------------------------------------------------------

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None, "not started"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    def launch(self, timeout_s: float | None = None, **settings: object) -> None:
        """Starts the process, with other settings if any are named; waits for nothing."""
        assert self._process is None, "still running"
        self.timeout_s = timeout_s or self.timeout_s
        self.settings |= settings
        self.lines = []
        self._hang_up()
        self._process = subprocess.Popen(
            self.command(),
            cwd=self.root,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read_log, args=[self._process])
        self._reader.start()

    def start(self, timeout_s: float | None = None, **settings: object) -> Self:
        """Starts the process and waits until it is ready."""
        self.launch(timeout_s, **settings)
        self.line("ready", within_s=READY_S)
        return self

    def command(self) -> list[str]:
        serve = [*self.under, *self.program]
        limits = {k: v for k, v in self.settings.items() if _variable(k) not in KNOWN}
        if limits:
            serve[-1] = "tests.system.other_limits"
            serve.append(json.dumps(limits))
        serve.append("serve")
        serve += ["--http", self.http, "--timeout", str(self.timeout_s)]
        return [*serve, "--socket", str(self.socket), "--state", str(self.state)]

    def environment(self) -> dict[str, str]:
        """Ours, with these settings of the sidecar and no others."""
        settings = {_variable(k): str(v) for k, v in self.settings.items()}
        return environment(**{k: v for k, v in settings.items() if k in KNOWN})

    def stop(self, number: int = signal.SIGTERM, within_s: float = SOON_S) -> int:
        """Asks it to stop, and has its links leave; its exit code."""
        self.signal(number)
        for client in self._clients:
            client.leave()
        return self.ended(within_s)

    def kill(self) -> None:
        """Ends it as a crash would."""
        self.process.kill()
        self.ended()

    def ended(self, within_s: float = SOON_S) -> int:
        """Waits for its end; its exit code."""
        code = self.process.wait(within_s)
        assert self._reader is not None
        self._reader.join(SOON_S)
        assert self.process.stderr is not None
        self.process.stderr.close()
        self._process = None
        return code

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    # --- what it takes of the machine ------------------------------------------

    @property
    def rss_bytes(self) -> int:
        """Its memory."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("\nVmRSS:")[2].split()[0]) * 1024

    # --- its log --------------------------------------------------------------

    def line(self, event: str, within_s: float = SOON_S, **fields: object) -> Line:
        """Waits for a line of the log with these fields; the newest one."""

        def found() -> Line | None:
            for line in reversed(self.lines):
                if line.items() >= {"event": event, **fields}.items():
                    return line
            return None

        with self._said:
            self._said.wait_for(lambda: found() or self._is_silenced(), within_s)
            line = found()
            assert line is not None, (event, fields, self.lines)
            return line

    def _is_silenced(self) -> bool:
        return bool(self.lines) and self.lines[-1] == _END

    def _read_log(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for text in process.stderr:
            line = json.loads(text) if text.startswith("{") else {"text": text}
            self._add(line)
        self._add(_END)

    def _add(self, line: Line) -> None:
        with self._said:
            self.lines.append(line)
            self._said.notify_all()

    # --- links ----------------------------------------------------------------

    def connect(self) -> Client:
        """A link without a hello; closed before the next start, or at the end."""
        client = Client(self.socket)
        self._clients.append(client)
        return client

    def gateway(self, name: str, **hello: Any) -> Client:
        """A gateway that was welcomed."""
        client = self.connect()
        client.hello(name, **hello)
        return client

    def watcher(self, name: str = "watcher", **hello: Any) -> Client:
        """A watcher of everything, without a stored cursor unless asked for."""
        return self.gateway(
            name, **{"role": "watcher", "scope": "all", "ack": False, **hello}
        )

    def _hang_up(self) -> None:
        while self._clients:
            self._clients.pop().close()

    # --- HTTP and disk --------------------------------------------------------

    def get(self, path: str, *, admin: bool = False) -> tuple[int, str]:
        """Gets a page by TCP, or by `admin.sock`; status and body."""
        response, body = self.ask("admin" if admin else "http", "GET", path)
        return response.status, body.decode()

    def ask(
        self,
        door: str,
        method: str,
        path: str,
        body: bytes | None = None,
        **headers: str,
    ) -> tuple[HTTPResponse, bytes]:
        """One request by `http` or `admin`; the response and its body."""
        host, port = self.line("ready")["http"].rsplit(":", 1)
        connection = HTTPConnection(host, int(port), timeout=SOON_S)
        if door == "admin":
            connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.sock.settimeout(SOON_S)
            connection.sock.connect(str(self.admin))
        with closing(connection):
            headers = {"connection": "close", **headers}
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response, response.read()

    def metric(self, name: str, **labels: str) -> float:
        """One sample of `/metrics`; 0 if there is none with these labels."""
        _, text = self.get("/metrics")
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return sample.value
        return 0.0

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Reads the log over a connection of its own."""
        return disk.rows(self.database, sql, *values)

    def timer_rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Reads the timers' table over a connection of its own."""
        return disk.rows(self.timers, sql, *values)

    def log(self) -> list[Record]:
        """The log's records of users, read over a connection of its own."""
        return disk.log(self.database)


_END: Final[Line] = {"event": "end of the log"}
