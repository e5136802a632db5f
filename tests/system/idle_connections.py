"""Connections that say nothing, by the thousand: run as a program, it holds them.

It connects COUNT times to SOCKET, reads each connection to its end, and then writes how
many were refused with which code, as JSON. Its memory is its own, and not the test's.
"""

import json
import resource
import selectors
import socket
import sys
from collections import Counter
from typing import Final

from tests.helpers.wire import contents, unpacked

PIECE_BYTES: Final = 4_096
PATIENCE_S: Final = 180.0  # for the next byte of any of them


def crowd(path: str, count: int) -> Counter[str]:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    codes = Counter[str]()
    received = dict[socket.socket, bytes]()
    with selectors.DefaultSelector() as selector:
        for _ in range(count):
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(path)
            received[sock] = b""
            selector.register(sock, selectors.EVENT_READ, sock)
        while received:
            ready = selector.select(PATIENCE_S)
            assert ready, f"{len(received)} are left alone"
            for key, _ in ready:
                sock = key.data
                try:
                    data = sock.recv(PIECE_BYTES)
                except ConnectionError:
                    data = b""
                if data:
                    received[sock] += data
                    continue
                selector.unregister(sock)
                sock.close()
                frames = unpacked(received.pop(sock))
                said = [contents(frame, "error")[0]["code"] for frame in frames]
                codes[" ".join(said) or "nothing"] += 1
    return codes


if __name__ == "__main__":
    json.dump(crowd(sys.argv[1], int(sys.argv[2])), sys.stdout)
