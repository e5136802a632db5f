"""The MQTT broker, with a real sidecar and real MQTT clients."""

import json
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

import pytest

from tests.helpers.needs import needs
from tests.helpers.processes import environment, ran, succeeded
from tests.helpers.tree import ROOT
from tests.system.sidecar import SOON_S, Sidecar, eventually

pytestmark = [
    pytest.mark.long,
    needs("npm"),
    needs("node", "nodejs"),
]

# Each of the two is copied to where the other expects it.
PACKAGES: Final = ("clients/node", "integrations/mqtt")
HALF: Final = 25  # of the clients
KEEPALIVE_S: Final = 2
TIMEOUT_S: Final = 4.0  # that the broker gives clients of this keepalive interval
FLUSH_S: Final = 0.1
INSTALL: Final = ("npm", "install", "--install-links", "--no-package-lock")


class Program:
    """A program of Node, driven by its standard input; it prints a line for each event."""

    def __init__(self, folder: Path, *command: str) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            ["node", *command],
            cwd=folder,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.process.kill()
        self.process.wait(SOON_S)
        self._reader.join(SOON_S)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()

    def order(self, **order: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def wait(self, count: int, **event: object) -> None:
        """Wait until it has printed an event so often, as a JSON object."""
        line = json.dumps(event, separators=(",", ":"))
        eventually(
            lambda: self.lines.count(line) == count, lambda: f"{line}: {self.lines}"
        )

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))


class Site:
    """A sidecar, a broker, and a folder with all that Node needs."""

    def __init__(self, sidecar: Sidecar, folder: Path, port: int) -> None:
        self.sidecar = sidecar
        self.folder = folder
        self.port = port

    def clients(self, *ids: str) -> Program:
        """A process with these clients, connected."""
        facts = (str(self.port), str(KEEPALIVE_S))
        program = Program(self.folder, "mqtt_clients.js", *facts)
        program.order(connect=ids)
        for uid in ids:
            program.wait(1, connected=uid)
        return program

    def records(self, uid: str) -> list[tuple[str, str]]:
        """Kind and reason of each record of a user."""
        log = self.sidecar.log()
        return [(record.kind, record.reason) for record in log if record.uid == uid]

    def wait_for(self, uid: str, *records: tuple[str, str]) -> None:
        eventually(
            lambda: self.records(uid) == [("online", "login"), *records],
            lambda: f"{uid}: {self.records(uid)}",
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The integration, with its packages installed from copies of ours and from npm."""
    root = tmp_path_factory.mktemp("npm")
    for name in PACKAGES:
        shutil.copytree(ROOT / "proto" / name, root / name)
    folder = root / PACKAGES[-1]
    shutil.copy(Path(__file__).with_name("mqtt_clients.js"), folder)
    succeeded(ran(*INSTALL, cwd=folder, env=environment()))
    return folder


@pytest.fixture(scope="module")
def site(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Sidecar(tmp_path_factory.mktemp("s"), flush_s=FLUSH_S) as sidecar:
        sidecar.start()
        command = ("broker.js", "--sidecar", str(sidecar.socket), "--port", "0")
        with Program(folder, *command) as broker:
            eventually(lambda: bool(broker.lines))
            yield Site(sidecar, folder, int(broker.lines[0].rpartition(":")[2]))


def test_silent_clients_are_reported_and_closed(site: Site) -> None:
    awake = [f"awake-{number}" for number in range(HALF)]
    asleep = [f"asleep-{number}" for number in range(HALF)]
    with site.clients(*awake) as talkers, site.clients(*asleep) as sleepers:
        talkers.order(subscribe=awake[0])
        sleepers.process.send_signal(signal.SIGSTOP)
        for uid in asleep:
            site.wait_for(uid, ("offline", "silence"))
            talkers.wait(1, received=f"will/{uid}")
        sleepers.process.send_signal(signal.SIGCONT)
        for uid in asleep:
            sleepers.wait(1, closed=uid)
        for uid in awake:  # they were silent for less, all the time
            site.wait_for(uid)
        assert not any("closed" in line for line in talkers.lines)
    ended = [record for record in site.sidecar.log() if record.reason == "silence"]
    assert all(record.silence and record.silence >= TIMEOUT_S for record in ended)


def test_a_take_over_of_a_client_id_moves_the_user(site: Site) -> None:
    with site.clients("twice") as clients:
        site.wait_for("twice")
        clients.order(connect=["twice"])
        clients.wait(1, closed="twice")
        clients.wait(2, connected="twice")
        site.wait_for("twice", ("moved", "login"))
        log = site.sidecar.log()
        (moved,) = [it for it in log if (it.uid, it.kind) == ("twice", "moved")]
        assert moved.from_conn is not None
        assert moved.conn is not None
        assert moved.from_conn < moved.conn
