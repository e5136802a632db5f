"""A receiver that only drains its socket: it shows how fast the load could be.

    python -m liveness.lab.bench.drain SOCKET

It accepts one link after the other, reads each to its end, and answers with a byte.
"""

import socket
import sys
from pathlib import Path

from liveness.lab.bench.program import PYTHON, Program
from liveness.lab.bench.systems import Stream
from liveness.lab.common.load import RECEIVE_BYTES


def main(path: str) -> None:
    """Drains links until it is killed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen()
        while True:
            link, _ = listener.accept()
            with link:
                while link.recv(RECEIVE_BYTES):
                    pass
                link.send(b"!")


class Drain(Program):
    """The receiver as a process; its socket and output are in *folder*."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "drain.sock"
        command = [*PYTHON, "liveness.lab.bench.drain", str(self._socket)]
        super().__init__(folder, command)

    def is_ready(self) -> bool:
        """Whether it accepts links."""
        try:
            self.write(Stream(b"", 0))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True

    def write(self, stream: Stream) -> None:
        """Write a stream; return once all of it is read."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.connect(str(self._socket))
            for piece in stream.pieces():
                link.sendall(piece)
            link.shutdown(socket.SHUT_WR)
            link.recv(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
