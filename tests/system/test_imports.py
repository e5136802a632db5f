"""A running sidecar imports nothing later: an upgrade replaces the files."""

import signal
import sys
from pathlib import Path
from typing import Final

from tests.system.sidecar import Sidecar, eventually
from tests.system.test_rereading import READ

# Python runs it before the program; each module that is looked for is a line.
HOOK: Final = """
import sys

told = open({told!r}, "a", buffering=1)
sys.addaudithook(lambda event, its: event == "import" and print(its[0], file=told))
"""
PAGES: Final = (
    *("/", "/page/live.js", "/metrics", "/healthz", "/readyz", "/v1/wheel"),
    "/v1/users",
    *("/v1/users/ada", "/v1/timers", "/v1/timers/none", "/v1/gateways"),
    *("/nothing", "/v1/users/%ff", "/v1/feed?after=none"),
)


class Watched(Sidecar):
    """One that tells which modules it looks for."""

    @property
    def told(self) -> Path:
        return self.folder / "imports"

    def environment(self) -> dict[str, str]:
        (self.folder / "sitecustomize.py").write_text(HOOK.format(told=str(self.told)))
        return super().environment() | {"PYTHONPATH": str(self.folder)}

    def imports(self) -> list[str]:
        """Modules, without those of Python itself, which no upgrade of ours touches."""
        names = self.told.read_text().splitlines()
        known = sys.stdlib_module_names
        return [name for name in names if name.partition(".")[0] not in known]


OUTLETS: Final = """
[webhooks.plain]
url = "http://localhost:1"
secret_file = "{secret}"
[webhooks.tls]
url = "https://localhost:1"
secret_file = "{secret}"
[kafka.bus]
brokers = "localhost:1"
topic = "t"
"""


def test_nothing_is_imported_once_it_serves(tmp_path: Path) -> None:
    path, secret = tmp_path / "settings.toml", tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text(f"whsec_{'A' * 32}")
    path.write_text(OUTLETS.format(secret=secret))
    with Watched(tmp_path, config=path, timeout_s=1, flush_s=0.1) as sidecar:
        sidecar.start()
        sidecar.line("ready")
        before = sidecar.imports()
        assert {"liveness.service.app", "h11", "confluent_kafka"} <= {*before}
        gateway, watcher = sidecar.gateway("gw-1"), sidecar.watcher()
        gateway.send("login", "ada")
        gateway.send("after", "key", 0.1)
        watcher.take(3)
        for door in ("http", "admin"):
            for page in PAGES:
                assert sidecar.ask(door, "GET", page)[0].status in (200, 400, 404)
        accept = "application/openmetrics-text; version=1.0.0"
        assert sidecar.ask("http", "GET", "/metrics", accept=accept)[0].status == 200
        forget = b'{"role": "gateway", "name": "none"}'
        asked = sidecar.ask("admin", "POST", "/v1/gateways/forget", forget)
        assert asked[0].status == 404
        sidecar.signal(signal.SIGHUP)
        sidecar.line(READ)
        eventually(lambda: sidecar.get("/v1/wheel")[1].count('"retrying"') == 3)
        assert sidecar.stop() == 0
        assert sidecar.imports() == before
