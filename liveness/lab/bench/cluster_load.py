"""The load on Redis: hosts that publish without a log, and a reader of the streams.

They make the calls that sidecars make, so that Redis can be measured at any rate and with
any number of hosts. What they send is encoded before the clock starts.
"""

import socket
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from liveness.cluster.format import (
    ClusterRecord,
    Place,
    StoredHost,
    configuration_of,
    ending_bytes,
    entry_of,
    field_of,
    host_of,
    keys_of,
    partition_of,
    place_bytes,
    session_bytes,
)
from liveness.cluster.functions import functions
from liveness.lab.bench.program import temporary_folder
from liveness.lab.bench.redis import RedisServer
from liveness.lab.common.load import LoadError, now
from liveness.lab.common.redis_link import RedisLink, command

PARTITIONS: Final = 16
PREFIX: Final = "lv"
# What all hosts of the bench publish: 20 bytes of uid and gateway in all.
GATEWAY: Final = "gw-1"
LEASE_US: Final = 30_000_000
EPOCH: Final = 1
NONCE: Final = 1_234_567_890  # of the usual length

# Far longer than a record takes, and how often to look for it.
RECORDS_S: Final = 60.0
POLL_S: Final = 0.01

_APPLY: Final = functions().prefix + "apply"
_BEAT: Final = functions().prefix + "beat"
_KEYS: Final = [keys_of(PREFIX, number) for number in range(PARTITIONS)]


def expect_ok(link: RedisLink, count: int) -> None:
    """Read the answers to *count* calls of a function."""
    for _ in range(count):
        answer = link.reply()
        if answer[0] != b"ok":
            raise LoadError(f"the function answered {answer!r}")


class ClusterRedis(RedisServer):
    """A redis-server on loopback, for sidecars and for the load."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        super().__init__(folder, "--bind", "127.0.0.1", "--port", str(port))
        self.url = f"redis://127.0.0.1:{port}"

    def memory(self) -> int:
        """Bytes in use."""
        with RedisLink(self.socket) as link:
            lines = link("INFO", "memory").splitlines()
        return int(
            next(line[12:] for line in lines if line.startswith(b"used_memory:"))
        )

    def host(self, name: str) -> list[StoredHost | None]:
        """What each partition knows of a host."""
        with RedisLink(self.socket) as link:
            found = [link("HGET", keys.meta, f"h{name}") for keys in _KEYS]
        return [None if value is None else host_of(value) for value in found]


@contextmanager
def cluster_redis(folder: Path | None) -> Iterator[ClusterRedis]:
    """A server that runs, with the functions; it and its files are removed at the end."""
    with temporary_folder(folder) as own, ClusterRedis(own) as server:
        server.start()
        with RedisLink(server.socket) as link:
            link("FUNCTION", "LOAD", functions().source)
        yield server


def spread(numbers: Iterable[int], kind: str = "user") -> list[list[bytes]]:
    """Users of 16 bytes, by partition."""
    parts: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    for number in numbers:
        field = field_of(f"{kind}-{number:011}")
        parts[partition_of(field, PARTITIONS)].append(field)
    return parts


class LoadHost:
    """A host that publishes whatever it is told to."""

    def __init__(self, name: str, link: RedisLink) -> None:
        self._name, self._link = name, link
        self._sessions: dict[bytes, int] = {}
        self._seq = 0
        self._last = [0] * PARTITIONS
        began = functions().prefix + "begin"
        words = (name, EPOCH, NONCE, "0123456789abcdef", 0)
        terms = (configuration_of(PARTITIONS, ""), LEASE_US, 1, 1, NONCE)
        for keys in _KEYS:
            link.send(command("FCALL", began, 3, *keys, *words, *terms))
        self._incarnations = [link.reply()[2] for _ in _KEYS]
        listed = functions().prefix + "assert"
        for keys, inc in zip(_KEYS, self._incarnations, strict=True):
            head = (name, EPOCH, NONCE, inc, 0, 0, 0, NONCE, "", 0)
            link.send(command("FCALL", listed, 3, *keys, *head))
        expect_ok(link, PARTITIONS)

    def call(self, partition: int, fields: Sequence[bytes]) -> bytes:
        """The call that brings these users online, and those offline who are online."""
        values, bodies, wall_ms = [], [], int(now().wall_ms)
        for field in fields:
            self._seq += 1
            session, since, reason = self._sessions.pop(field, 0), 0, "logout"
            if session:
                values.append(ending_bytes(session))
            else:
                session = self._sessions[field] = self._seq
                since, reason = wall_ms, "login"
                inc, gateway = self._incarnations[partition], GATEWAY.encode()
                values.append(session_bytes(inc, session, since, gateway, b""))
            place = Place(field.decode(), self._name, GATEWAY, session, since, reason)
            bodies.append(place_bytes(place))
        before, self._last[partition] = self._last[partition], self._seq
        inc = self._incarnations[partition]
        head = (self._name, EPOCH, NONCE, inc, before, self._seq, 0, NONCE, "")
        return command(
            *(
                "FCALL",
                _APPLY if fields else _BEAT,
                3,
                *_KEYS[partition],
                *head,
                len(fields),
            ),
            *(*fields, *values, *bodies),
        )

    def rounds(self, parts: Sequence[Sequence[bytes]], size: int) -> list[list[bytes]]:
        """Calls for all users, *size* in each; each round has one for each partition."""
        most = max(map(len, parts))
        cuts = [
            [(n, part[at : at + size]) for n, part in enumerate(parts) if part[at:]]
            for at in range(0, most, size)
        ]
        return [[self.call(n, fields) for n, fields in cut] for cut in cuts]

    def load(self, parts: Sequence[Sequence[bytes]], size: int = 500) -> None:
        """Toggle all users."""
        most = max(map(len, parts))
        for at in range(0, most, size):
            piece = [part[at : at + size] for part in parts]
            for calls in self.rounds(piece, size):
                self.make(calls)

    def make(self, calls: Collection[bytes]) -> None:
        """Make calls, all under way at once as those of a host's partitions are."""
        self._link.send(b"".join(calls))
        expect_ok(self._link, len(calls))

    def beats(self) -> list[bytes]:
        """A call for each partition, which says only that the host lives."""
        return [self.call(number, []) for number in range(PARTITIONS)]

    def look(self) -> None:
        """Look for lost hosts in all partitions; no host is."""
        look = functions().prefix + "look"
        times = (LEASE_US, 0, LEASE_US)  # quiet; at most once every; kept in the stream
        calls = [command("FCALL", look, 3, *keys, self._name, *times) for keys in _KEYS]
        self.make(calls)

    def memory_of_all(self) -> int:
        """Bytes of what Redis knows of all hosts."""
        sizes = (self._link("MEMORY", "USAGE", k.meta, "SAMPLES", 0) for k in _KEYS)
        return sum(sizes)


class StreamReader:
    """Reads the streams of all partitions, in a thread, and stamps what arrives.

    It decodes nothing until `records` is called: so it hardly delays the load.
    """

    def __init__(self, path: Path) -> None:
        self.count = 0  # of records that arrived
        # When each entry arrived, in Unix milliseconds; its partition, id and fields.
        self._entries: list[tuple[float, int, bytes, dict[bytes, bytes]]] = []
        self._link = RedisLink(path)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._is_closing = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closing = True
        self._link.shut_down()
        self._thread.join()
        self._link.__exit__()

    def wait_for(self, count: int) -> None:
        """Wait until so many records have arrived.

        Raises:
            LoadError: They did not, within a minute.
        """
        until = time.perf_counter() + RECORDS_S
        while self.count < count:
            if time.perf_counter() > until:
                missing = count - self.count
                raise LoadError(f"{missing} records did not reach the stream")
            time.sleep(POLL_S)

    def records(self) -> Iterator[tuple[float, ClusterRecord]]:
        """All records that arrived, and when, in Unix milliseconds."""
        for wall_ms, partition, name, fields in self._entries:
            for record in entry_of(partition, name, fields).records:
                yield wall_ms, record

    def _read(self) -> None:
        number_of = {keys.stream.encode(): n for n, keys in enumerate(_KEYS)}
        after = dict.fromkeys(number_of, b"0")
        with_names = ("XREAD", "COUNT", 1_000, "BLOCK", 0, "STREAMS")
        while True:
            try:
                found = self._link(*with_names, *after, *after.values())
            except (LoadError, OSError):
                if self._is_closing:
                    return
                raise
            wall_ms = now().wall_ms
            for key, entries in found:
                for name, flat in entries:
                    fields = dict(zip(flat[::2], flat[1::2], strict=True))
                    self._entries.append((wall_ms, number_of[key], name, fields))
                    self.count += int(fields[b"n"])
                after[key] = entries[-1][0]
