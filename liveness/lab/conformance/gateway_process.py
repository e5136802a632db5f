"""The author's gateway, as a process with all its children."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from liveness.console.gateway_program import filled

LAST_LINES: Final = 10
HOST: Final = "127.0.0.1"
# More than any situation opens at a time.
MOST_CONNECTIONS: Final = 1_000


class GatewayProcess:
    """A gateway that can be killed and started again.

    Args:
        words: Its command, with placeholders; the first is an absolute path.
        socket_path: The sidecar's.
        name: The gateway's.
        log: A file for its output.
    """

    def __init__(
        self, words: Sequence[str], *, socket_path: Path, name: str, log: Path
    ) -> None:
        self.has_port = any("{port}" in word for word in words)
        self.port = _free_port() if self.has_port else 0
        values = {"socket": socket_path, "name": name, "port": self.port}
        self._words = filled(words, {**values, "most": MOST_CONNECTIONS})
        self._environ = os.environ | {"LIVENESS_SOCKET_PATH": str(socket_path)}
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def has_ended(self) -> bool:
        """Whether it was started, and its first process has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    @contextmanager
    def running(self) -> Iterator[None]:
        """End it, however this `with` is left."""
        try:
            self.start()
            yield
        finally:
            self.kill()

    def start(self) -> None:
        """Start it in a process group of its own."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._words,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """End it and all its children, as `kill -9` does."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    @property
    def how_it_ended(self) -> str:
        """Its exit code, and the end of its output."""
        code = None if self._process is None else self._process.poll()
        output = " | ".join(self.last_lines()) or "none"
        return f"exit code {code}; its output: {output}"

    def last_lines(self) -> list[str]:
        """The end of its output."""
        if not self._log.exists():
            return []
        return self._log.read_text(errors="replace", encoding="utf-8").splitlines()[
            -LAST_LINES:
        ]


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
