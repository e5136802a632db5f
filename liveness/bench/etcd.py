"""etcd: a lease for each user with a key on it, over etcd's JSON gateway.

Requests are pipelined on one link, as all of them are for one process; etcd answers
them one after the other. KeepAlive takes no more than one lease, and granting one is a
round of its consensus, written to disk.
"""

import json
import socket
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from liveness.bench.load import Notices, cut, uid
from liveness.bench.pipeline import Pipeline, linked
from liveness.bench.program import Program
from liveness.bench.systems import LONG_S, Stream, System
from liveness.bench.told import OfflineStream

# A lease's id is its user's number and this; 0 would be any. A user who falls silent
# gets a new lease, since a lease keeps its timeout.
FIRST: Final = 1
FIRST_SHORT: Final = 1_000_000_000
# The most that one transaction takes.
PUTS_AT_ONCE: Final = 128


class EtcdServer(Program):
    """An etcd of its own on free ports of loopback.

    Args:
        folder: For its files.
    """

    def __init__(self, folder: Path) -> None:
        self.port, peers = _free_ports()
        ours, theirs = (f"http://127.0.0.1:{one}" for one in (self.port, peers))
        words = ["etcd", "--data-dir", str(folder / "etcd")]
        words += ["--listen-client-urls", ours, "--advertise-client-urls", ours]
        words += ["--listen-peer-urls", theirs]
        words += ["--initial-advertise-peer-urls", theirs]
        words += ["--initial-cluster", f"default={theirs}"]
        super().__init__(folder, words, env={})

    def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            with self.link() as link:
                link.write(Stream(request("kv/range", {"key": _base64("ready?")}), 1))
        except ConnectionRefusedError:
            return False
        return True

    def link(self) -> Pipeline:
        """A link for requests."""
        return Pipeline(self.port, reply=b"HTTP/1.1 200 OK", error=b'"error":')


def request(path: str, content: Mapping[str, object]) -> bytes:
    """One request as etcd's JSON gateway reads it."""
    body = json.dumps(content)
    head = f"POST /v3/{path} HTTP/1.1\r\nHost: etcd\r\nContent-Length: {len(body)}\r\n"
    return f"{head}\r\n{body}".encode()


class Leases(System):
    """A lease and a key for each user.

    Args:
        program: The server.
        link: A link to it.
        told: Where it is told whose key is gone.
    """

    def __init__(
        self, program: EtcdServer, link: Pipeline, told: OfflineStream
    ) -> None:
        super().__init__(program)
        self._link = link
        self._told = told

    def make_known(self, numbers: range) -> None:
        """Grant everyone a lease, and put the keys."""
        grants = b"".join(_grant(FIRST + number, LONG_S) for number in numbers)
        self.write(Stream(grants, len(numbers)))
        parts = cut(numbers, PUTS_AT_ONCE)
        puts = b"".join(
            request("kv/txn", {"success": [_put(n, FIRST + n) for n in part]})
            for part in parts
        )
        self.write(Stream(puts, len(parts)))

    def singles(self, numbers: Sequence[int]) -> Stream:
        """A KeepAlive for each."""
        leases = ({"ID": str(FIRST + number)} for number in numbers)
        data = b"".join(request("lease/keepalive", lease) for lease in leases)
        return Stream(data, len(numbers))

    def batches(self, numbers: Sequence[int]) -> Stream | None:
        """None: a KeepAlive is of one lease."""

    def write(self, stream: Stream) -> None:
        """Write requests; return once they are answered."""
        self._link.write(stream)

    def silence(self, number: int, timeout_s: int) -> None:
        """Put a user on a lease that nobody keeps alive."""
        lease = FIRST_SHORT + number
        put = {"success": [_put(number, lease)]}
        data = _grant(lease, timeout_s) + request("kv/txn", put)
        self._link.post(Stream(data, 2))

    def told(self, count: int, *, until: float) -> Sequence[Notices]:
        """Wait for so many to be told silent; return those who were."""
        return self._told.wait_for(count, until=until)


@contextmanager
def etcd(folder: Path, _count: int) -> Iterator[Leases]:
    """An etcd, with links to it."""
    server = EtcdServer(folder)
    with linked(server, server.link, address=server.port, listen=_deleted) as links:
        yield Leases(server, *links)


def _deleted(sock: socket.socket) -> Iterator[Sequence[str]]:
    """The users whose keys are deleted."""
    watched = {"key": _base64("user-"), "range_end": _base64("user.")}
    sock.sendall(
        request("watch", {"create_request": {**watched, "filters": ["NOPUT"]}})
    )
    with sock.makefile("rb") as replies:
        for line in replies:
            if line.startswith(b"{"):  # else it is of HTTP
                told: dict[str, Any] = json.loads(line)
                events = told["result"].get("events", ())
                yield [b64decode(one["kv"]["key"]).decode() for one in events]


def _grant(lease: int, timeout_s: int) -> bytes:
    return request("lease/grant", {"ID": str(lease), "TTL": str(timeout_s)})


def _put(number: int, lease: int) -> dict[str, object]:
    return {"requestPut": {"key": _base64(uid(number)), "lease": str(lease)}}


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()


def _free_ports() -> tuple[int, int]:
    """Two that nobody listens on now."""
    free = ("127.0.0.1", 0)
    with socket.create_server(free) as one, socket.create_server(free) as other:
        return one.getsockname()[1], other.getsockname()[1]
