"""Systems that speak the wire protocol: the sidecar, and a server on asyncio's timers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from liveness.bench.load import BATCH, LoadGateway, LoadUsers, Notices, cut
from liveness.bench.program import PYTHON, Program
from liveness.bench.sidecar_process import AS_INSTALLED, SidecarProcess
from liveness.bench.systems import LOGINS_AT_ONCE, LONG_S, Stream, System


class MeasuredSidecar(System):
    """A server, and a gateway with its users.

    Args:
        program: Its process.
        gateway: The link.
        users: All users there may be.
    """

    def __init__(
        self, program: Program, gateway: LoadGateway, users: LoadUsers
    ) -> None:
        super().__init__(program)
        self._gateway = gateway
        self._users = users

    def log_in(self, numbers: range) -> None:
        """Log users in; return once that is on disk."""
        for part in cut(numbers, LOGINS_AT_ONCE):
            self._gateway.send(self._users.logins(part, timeout=LONG_S))
        self._gateway.ping()

    def singles(self, numbers: Sequence[int]) -> Stream:
        """One-uid frames."""
        return Stream(b"".join(map(self._users.single, numbers)), 0)

    def batches(self, numbers: Sequence[int]) -> Stream:
        """Frames of 1,000 uids."""
        starts = range(0, len(numbers), BATCH)
        frames = (self._users.batch(numbers[at : at + BATCH]) for at in starts)
        return Stream(b"".join(frames), 0)

    def write(self, stream: Stream) -> None:
        """Write frames; return once they are applied."""
        for piece in stream.pieces():
            self._gateway.send(piece)
        self._gateway.ping()

    def fall_silent(self, number: int, timeout_s: int) -> None:
        """Log a user in who then sends nothing more."""
        self._gateway.send(self._users.single(number, "login", timeout=timeout_s))

    def wait_for_offlines(self, count: int, *, until: float) -> Sequence[Notices]:
        """As in `System`."""
        self._gateway.wait_for(count, until=until)
        return self._gateway.notices


class AsyncioTimers(Program):
    """The process of `asyncio_timers.py`; its socket and output are in *folder*."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "timers.sock"
        command = [*PYTHON, "liveness.bench.asyncio_timers", str(self.socket)]
        super().__init__(folder, command, env={})

    def is_ready(self) -> bool:
        """Whether it welcomes a gateway."""
        try:
            with LoadGateway(self.socket):
                return True
        except (FileNotFoundError, ConnectionRefusedError):
            return False


@contextmanager
def sidecar(
    folder: Path, count: int, *, env: Mapping[str, str] = AS_INSTALLED
) -> Iterator[MeasuredSidecar]:
    """A sidecar with slots of a second, so that each activity really moves its user.

    Args:
        folder: For its files.
        count: Users there may be.
        env: Chooses its wheel.
    """
    server = SidecarProcess(folder, timeout_s=LONG_S, slots=LONG_S, env=env)
    with _linked(server, count) as system:
        yield system


@contextmanager
def asyncio_timers(folder: Path, count: int) -> Iterator[MeasuredSidecar]:
    """A server on asyncio's timers, driven by the same protocol."""
    with _linked(AsyncioTimers(folder), count) as system:
        yield system


@contextmanager
def _linked(
    server: SidecarProcess | AsyncioTimers, count: int
) -> Iterator[MeasuredSidecar]:
    users = LoadUsers(count)
    with server:
        server.start()
        with LoadGateway(server.socket) as gateway:
            yield MeasuredSidecar(server, gateway, users)
