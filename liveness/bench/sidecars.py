"""Systems that are driven by the wire contract: the sidecar itself, and its likes."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from liveness.bench.load import BATCH, LoadGateway, LoadUsers, Notices, cut
from liveness.bench.process import PYTHON
from liveness.bench.program import Program
from liveness.bench.sidecar_process import AS_INSTALLED, Server, ended
from liveness.bench.systems import KNOWN_AT_ONCE, LONG_S, Stream, System


class MeasuredSidecar(System):
    """A sidecar, and a gateway with its users.

    Args:
        program: Its process.
        gateway: The link.
        users: Everyone there may be.
    """

    def __init__(
        self, program: Program, gateway: LoadGateway, users: LoadUsers
    ) -> None:
        super().__init__(program)
        self._gateway = gateway
        self._users = users

    def make_known(self, numbers: range) -> None:
        """Log users in; return once that is on disk."""
        for part in cut(numbers, KNOWN_AT_ONCE):
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
        """Write a stream, and wait until it is applied."""
        for piece in stream.pieces():
            self._gateway.send(piece)
        self._gateway.ping()

    def silence(self, number: int, timeout_s: int) -> None:
        """Log a user in, who then says nothing more."""
        self._gateway.send(self._users.single(number, "login", timeout=timeout_s))

    def told(self, count: int, *, until: float) -> Sequence[Notices]:
        """Wait for so many to be told silent; return those who were."""
        self._gateway.wait_for(count, until=until)
        return self._gateway.notices


class AsyncioTimers(Program):
    """`liveness.bench.asyncio_timers` as a process of its own.

    Args:
        folder: For its socket and what it says.
    """

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
    """A sidecar whose slots are a second each: who speaks again has to be moved.

    Args:
        folder: For its files.
        count: How many users there may be.
        env: What chooses its wheel.
    """
    with _linked(Server(folder, timeout_s=LONG_S, slots=LONG_S, env=env), count) as it:
        yield it


@contextmanager
def asyncio_timers(folder: Path, count: int) -> Iterator[MeasuredSidecar]:
    """A server on asyncio's timers, of the same contract.

    Args:
        folder: For its files.
        count: How many users there may be.
    """
    with _linked(AsyncioTimers(folder), count) as it:
        yield it


@contextmanager
def _linked(server: Server | AsyncioTimers, count: int) -> Iterator[MeasuredSidecar]:
    users = LoadUsers(count)
    with ended(server):
        server.start()
        with LoadGateway(server.socket) as gateway:
            yield MeasuredSidecar(server, gateway, users)
