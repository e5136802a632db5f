"""etcd: a lease for each user with a key on it, over etcd's JSON gateway.

Requests are pipelined on one link, which etcd answers in order. A KeepAlive takes only one
lease. Granting a lease is a round of etcd's consensus, written to disk.
"""

import json
import socket
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from liveness.bench.load import cut, uid
from liveness.bench.pipeline import PipelinedServer, PipelinedSystem
from liveness.bench.systems import LONG_S, Stream

# A lease's id is its user's number plus this; etcd chooses an id if it is given 0. A user
# who falls silent gets a second lease, because a lease keeps its timeout.
FIRST: Final = 1
FIRST_SHORT: Final = 1_000_000_000
# The most operations that etcd accepts in a transaction.
PUTS_AT_ONCE: Final = 128


def request(path: str, content: Mapping[str, object]) -> bytes:
    """A request to etcd's JSON gateway."""
    body = json.dumps(content)
    head = f"POST /v3/{path} HTTP/1.1\r\nHost: etcd\r\nContent-Length: {len(body)}\r\n"
    return f"{head}\r\n{body}".encode()


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()


class EtcdServer(PipelinedServer):
    """An etcd on free ports of loopback."""

    REPLY, ERROR = b"HTTP/1.1 200 OK", b'"error":'
    PROBE = request("kv/range", {"key": _base64("ready?")})

    def __init__(self, folder: Path) -> None:
        port, peer_port = _free_ports()
        clients, peers = (f"http://127.0.0.1:{n}" for n in (port, peer_port))
        words = ["etcd", "--data-dir", str(folder / "etcd")]
        words += ["--listen-client-urls", clients, "--advertise-client-urls", clients]
        words += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
        words += ["--initial-cluster", f"default={peers}"]
        super().__init__(folder, port, words)


class Leases(PipelinedSystem):
    """A lease and a key for each user."""

    def log_in(self, numbers: range) -> None:
        """Grant the leases, and put the keys."""
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

    def fall_silent(self, number: int, timeout_s: int) -> None:
        """Put a user on a lease that nothing keeps alive."""
        lease = FIRST_SHORT + number
        put = {"success": [_put(number, lease)]}
        data = _grant(lease, timeout_s) + request("kv/txn", put)
        self.link.post(Stream(data, 2))


def deleted(sock: socket.socket) -> Iterator[Sequence[str]]:
    """The users whose keys are deleted."""
    watched = {"key": _base64("user-"), "range_end": _base64("user.")}
    sock.sendall(
        request("watch", {"create_request": {**watched, "filters": ["NOPUT"]}})
    )
    with sock.makefile("rb") as replies:
        for line in replies:
            if line.startswith(b"{"):  # other lines are headers and chunk sizes of HTTP
                content: dict[str, Any] = json.loads(line)
                events = content["result"].get("events", ())
                yield [b64decode(event["kv"]["key"]).decode() for event in events]


def _grant(lease: int, timeout_s: int) -> bytes:
    return request("lease/grant", {"ID": str(lease), "TTL": str(timeout_s)})


def _put(number: int, lease: int) -> dict[str, object]:
    return {"requestPut": {"key": _base64(uid(number)), "lease": str(lease)}}


def _free_ports() -> tuple[int, int]:
    free = ("127.0.0.1", 0)
    with socket.create_server(free) as first, socket.create_server(free) as second:
        return first.getsockname()[1], second.getsockname()[1]
