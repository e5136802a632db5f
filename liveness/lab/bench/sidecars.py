"""Sidecars under test, each in a folder of its own, and the cost of a block of work."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self, TypeVar

from liveness.lab.common.load import LoadError, LoadGateway
from liveness.lab.common.processes import Program, SidecarProgram, redis_server

P = TypeVar("P", bound=Program)

# Scenarios have up to ten million users, and a few more.
MANY_USERS: Final = {
    "LIVENESS_LIMITS_MAX_USERS": "11000000",
    "LIVENESS_LIMITS_MAX_GATEWAY_USERS": "11000000",
    "LIVENESS_LIMITS_MAX_SPOOL_BYTES": str(2**30),  # one list of all of them
}


@contextmanager
def watched(folder: Path | None, make: Callable[[Path], P]) -> Iterator[P]:
    """A program with its own files, not started yet.

    At the end it is killed and its files are removed.
    """
    with (
        # Short: the path of a socket has room for 107 bytes.
        TemporaryDirectory(prefix="bench-", dir=folder) as own,
        make(Path(own)) as program,
    ):
        try:
            yield program
        except (LoadError, OSError):
            program.check()
            raise
        program.check()


def fresh_sidecar(
    folder: Path | None, **options: Any
) -> AbstractContextManager[SidecarProgram]:
    """Like `watched`, for a sidecar; *options* are those of `SidecarProgram`."""
    return watched(folder, partial(SidecarProgram, env=MANY_USERS, **options))


@contextmanager
def linked_sidecar(
    folder: Path | None, **options: Any
) -> Iterator[tuple[SidecarProgram, LoadGateway]]:
    """A running sidecar, and a link to it; *options* are those of `fresh_sidecar`."""
    with fresh_sidecar(folder, **options) as sidecar:
        sidecar.start()
        with LoadGateway(sidecar.socket) as gateway:
            yield sidecar, gateway


@contextmanager
def running_redis(
    folder: Path | None, *words: str, program: str = "redis-server"
) -> Iterator[tuple[Program, Path]]:
    """Like `watched`, a running Redis, and its socket; see `redis_server`."""

    def made(own: Path) -> Program:
        path = str(own / "socket")
        return redis_server(own, "--unixsocket", path, *words, program=program)

    with watched(folder, made) as server:
        server.start()
        yield server, server.log.with_name("socket")


class Window:
    """Measures a block: its duration, and the CPU time of the program."""

    took_s = server_s = 0.0

    def __init__(self, program: Program) -> None:
        self._program = program

    def __enter__(self) -> Self:
        self._began = self._read()
        return self

    def __exit__(self, *_: object) -> None:
        spent = [b - a for a, b in zip(self._began, self._read(), strict=True)]
        self.took_s, self.server_s = spent

    def _read(self) -> tuple[float, float]:
        return time.perf_counter(), self._program.cpu_s()

    @property
    def server_percent(self) -> float:
        return 100 * self.server_s / self.took_s

    def server_ns(self, count: int) -> float:
        return self.server_s / count * 1e9
