"""Connections that say nothing, by the thousand: a process of their own holds them.

A process may open only so many files, often 4,096; so a crowd is held by several. Run as a
program it connects so often, reads each connection to its end, and then tells with what
code they were refused, as one JSON line. Its memory is its own, and not the test's.
"""

import json
import resource
import selectors
import socket
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Final, Self

import msgpack

from tests.e2e.client import SOON_S

ROOT: Final = Path(__file__).parents[2]
PIECE_BYTES: Final = 4_096
# How long it waits for the next word about any of them.
PATIENCE_S: Final = 60.0


class Strangers:
    """The process, as a test has it.

    Args:
        path: The sidecar's socket.
        count: How many connect.
    """

    def __init__(self, path: Path, count: int) -> None:
        self.told = Counter[str]()  # how many were refused by which code, or by nothing
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(path), str(count)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._process.kill()
        self._process.wait(SOON_S)
        self._reader.join(SOON_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    @property
    def are_gone(self) -> bool:
        """Whether all of them have met the end of their connection."""
        return not self._reader.is_alive()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.told.update(json.loads(line))


# --- the program -----------------------------------------------------------------------


def _crowd(path: str, count: int) -> Counter[str]:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    told = Counter[str]()
    heard = dict[socket.socket, bytes]()
    with selectors.DefaultSelector() as selector:
        for _ in range(count):
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(path)
            heard[sock] = b""
            selector.register(sock, selectors.EVENT_READ, sock)
        while heard:
            ready = selector.select(PATIENCE_S)
            assert ready, f"{len(heard)} are left alone"
            for key, _ in ready:
                sock = key.data
                if data := _taken(sock):
                    heard[sock] += data
                    continue
                selector.unregister(sock)
                sock.close()
                told[_code(heard.pop(sock))] += 1
    return told


def _taken(sock: socket.socket) -> bytes:
    try:
        return sock.recv(PIECE_BYTES)
    except ConnectionError:
        return b""


def _code(data: bytes) -> str:
    return msgpack.unpackb(data)[1]["code"] if data else "nothing"


if __name__ == "__main__":
    json.dump(_crowd(sys.argv[1], int(sys.argv[2])), sys.stdout)
