"""Redis on loopback: one server, one with a replica, with TLS, and a Cluster of six nodes.

Each server has a temporary folder and free ports of its own. Administration goes over its
Unix socket, whatever its ports ask for. `LIVENESS_TEST_REDIS` names another program of the
same options, as `valkey-server`.
"""

import os
import re
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Final, NamedTuple

import pytest

from liveness.config.cluster import ClusterSettings
from liveness.lab.common.processes import Program, free_port
from tests.helpers.needs import require
from tests.helpers.processes import ran, succeeded
from tests.helpers.redis_connection import RedisConnection

# Read here: while tests run, the settings of this host are hidden from them.
PROGRAM: Final = os.environ.get("LIVENESS_TEST_REDIS", "redis-server")
LOOPBACK: Final = "127.0.0.1"
# Longer than any step that works takes on a busy machine.
SOON_S: Final = 120.0
SLOTS: Final = 16_384
# A node of a Cluster that is silent this long counts as dead.
NODE_TIMEOUT_MS: Final = 2_000


class RedisServer(Program):
    """A redis-server without a disk, on a port of loopback.

    `start`, `stop` and `kill` are those of any program: it starts again on the same port,
    and empty. `pause` and `resume` stop its process and let it go on.

    Args:
        folder: An empty folder with a short name: a Unix socket is made in it.
        options: Further ones, as in `--maxmemory 1mb`.
        tls: The certificates of a server that talks TLS only.
    """

    def __init__(
        self, folder: Path, *options: str, tls: "Certificates | None" = None
    ) -> None:
        self.port = free_port()
        self.scheme = "rediss" if tls else "redis"
        self.unix_socket = folder / "s"
        ports = ["--port", str(self.port)]
        if tls is not None:
            ports = ["--port", "0", "--tls-port", str(self.port), *tls.options]
        words = [require(PROGRAM, "redis-server"), *ports, "--bind", LOOPBACK]
        words += ["--unixsocket", str(self.unix_socket), "--dir", str(folder)]
        words += ["--save", "", "--appendonly", "no", *options]
        super().__init__(
            name="redis-server",
            command=words,
            log=folder / "log",
            ready=re.compile("[Rr]eady to accept connections"),
        )
        self.address = f"{LOOPBACK}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.address}"

    def settings(self, **more: Any) -> ClusterSettings:
        return ClusterSettings(url=self.url, **more)

    def __call__(self, *words: str | int | bytes) -> Any:
        """The reply to one command: bytes, int, None, or a list of these.

        Raises:
            RedisRefusal: The server answered with an error.
        """
        with closing(RedisConnection(self.unix_socket)) as connection:
            return connection(*words)

    def info(self, section: str, name: str) -> str:
        lines = self("INFO", section).decode().splitlines()
        return next((line[len(name) + 1 :] for line in lines if _names(line, name)), "")

    def pause(self) -> None:
        """Stop its process: connections stay open, and nothing is answered."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)


class Certificates(NamedTuple):
    ca: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path

    @property
    def options(self) -> list[str]:
        files = [("cert", self.server), ("key", self.server_key), ("ca-cert", self.ca)]
        return [
            word for kind, path in files for word in (f"--tls-{kind}-file", str(path))
        ]


class RedisCluster:
    """Three masters and a replica of each, which take over after seconds.

    `nodes` has all six; `masters` asks who they are now.
    """

    def __init__(self, nodes: list[RedisServer]) -> None:
        self.nodes = nodes
        self._by_id = {node_id(node): node for node in nodes}

    def settings(self, **more: Any) -> ClusterSettings:
        return ClusterSettings(
            nodes=",".join(node.address for node in self.nodes), **more
        )

    @property
    def masters(self) -> list[RedisServer]:
        return [
            node
            for node in self._running
            if node.info("replication", "role") == "master"
        ]

    @property
    def _running(self) -> list[RedisServer]:
        return [node for node in self.nodes if node.code is None]

    def slot_of(self, key: str) -> int:
        slot = self._running[0]("CLUSTER", "KEYSLOT", key)
        assert isinstance(slot, int)
        return slot

    def master_of(self, key: str) -> RedisServer:
        """The master that serves a key, as one of the nodes that run sees it."""
        slot = self.slot_of(key)
        for first, last, master, *_ in self._running[0]("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return self._by_id[master[2].decode()]
        raise AssertionError(f"nobody serves slot {slot}")

    def is_whole(self) -> bool:
        """Whether every node sees all slots served, and every replica is connected."""
        return all(
            b"cluster_state:ok" in node("CLUSTER", "INFO")
            and node.info("replication", "master_link_status") in ("", "up")
            and node("CLUSTER", "NODES").count(b"slave ") == len(self.nodes) // 2
            for node in self.nodes
        )

    def move_slot(self, key: str) -> Callable[[], None]:
        """Begin to move the slot of a key to another master; what is returned ends that.

        Between the two, what is not there yet is answered ASK, and TRYAGAIN by halves.
        """
        slot, source = self.slot_of(key), self.master_of(key)
        target = next(master for master in self.masters if master is not source)
        target("CLUSTER", "SETSLOT", slot, "IMPORTING", node_id(source))
        source("CLUSTER", "SETSLOT", slot, "MIGRATING", node_id(target))

        def finish() -> None:
            for name in source("CLUSTER", "GETKEYSINSLOT", slot, 100):
                source("MIGRATE", LOOPBACK, target.port, name, 0, 10_000)
            for node in (target, source):
                node("CLUSTER", "SETSLOT", slot, "NODE", node_id(target))

        return finish


def node_id(node: RedisServer) -> str:
    return str(node("CLUSTER", "MYID").decode())


# --- for a block ----------------------------------------------------------------------


@contextmanager
def redis_server(
    *options: str, tls: Certificates | None = None
) -> Iterator[RedisServer]:
    with (
        tempfile.TemporaryDirectory(prefix="redis-") as folder,
        RedisServer(Path(folder), *options, tls=tls) as server,
    ):
        server.start()
        yield server


@contextmanager
def redis_cluster_of_six(
    *options: str, tls: Certificates | None = None
) -> Iterator[RedisCluster]:
    """A Cluster of six nodes that serves all slots."""
    if tls is not None:
        options += ("--tls-cluster", "yes", "--tls-replication", "yes")
    shared = ["--cluster-enabled", "yes", "--repl-diskless-sync-delay", "0"]
    shared += ["--cluster-node-timeout", str(NODE_TIMEOUT_MS)]
    shared += ["--cluster-require-full-coverage", "no"]
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(
                # Its own choice, port + 10000, may be taken, or no port at all.
                redis_server(
                    *shared, "--cluster-port", str(free_port()), *options, tls=tls
                )
            )
            for _ in range(6)
        ]
        masters, replicas = nodes[:3], nodes[3:]
        for place, node in enumerate(nodes):
            node("CLUSTER", "SET-CONFIG-EPOCH", place + 1)
        for place, node in enumerate(masters):
            first, end = SLOTS * place // 3, SLOTS * (place + 1) // 3
            node("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
        for node in nodes[1:]:
            bus = node.command[node.command.index("--cluster-port") + 1]
            nodes[0]("CLUSTER", "MEET", LOOPBACK, node.port, bus)
        wait_until(lambda: all(_knows(node, nodes) for node in nodes))
        for node, master in zip(replicas, masters, strict=True):
            node("CLUSTER", "REPLICATE", node_id(master))
        cluster = RedisCluster(nodes)
        wait_until(cluster.is_whole)
        yield cluster


CERTIFICATES: Final = f"""
key="-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
openssl req -x509 $key -days 1 -keyout ca.key -out ca.crt -subj "/CN=test authority" \\
    -addext keyUsage=critical,keyCertSign,cRLSign
echo "subjectAltName=DNS:localhost,IP:{LOOPBACK}" >names
echo "authorityKeyIdentifier=keyid" >>names
for name in server client; do
    openssl req $key -keyout $name.key -out $name.csr -subj "/CN=$name"
    openssl x509 -req -in $name.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 1 \\
        -out $name.crt -extfile names
done
"""


def make_certificates(folder: Path) -> Certificates:
    require("openssl")
    succeeded(ran("sh", "-ec", CERTIFICATES, cwd=folder))
    names = ("ca.crt", "server.crt", "server.key", "client.crt", "client.key")
    return Certificates(*(folder / name for name in names))


def wait_until(is_so: Callable[[], bool]) -> None:
    until = perf_counter() + SOON_S
    while not is_so():
        assert perf_counter() < until, f"it was not so within {SOON_S:g} s"
        sleep(0.01)


# --- fixtures -------------------------------------------------------------------------


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def redis_cluster() -> Iterator[RedisCluster]:
    """An empty Cluster of six nodes: it takes seconds, so its tests are `long`."""
    with redis_cluster_of_six() as cluster:
        yield cluster


def _names(line: str, name: str) -> bool:
    return line.startswith(f"{name}:")


def _knows(node: RedisServer, nodes: list[RedisServer]) -> bool:
    lines = node("CLUSTER", "NODES").splitlines()
    return len(lines) == len(nodes) and b"handshake" not in b"".join(lines)
