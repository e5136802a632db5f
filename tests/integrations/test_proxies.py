"""Each configuration of docs/proxies.md, run by the real proxy in front of a real gateway."""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import pytest
from websockets.sync.client import connect

from liveness.lab.common.processes import free_port
from tests.helpers.needs import needs
from tests.helpers.pages import blocks, example
from tests.integrations.conftest import SOON_S, listening, silent_websocket
from tests.system.sidecar import Sidecar, eventually

PAGE: Final = "docs/proxies.md"
STREAM: Final = Path("/usr/lib/nginx/modules/ngx_stream_module.so")
TIMEOUT_S: Final = 2.0  # of the sidecar
TCP: Final = {"haproxy": "mode tcp", "nginx": "stream {"}
HTTP: Final = {"haproxy": "mode http", "nginx": "http {"}
# What sends a PROXY header, behind what of the page.
HEADERS: Final = [
    ("haproxy", " send-proxy", ":7000"),
    ("haproxy", " send-proxy-v2", ":7000"),
    ("nginx", " proxy_protocol on;", "proxy_timeout 2m;"),
]
SHORT: Final = "1s"  # of a proxy
GATEWAY: Final = ("-m", "liveness.lab.demo.gateway")
CHAT: Final = ("proto/integrations/websocket/chat.py", "--ping", "0.5")

pytestmark = [
    pytest.mark.long,
    needs("haproxy"),
    needs("nginx"),
    pytest.mark.skipif(
        not STREAM.exists(), reason="missing: apt install libnginx-mod-stream"
    ),
]
each_proxy = pytest.mark.parametrize("proxy", ["haproxy", "nginx"])

Edit = Callable[[str], str]


class User:
    """A user of the demo's gateway, on a TCP connection."""

    def __init__(self, port: int, uid: str) -> None:
        self.uid = uid
        self.stream = socket.create_connection(("127.0.0.1", port), timeout=SOON_S)
        self.lines = self.stream.makefile("rb")
        self.send(login=uid)
        self.until("joined")

    def send(self, **request: object) -> None:
        self.stream.sendall(json.dumps(request).encode() + b"\n")

    def until(self, key: str) -> Any:
        """The value in the next line with this key; None at the end of the connection."""
        for line in self.lines:
            if key in (content := json.loads(line)):
                return content[key]
        return None

    def close(self) -> None:
        self.lines.close()
        self.stream.close()


class Hosts:
    """A sidecar, gateways and proxies, and users behind these."""

    def __init__(self, sidecar: Sidecar, folder: Path, stack: ExitStack) -> None:
        self.sidecar = sidecar
        self.ports = dict[tuple[str, ...], int]()  # of gateways, by their command
        self._folder = folder
        self._stack = stack

    def gateway(self, *command: str) -> int:
        """The port of a gateway of this command."""
        if command not in self.ports:
            name = f"gw-{len(self.ports)}"
            options = ("--sidecar", str(self.sidecar.socket), "--name", name)
            running = listening(sys.executable, *command, *options)
            _, self.ports[command] = self._stack.enter_context(running)
        return self.ports[command]

    def proxy(
        self, program: str, has: dict[str, str], gateway: int, edit: Edit = str
    ) -> int:
        """Run the block of the page that has this; the port of the proxy."""
        port = free_port()
        (text,) = (text for text in blocks(PAGE, program) if has[program] in text)
        text = edit(text).replace("192.0.2.11:7000", f"127.0.0.1:{gateway}")
        text, count = re.subn(r"(bind |listen ):?9000", rf"\g<1>127.0.0.1:{port}", text)
        assert count == 1
        file = self._folder / f"{program}-{port}.conf"
        file.write_text(self._in_this_folder(text))
        command = ["haproxy", "-W", "-f", str(file)]
        if program == "nginx":
            own = f"daemon off; pid {file}.pid; load_module {STREAM};"
            command = ["nginx", "-e", "stderr", "-c", str(file), "-g", own]
        with (self._folder / f"{file.name}.log").open("wb") as log:
            process = subprocess.Popen(command, stderr=log, stdout=log)
        self._stack.callback(process.wait, SOON_S)
        self._stack.callback(process.terminate)
        said = Path(log.name).read_text
        eventually(lambda: is_listening(port), said)
        return port

    def _in_this_folder(self, text: str) -> str:
        """The places that nginx writes to by default are those of its service."""
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        places = "".join(f"{kind}_temp_path {self._folder};\n" for kind in kinds)
        return text.replace("http {\n", f"http {{\naccess_log off;\n{places}")

    def user(self, port: int, uid: str) -> User:
        return self._stack.enter_context(closing(User(port, uid)))

    def end_of(self, uid: str) -> str | None:
        """The reason of the user's offline; waits for it."""
        reasons = list[str | None]()

        def has_ended() -> bool:
            log = self.sidecar.log()
            reasons.extend(
                row.reason for row in log if row.uid == uid and row.kind == "offline"
            )
            return bool(reasons)

        eventually(has_ended)
        return reasons[0]


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    with Sidecar(tmp_path_factory.mktemp("s"), TIMEOUT_S, flush_s=0.1) as running:
        yield running.start()


@pytest.fixture
def hosts(sidecar: Sidecar, tmp_path: Path) -> Iterator[Hosts]:
    with ExitStack() as stack:
        yield Hosts(sidecar, tmp_path, stack)


def shorter(text: str) -> str:
    """A configuration with an idle timeout below that of the sidecar."""
    edited = text.replace(" 2m", f" {SHORT}")
    assert edited != text
    return edited


@each_proxy
def test_a_silent_user_ends_through_the_proxy(hosts: Hosts, proxy: str) -> None:
    port = hosts.proxy(proxy, TCP, hosts.gateway(*GATEWAY))
    silent = hosts.user(port, f"silent-{proxy}")
    assert silent.until("bye") == "silence"
    assert silent.until("more") is None  # and the proxy has closed the connection
    assert hosts.end_of(silent.uid) == "silence"


@each_proxy
def test_a_websocket_is_kept_by_pings(hosts: Hosts, proxy: str) -> None:
    gateway = hosts.gateway(*CHAT)
    port = hosts.proxy(proxy, HTTP, gateway)
    short = hosts.proxy(proxy, HTTP, gateway, shorter)
    uid = f"ws-{proxy}"
    with (
        connect(f"ws://127.0.0.1:{short}", ping_interval=None) as quiet,
        silent_websocket(port, uid) as silent,
    ):
        quiet.send(f"quiet-{proxy}")
        assert hosts.end_of(uid) == "silence"
        received = b"".join(iter(lambda: silent.recv(4096), b""))
        assert received.endswith((4000).to_bytes(2) + b"silence")
        quiet.send("still here")
        while "still here" not in str(quiet.recv(timeout=SOON_S)):
            pass


@pytest.mark.parametrize(("proxy", "option", "behind"), HEADERS)
def test_a_proxied_address_is_read(
    hosts: Hosts, proxy: str, option: str, behind: str
) -> None:
    namespace: dict[str, Any] = {}
    exec(example(PAGE, "def proxied_address"), namespace)
    with socket.create_server(("127.0.0.1", 0)) as gateway:
        gateway.settimeout(SOON_S)
        port = hosts.proxy(
            proxy,
            TCP,
            gateway.getsockname()[1],
            lambda text: text.replace(behind + " check", behind).replace(
                behind, behind + option
            ),
        )
        with socket.create_connection(("127.0.0.1", port)) as user:
            address = user.getsockname()
            user.sendall(b"hello")
            while True:  # the first is of the test that the proxy listens
                with gateway.accept()[0] as stream, stream.makefile("rb") as data:
                    if namespace["proxied_address"](data.read) == address:
                        assert data.read(5) == b"hello"
                        break
