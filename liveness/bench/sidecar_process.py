"""The server under test: its own process, in a folder of its own, gone at the end."""

import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

from liveness.bench import activated
from liveness.bench.load import LoadError, LoadGateway
from liveness.bench.process import PYTHON, folder_of_its_own
from liveness.bench.program import Program
from liveness.console.admin_client import CommandError, readiness
from liveness.service.links.sockets import BACKLOG

SOCKET: Final = "gateway.sock"
AS_INSTALLED: Final[Mapping[str, str]] = MappingProxyType({})


class Server(Program):
    """One sidecar; it is ready once hello and `/readyz` succeed.

    Args:
        folder: For its socket, its state and what it says.
        timeout_s: Its silence timeout.
        slots: Of its ring; None: the default.
        env: What it finds in its environment beside this machine's.
        handed: Listens at its socket, and outlives it; None: it makes one itself.
    """

    def __init__(
        self,
        folder: Path,
        *,
        timeout_s: float,
        slots: int | None = None,
        env: Mapping[str, str] = AS_INSTALLED,
        handed: socket.socket | None = None,
    ) -> None:
        self.socket = folder / SOCKET
        self.state = folder / "state"
        settings = folder / "settings.toml"
        settings.touch()  # none but the defaults, whatever this machine has set
        command = [*PYTHON, "liveness", "serve", "--config", str(settings)]
        command += ["--socket", str(self.socket), "--http", "127.0.0.1:0"]
        command += ["--state", str(self.state), "--timeout", str(timeout_s)]
        if slots is not None:
            command += ["--slots", str(slots)]
        fds = [] if handed is None else [handed.fileno()]
        for fd in fds:
            command = [
                *(sys.executable, "-S", activated.__file__, str(fd), "gateway"),
                *command,
            ]
        super().__init__(folder, command, env=env, handed=fds)

    def is_ready(self) -> bool:
        """Whether hello and `/readyz` succeed."""
        try:
            with LoadGateway(self.socket, role="watcher", name="ready?", ack=False):
                pass
            return readiness(self.socket)[0]
        except (FileNotFoundError, ConnectionRefusedError, CommandError):
            return False


@contextmanager
def server(folder: Path | None, *, timeout_s: float) -> Iterator[Server]:
    """Give a server, not started; its process and files are gone afterwards.

    Args:
        folder: Where its own folder is made; None: the usual temporary one.
        timeout_s: Its silence timeout.
    Raises:
        ProgramError: It has ended by itself, whatever else went wrong for that.
    """
    with folder_of_its_own(folder) as own:
        it = Server(own, timeout_s=timeout_s)
        with ended(it):
            yield it


@contextmanager
def replaceable(folder: Path | None, *, timeout_s: float) -> Iterator[Server]:
    """The same, with a socket that is kept while one process replaces another."""
    with (
        folder_of_its_own(folder) as own,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
    ):
        listener.bind(str(own / SOCKET))
        listener.listen(BACKLOG)
        it = Server(own, timeout_s=timeout_s, handed=listener)
        with ended(it):
            yield it


@contextmanager
def ended(program: Program) -> Iterator[None]:
    """Kill *program* at the end; tell if it was it whose end made something fail."""
    try:
        yield
    except (LoadError, OSError):
        program.check()
        raise
    finally:
        program.kill()
